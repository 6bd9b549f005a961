//! Files that are written whole or not at all (written beside and renamed), private ones with mode 0600.
//!
//! Invariant: after a power failure or on a full disk a file has its old content or its new one. The content is on the disk
//! before the rename, and the rename before the function returns.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
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
    write(path, content, 0o644).map_err(|error| cannot_write(path, error))
}

/// Writes a file that only its owner may read, from its creation on.
pub fn write_private(path: &Path, content: &str) -> anyhow::Result<()> {
    write(path, content, 0o600).map_err(|error| cannot_write(path, error))
}

/// The error of a write to a file, with what to do about a full disk.
pub fn cannot_write(path: &Path, error: io::Error) -> anyhow::Error {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let advice = match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => ": free space there, or choose another folder",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot write {}{advice}", path.display()))
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
    let written = write_beside(&beside, content, mode).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // On a full disk the part that was written would take the space of the next attempt.
        let _ = fs::remove_file(&beside);
        return written;
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn write_beside(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_replaced_keeps_its_content_and_has_no_remains_beside_it() {
        let dir = std::env::temp_dir().join(format!("kube-node-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        // A folder of the file's name cannot be replaced by a file.
        let path = dir.join("state");
        fs::create_dir_all(path.join("content")).unwrap();
        write_public(&path, "new").unwrap_err();
        assert!(path.join("content").exists() && !dir.join("state.tmp").exists());
        write_private(&dir.join("key"), "new").unwrap();
        assert_eq!(read(&dir.join("key")).unwrap(), "new");
        fs::remove_dir_all(&dir).unwrap();
    }
}
