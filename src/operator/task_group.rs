//! The tasks of a process: they live together, and the end of one is the end of all.

use std::time::Duration;

use futures::FutureExt;
use hollow_kubelet::{
    Hollow,
    server::{self, ServeError},
};
use kube_ext::{
    admin::{Admin, Readiness},
    error::chain,
    leader::Election,
};
use prometheus::Registry;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::OperatorError;

/// How long the work that is under way may take to end.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// What runs.
pub(super) struct TaskGroup {
    tasks: JoinSet<Result<(), OperatorError>>,
    shutdown: CancellationToken,
}

impl TaskGroup {
    pub(super) fn new(shutdown: &CancellationToken) -> Self {
        Self { tasks: JoinSet::new(), shutdown: shutdown.clone() }
    }

    /// When all of them are to end.
    pub(super) const fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// Starts a part that ends at shutdown at the latest.
    pub(super) fn spawn<E: Send + 'static>(
        &mut self,
        part: impl Future<Output = Result<(), E>> + Send + 'static,
    ) where
        OperatorError: From<E>,
    {
        let part = self.shutdown.clone().run_until_cancelled_owned(part);
        self.tasks.spawn(part.map(|ended| ended.transpose().map(drop).map_err(OperatorError::from)));
    }

    /// Starts a part that ends by itself at shutdown, once what it has under way is done.
    pub(super) fn spawn_until_done(&mut self, part: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(part.map(Ok));
    }

    /// Has the kubelets of machines served, where that is wished; to be called before machines are made.
    pub(super) fn serve_kubelets(
        &mut self,
        hollow: &Hollow,
        options: Option<server::Options>,
        registry: &Registry,
    ) -> Result<(), OperatorError> {
        let Some(options) = options else { return Ok(()) };
        match hollow.serve(options, registry) {
            Ok(server) => {
                let stop = self.shutdown.clone();
                self.spawn_until_done(server.run(stop));
                Ok(())
            }
            Err(ServeError::Metrics(error)) => Err(error.into()),
            // Machines live without.
            Err(error) => {
                warn!(error = chain(&error), "kubelets are not served");
                Ok(())
            }
        }
    }

    /// Starts the admin port.
    pub(super) fn serve(&mut self, admin: Admin, registry: Registry, readiness: Readiness) {
        let stop = self.shutdown.clone();
        self.spawn_until_done(admin.serve(registry, readiness, stop));
    }

    /// Waits until a part ends, which none should.
    pub(super) async fn one_ends(&mut self) -> OperatorError {
        ended_by_itself(self.tasks.join_next().await)
    }

    /// Waits for the first part to end. Told to stop, every part has its time to do so; whether all have.
    pub(super) async fn supervise(mut self) -> Result<bool, OperatorError> {
        tokio::select! {
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

/// Does work that only whoever holds the Lease may do, and gives the Lease back after it. Without an election: just the work,
/// which says whether all of it has ended.
pub(super) async fn hold(
    election: Option<Election>,
    mut work: impl Future<Output = Result<bool, OperatorError>> + Unpin,
) -> Result<(), OperatorError> {
    let Some(mut election) = election else { return work.await.map(drop) };
    let has_ended = tokio::select! {
        ended = &mut work => ended?,
        // What is under way has no time any more: the door is closed, and somebody else works.
        lost = election.keep() => return Err(lost.into()),
    };
    // Where something is under way still, the next one waits for the end of the Lease.
    leave(Some(election).filter(|_| has_ended)).await
}

/// Ends a part in an election in good order. A question whose answer nobody waits for any more may have won it.
pub(super) async fn leave(election: Option<Election>) -> Result<(), OperatorError> {
    if let Some(election) = election {
        election.release().await;
    }
    Ok(())
}

fn ended_by_itself(ended: Option<Result<Result<(), OperatorError>, JoinError>>) -> OperatorError {
    match ended {
        Some(Ok(Err(error))) => error,
        Some(Ok(Ok(()))) | None => OperatorError::Part(None),
        Some(Err(panicked)) => OperatorError::Part(Some(panicked)),
    }
}
