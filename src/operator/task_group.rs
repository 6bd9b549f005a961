//! Task group of a process: the end of one task ends all of them.

use std::time::Duration;

use anyhow::anyhow;
use futures::FutureExt;
use hollow_kubelet::{Hollow, server};
use kube_ext::{
    admin::{Admin, Readiness},
    environment::inherit,
    error::chain,
    leader::Election,
};
use prometheus::Registry;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Time limit for work in flight at shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// Tasks and their common shutdown signal.
pub(super) struct TaskGroup {
    tasks: JoinSet<anyhow::Result<()>>,
    shutdown: CancellationToken,
}

impl TaskGroup {
    pub(super) fn new(shutdown: &CancellationToken) -> Self {
        Self { tasks: JoinSet::new(), shutdown: shutdown.clone() }
    }

    /// Signals all tasks to end.
    pub(super) const fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// Spawns a task that is cancelled at shutdown.
    pub(super) fn spawn<E: Send + 'static>(
        &mut self,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) where
        anyhow::Error: From<E>,
    {
        let task = self.shutdown.clone().run_until_cancelled_owned(task);
        let task = task.map(|ended| ended.transpose().map(drop).map_err(anyhow::Error::from));
        self.tasks.spawn(inherit(task));
    }

    /// Spawns a task that observes the shutdown itself and finishes its work in flight first.
    pub(super) fn spawn_until_done(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(inherit(task.map(Ok)));
    }

    /// Serves the kubelet endpoints if configured. Must be called before machines are created.
    pub(super) fn serve_kubelets(
        &mut self,
        hollow: &Hollow,
        options: Option<server::ServerOptions>,
        registry: &Registry,
    ) -> anyhow::Result<()> {
        let Some(options) = options else { return Ok(()) };
        match hollow.serve(options, registry) {
            Ok(server) => self.spawn_until_done(server.run(self.shutdown.clone())),
            Err(server::ServeError::Metrics(error)) => return Err(error.into()),
            // Machines work without endpoints.
            Err(error) => warn!(error = chain(&error), "kubelets are not served"),
        }
        Ok(())
    }

    /// Spawns the server of the admin port.
    pub(super) fn serve(&mut self, admin: Admin, registry: Registry, readiness: Readiness) {
        self.spawn_until_done(admin.serve(registry, readiness, self.shutdown.clone()));
    }

    /// Waits until a task ends. No task should.
    pub(super) async fn one_ends(&mut self) -> anyhow::Error {
        ended_by_itself(self.tasks.join_next().await)
    }

    /// Waits for the first task to end. At shutdown, waits up to `SHUTDOWN_LIMIT` for all of them and returns
    /// true if all have ended.
    pub(super) async fn supervise(mut self) -> anyhow::Result<bool> {
        tokio::select! {
            biased;
            ended = self.tasks.join_next() => {
                if !self.shutdown.is_cancelled() {
                    return Err(ended_by_itself(ended));
                }
            }
            () = self.shutdown.cancelled() => {}
        }
        let rest = async { while self.tasks.join_next().await.is_some() {} };
        let in_time = tokio::time::timeout(SHUTDOWN_LIMIT, rest).await.is_ok();
        if !in_time {
            warn!("stopped with work under way");
        }
        Ok(in_time)
    }
}

/// Runs `work`, which requires the Lease, and releases the Lease afterwards. `work` returns true if all of it
/// has ended. Without an election there is no Lease to release.
pub(super) async fn hold(
    election: Option<Election>,
    mut work: impl Future<Output = anyhow::Result<bool>> + Unpin,
) -> anyhow::Result<()> {
    let Some(mut election) = election else { return work.await.map(drop) };
    let has_ended = tokio::select! {
        biased;
        ended = &mut work => ended?,
        // The fence is closed and another process takes over: work in flight is dropped.
        lost = election.keep() => return Err(lost),
    };
    // If work is still in flight, the Lease stays: the next holder waits for its expiry.
    leave(Some(election).filter(|_| has_ended)).await
}

/// Leaves an election. A request whose response is no longer awaited may have won the Lease, so it is released.
pub(super) async fn leave(election: Option<Election>) -> anyhow::Result<()> {
    if let Some(election) = election {
        election.release().await;
    }
    Ok(())
}

fn ended_by_itself(ended: Option<Result<anyhow::Result<()>, JoinError>>) -> anyhow::Error {
    let text = "a part of the operator ended by itself";
    match ended {
        Some(Ok(Err(error))) => error,
        Some(Ok(Ok(()))) | None => anyhow!(text),
        Some(Err(panicked)) => anyhow!(panicked).context(text),
    }
}
