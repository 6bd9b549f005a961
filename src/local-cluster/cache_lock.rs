//! Lock of a cache folder of programs: one process builds or downloads into the folder at a time.

use std::{
    fs::{File, OpenOptions, TryLockError},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use tokio::time::sleep;

use super::progress::Progress;

/// Waits for the lock. The kernel releases the lock when the process ends, even after a crash.
pub(super) async fn take(cache: &Path, progress: &Progress) -> anyhow::Result<File> {
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
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn the_second_process_waits_for_the_first() {
        let dir = std::env::temp_dir().join(format!("kube-node-cache-lock-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let first = take(&dir, &Progress::silent()).await.unwrap();
        let silent = Progress::silent();
        let mut second = Box::pin(take(&dir, &silent));
        assert!(tokio::time::timeout(Duration::from_millis(300), &mut second).await.is_err());
        drop(first);
        second.await.unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }
}
