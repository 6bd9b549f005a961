//! Lock of a cache folder of programs: one process builds or downloads into the folder at a time.
//!
//! Input: the folder. Output: its lock, and the path of a scratch folder that only the holder of the lock uses.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use tokio::time::sleep;

use super::{files::create_private_dir, progress::Progress};

/// The lock of a cache folder. The kernel releases the lock when the process ends, even after a crash.
#[derive(Debug)]
pub(super) struct CacheLock {
    /// Folder for unfinished programs. It is absent until the holder makes it.
    pub scratch: PathBuf,
    _file: File,
}

/// Makes the folder, waits for its lock, and deletes what an interrupted process left in the scratch folder.
pub(super) async fn take(cache: &Path, progress: &Progress) -> anyhow::Result<CacheLock> {
    create_private_dir(cache)?;
    let file = wait(cache, progress).await?;
    let scratch = cache.join("scratch");
    // The lock rules out a process that still uses it.
    let _ = fs::remove_dir_all(&scratch);
    Ok(CacheLock { scratch, _file: file })
}

async fn wait(cache: &Path, progress: &Progress) -> anyhow::Result<File> {
    let path = cache.join("lock");
    let failed = || format!("cannot lock {}", path.display());
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(&path).with_context(failed)?;
    let mut waiting = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
            Err(TryLockError::WouldBlock) => {}
        }
        if !waiting {
            progress.step("Waiting for another process that makes the programs");
            waiting = true;
        }
        progress.update("Still waiting for the other process that makes the programs");
        sleep(Duration::from_millis(200)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_process_waits_for_the_first() {
        let dir = std::env::temp_dir().join(format!("kube-node-cache-lock-{}", std::process::id()));
        fs::create_dir_all(dir.join("scratch/left over")).unwrap();
        let first = take(&dir, &Progress::silent()).await.unwrap();
        assert!(!first.scratch.exists());
        let silent = Progress::silent();
        let mut second = Box::pin(take(&dir, &silent));
        assert!(tokio::time::timeout(Duration::from_millis(300), &mut second).await.is_err());
        drop(first);
        second.await.unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }
}
