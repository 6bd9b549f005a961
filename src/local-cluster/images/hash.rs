//! SHA-256 of what is written.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

/// A writer that hashes the bytes it passes on.
pub(super) struct Hashed<W> {
    pub inner: W,
    pub hash: Sha256,
}

impl<W> Hashed<W> {
    pub fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new() }
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
