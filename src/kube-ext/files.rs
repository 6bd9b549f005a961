//! Files that are written whole or not at all (written beside and renamed), private ones with mode 0600.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Reads the whole file as text.
pub fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file that anyone with access to its folder may read.
pub fn write_public(path: &Path, content: &str) -> anyhow::Result<()> {
    write(path, content, 0o644).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file that only its owner may read, from its creation on.
pub fn write_private(path: &Path, content: &str) -> anyhow::Result<()> {
    write(path, content, 0o600).with_context(|| format!("cannot write {}", path.display()))
}

/// Creates a folder and its parents, for access by the owner only.
pub fn create_private_dir(path: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot create the folder {}", path.display()))
}

/// Writes a file of this mode, whole or not at all.
fn write(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let beside = PathBuf::from(name);
    let _ = fs::remove_file(&beside);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
    file.write_all(content.as_bytes())?;
    fs::rename(&beside, path)
}
