//! A further cluster: of one test, and gone with it.

use std::{ops::Deref, path::PathBuf};

use super::Bed;

/// A cluster without nodes, in a folder of its own.
pub struct Further(Bed);

impl Further {
    /// Starts it; `name` is no other one's in this test binary.
    pub fn start(name: &str, more: &[&str]) -> Self {
        let further = Self::folder(name);
        further.up(more);
        further
    }

    /// Nothing yet.
    pub fn folder(name: &str) -> Self {
        let dir = format!("{name}-{}", std::process::id());
        Self(Bed { dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(dir) })
    }
}

impl Deref for Further {
    type Target = Bed;

    fn deref(&self) -> &Bed {
        &self.0
    }
}

impl Drop for Further {
    fn drop(&mut self) {
        self.kube_node(&["down", "--delete"]);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
