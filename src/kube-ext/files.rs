//! Files that are written whole or not at all (written beside and renamed), private ones with mode 0600.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// A file that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    /// `action` is a verb, as in "cannot read FILE".
    #[must_use]
    pub fn new(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self { action, path: path.to_owned(), source }
    }

    /// The system's error.
    #[must_use]
    pub fn into_source(self) -> io::Error {
        self.source
    }
}

/// Reads the whole file as text.
pub fn read(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(|source| FileError::new("read", path, source))
}

/// Writes a file that anyone with access to its folder may read.
pub fn write_public(path: &Path, content: &str) -> Result<(), FileError> {
    write(path, content.as_bytes(), 0o644)
}

/// Writes a file that only its owner may read, from its creation on.
pub fn write_private(path: &Path, content: &str) -> Result<(), FileError> {
    write(path, content.as_bytes(), 0o600)
}

/// Creates a folder and its parents, for access by the owner only.
pub fn create_private_dir(path: &Path) -> Result<(), FileError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| FileError::new("create the folder", path, source))
}

fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let beside = PathBuf::from(name);
    let attempt = || {
        let _ = fs::remove_file(&beside);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(content)?;
        fs::rename(&beside, path)
    };
    attempt().map_err(|source| FileError::new("write", path, source))
}
