//! Ctrl-C and SIGTERM during a command: what the command has created for itself alone is deleted before the process ends.

use std::{future::pending, io, pin::pin, sync::LazyLock};

use kube_ext::process::{Interrupted, interrupted};
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

/// The interruption of this process.
static INTERRUPTION: LazyLock<Interruption> = LazyLock::new(Interruption::default);

#[derive(Debug, Default)]
struct Interruption {
    /// Cancelled by the signal.
    stop: CancellationToken,
    /// Held while a temporary object may exist.
    temporary: Mutex<()>,
}

/// Runs a command until a signal interrupts it.
pub(super) async fn interruptible<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    INTERRUPTION.run(command, interrupted).await
}

/// The part of a command in which a temporary object may exist. A signal cancels [`TemporaryObject::stop`], and the process
/// does not end by that signal before [`TemporaryObject::gone`].
pub(super) struct TemporaryObject {
    /// The object is to be deleted at once.
    pub(super) stop: &'static CancellationToken,
    held: MutexGuard<'static, ()>,
}

impl TemporaryObject {
    pub(super) async fn new() -> Self {
        let Interruption { stop, temporary } = &*INTERRUPTION;
        Self { stop, held: temporary.lock().await }
    }

    /// The object is gone. Does not return after a signal: the command ends here.
    pub(super) async fn gone(self) {
        let Self { stop, held } = self;
        drop(held);
        if stop.is_cancelled() {
            pending::<()>().await;
        }
    }
}

impl Interruption {
    async fn run<T, S: Future<Output = io::Result<Interrupted>>>(
        &self,
        command: impl Future<Output = anyhow::Result<T>>,
        signal: impl Fn() -> S,
    ) -> anyhow::Result<T> {
        let mut command = pin!(command);
        let interrupted = tokio::select! {
            done = &mut command => return done,
            interrupted = signal() => interrupted?,
        };
        self.stop.cancel();
        // The command goes on until its temporary objects are gone. A second signal does not wait for that.
        tokio::select! {
            biased;
            _ = signal() => {}
            _ = self.temporary.lock() => {}
            _ = &mut command => {}
        }
        Err(interrupted.into())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::ready,
        sync::atomic::{AtomicU32, Ordering::Relaxed},
        time::Duration,
    };

    use tokio::time::sleep;

    use super::*;

    /// Signals, of which so many arrive, a second after the last one.
    fn signals(count: u32) -> impl Fn() -> futures::future::BoxFuture<'static, io::Result<Interrupted>> {
        let left = AtomicU32::new(count);
        move || {
            if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err() {
                return Box::pin(pending());
            }
            Box::pin(async {
                sleep(Duration::from_secs(1)).await;
                Ok(Interrupted::BY_CTRL_C)
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_interrupted_command_deletes_its_temporary_object_and_does_nothing_else() {
        let (own, deleted, gone_on) = (Interruption::default(), AtomicU32::new(0), AtomicU32::new(0));
        let command = async {
            let held = own.temporary.lock().await;
            own.stop.cancelled().await;
            sleep(Duration::from_secs(5)).await;
            deleted.store(1, Relaxed);
            drop(held);
            sleep(Duration::from_secs(5)).await;
            gone_on.store(1, Relaxed);
            Ok(())
        };
        let error = own.run(command, signals(1)).await.unwrap_err();
        assert!(error.is::<Interrupted>(), "{error}");
        assert_eq!((deleted.load(Relaxed), gone_on.load(Relaxed)), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_does_not_wait_for_a_deletion_that_hangs() {
        let own = Interruption::default();
        let command = async {
            let _held = own.temporary.lock().await;
            pending::<anyhow::Result<()>>().await
        };
        assert!(own.run(command, signals(2)).await.unwrap_err().is::<Interrupted>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_without_temporary_objects_ends_at_once() {
        let own = Interruption::default();
        assert!(own.run(pending::<anyhow::Result<()>>(), signals(1)).await.is_err());
        let own = Interruption::default();
        assert_eq!(own.run(ready(Ok(7)), signals(1)).await.unwrap(), 7);
    }
}
