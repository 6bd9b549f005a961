//! Runs the reconciliations of a controller: each is timed, counted and traced, and an error becomes the action
//! of the work queue.

use std::{fmt::Display, hash::Hash, time::Duration};

use futures::TryFutureExt;
use kube_ext::{
    call::ApiError,
    environment,
    error::chain,
    work_queue::{self, Action, Config, Consumer},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, field::Empty, info_span, warn};

use super::{Context, RevisionsError};
use crate::provider::ProviderError;

/// Requeue delay of an object that changed during a write; the watch is nearly always faster.
const CONFLICT_RETRY: Duration = Duration::from_secs(1);

/// Reason why a reconciliation failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A call to the API server failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The machine spec is not available.
    #[error(transparent)]
    Revisions(#[from] RevisionsError),
    /// The provider failed.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

/// Result of a reconciliation or of a part of it.
pub(super) type Result<T, E = ReconcileError> = std::result::Result<T, E>;

impl ReconcileError {
    /// The API server's refusal of a write of the object that is reconciled; somebody has to act.
    pub(super) fn refusal(&self) -> Option<&ApiError> {
        let Self::Api(error) = self else { return None };
        Some(error).filter(|error| error.is_final() && !error.is_not_found())
    }

    /// The action of the work queue.
    pub(super) fn action(&self) -> Action {
        match self {
            // The event of the change enqueues the key, the requeue only makes sure.
            Self::Api(error) | Self::Revisions(RevisionsError::Api(error)) if error.is_conflict() => {
                Action::RequeueAfter(CONFLICT_RETRY)
            }
            // The object that is reconciled is gone. What else is missing, such as the namespace of the
            // revisions, sends no event of this object when it is there again: that is retried.
            Self::Api(error) if error.is_not_found() => Action::AwaitChange,
            Self::Provider(error) => error.retry_after().map_or(Action::Failed, Action::RequeueAfter),
            _ => Action::Failed,
        }
    }

    fn log(&self) {
        match self {
            Self::Provider(error) => debug!(error = chain(error), "provider"),
            error if error.action() == Action::Failed => {
                warn!(error = chain(error), "reconciliation failed");
            }
            _ => {}
        }
    }
}

impl Context {
    /// Reconciles the keys of a queue until `stop`, then finishes reconciliations in flight. Each line that a
    /// reconciliation logs names the object and an id unique to the reconciliation, which tells the lines of
    /// concurrent reconciliations apart.
    pub(super) async fn run<K, R>(
        &self,
        controller: &'static str,
        (queue, config): (Consumer<K>, Config),
        stop: &CancellationToken,
        reconcile: impl Fn(K) -> R,
    ) where
        K: Clone + Display + Eq + Hash,
        R: Future<Output = Result<Action>>,
    {
        work_queue::run(queue, config, stop, |key| {
            let (object, id) = (key.to_string(), format!("{:016x}", environment::random()));
            let span = info_span!("reconcile", controller, object, id, otel.status_code = Empty);
            let reconcile = Box::pin(reconcile(key)).inspect_err(ReconcileError::log);
            let reconcile = reconcile.unwrap_or_else(|error| error.action());
            async move {
                let start = Instant::now();
                let action = reconcile.instrument(span.clone()).await;
                if action == Action::Failed {
                    span.record("otel.status_code", "ERROR");
                }
                self.metrics.reconciled(controller, action, start.elapsed());
                action
            }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn only_the_object_itself_may_be_gone_without_a_retry() {
        let refused = |code| ApiError::Refused {
            action: "write".to_owned(),
            status: Box::new(Status::default().with_code(code)),
        };
        let of_revisions = |code| ReconcileError::from(RevisionsError::from(refused(code)));
        assert_eq!(ReconcileError::from(refused(404)).action(), Action::AwaitChange);
        assert_eq!(of_revisions(404).action(), Action::Failed);
        for error in [ReconcileError::from(refused(409)), of_revisions(409)] {
            assert_eq!(error.action(), Action::RequeueAfter(CONFLICT_RETRY));
        }
        assert_eq!(ReconcileError::from(refused(403)).action(), Action::Failed);
    }
}
