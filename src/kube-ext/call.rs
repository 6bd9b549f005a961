//! One API call on behalf of a command, with a time limit and an error that names the attempted action.

use std::{fmt::Display, time::Duration};

use kube::core::Status;

/// Time limit of a call.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server refused the call.
    #[error("cannot {action}: {}", status.message)]
    Refused {
        /// Attempted action, as in "read NodeSet a".
        action: String,
        /// The API server's response.
        status: Box<Status>,
    },
    /// The request was not delivered, or its response cannot be read.
    #[error("cannot {action}")]
    Failed {
        /// Attempted action.
        action: String,
        /// Cause.
        source: Box<kube::Error>,
    },
    /// No response in time.
    #[error("cannot {action}: no answer in {} s", TIME_LIMIT.as_secs())]
    TimedOut {
        /// Attempted action.
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

/// Runs one call within the time limit; `action` completes the error text, as in «cannot read NodeSet a».
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
