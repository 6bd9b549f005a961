//! One call of the API server on behalf of a command: a time limit, and an error that says what was tried.

use std::{fmt::Display, time::Duration};

use kube::core::Status;

/// Longest that a call may take.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A call that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server refused.
    #[error("cannot {action}: {}", status.message)]
    Refused {
        /// What was tried, as in "read NodeSet a".
        action: String,
        /// The API server's answer.
        status: Box<Status>,
    },
    /// The call did not get there, or its answer cannot be read.
    #[error("cannot {action}")]
    Failed {
        /// What was tried.
        action: String,
        /// What happened.
        source: Box<kube::Error>,
    },
    /// Nothing came back in time.
    #[error("cannot {action}: no answer in {} s", TIME_LIMIT.as_secs())]
    TimedOut {
        /// What was tried.
        action: String,
    },
}

impl CallError {
    /// Returns true if the API server answered with this HTTP status.
    #[must_use]
    pub fn is(&self, code: u16) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code == code)
    }
}

/// A call with its time limit; `action` says what it does, as in «cannot read NodeSet a».
pub async fn call<T>(
    action: impl Display,
    future: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    let action = || action.to_string();
    match tokio::time::timeout(TIME_LIMIT, future).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => Err(CallError::Refused { action: action(), status }),
        Ok(Err(source)) => Err(CallError::Failed { action: action(), source: Box::new(source) }),
        Err(_) => Err(CallError::TimedOut { action: action() }),
    }
}
