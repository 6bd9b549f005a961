//! One API call with a time limit and an error that names the attempted action; for controllers and commands.
//!
//! [`call`] runs a call of kube's typed clients, [`send`] and [`read`] go by [`crate::transport`]. Nothing is
//! retried. A caller that counts failures by kind, as the hollow kubelet does, uses [`crate::transport`] itself.

use std::{error::Error, fmt::Display, time::Duration};

use http::Method;
use kube::{Client, core::Status};
use prost::Message;
use tokio::time::timeout;
use tracing::{Instrument, debug_span};

use crate::{
    error::chain,
    transport::{self, AnyObject, Body, TransportError},
};

/// Time limit of a call; kube-apiserver itself gives up after 60 s.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A call that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
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
        source: Box<dyn Error + Send + Sync>,
    },
    /// No response in time; the call may have taken effect.
    #[error("cannot {action}: no answer in {} s", TIME_LIMIT.as_secs())]
    TimedOut {
        /// Attempted action.
        action: String,
    },
}

impl ApiError {
    fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    /// Returns true if the API server answered with this HTTP status.
    pub fn is(&self, code: u16) -> bool {
        self.code() == Some(code)
    }

    /// Returns true if the object changed since it was read, or a precondition does not hold.
    pub fn is_conflict(&self) -> bool {
        self.is(409)
    }

    /// Returns true if a `test` of a JSON patch failed. The API server answers with 422, and names no cause as it
    /// does for an invalid object.
    pub fn is_failed_test(&self) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        self.is(422) && details.is_none_or(|details| details.causes.is_empty())
    }

    /// Returns true if the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.is(404)
    }

    /// The API server's message about the disruption budget that refused an eviction; it names the budget.
    /// None if the call failed for another reason.
    pub fn disruption_budget(&self) -> Option<String> {
        let status = self.status()?;
        if let Some(message) = self.cause("DisruptionBudget").filter(|_| status.code == 429) {
            return Some(message.to_owned());
        }
        // A pod that several budgets cover cannot be evicted at all; the response has no cause.
        let several = status.code == 500 && status.message.contains("more than one PodDisruptionBudget");
        several.then(|| status.message.clone())
    }

    /// Returns true if the namespace is being deleted, and its pods with it: the API server then creates
    /// nothing there, evictions included.
    pub fn is_in_leaving_namespace(&self) -> bool {
        self.is(403) && self.cause("NamespaceTerminating").is_some()
    }

    /// Message of the API server; the error chain if there is none.
    pub fn server_message(&self) -> String {
        self.status().map_or_else(|| self.chain(), |status| status.message.clone())
    }

    fn status(&self) -> Option<&Status> {
        let Self::Refused { status, .. } = self else { return None };
        Some(status)
    }

    /// Message of a cause by its type.
    fn cause(&self, reason: &str) -> Option<&str> {
        let causes = self.status()?.details.iter().flat_map(|details| &details.causes);
        causes.into_iter().find(|cause| cause.reason == reason).map(|cause| cause.message.as_str())
    }

    /// Returns true if the API server answered that the call had no effect: a client error, except for a time-out (408).
    pub fn is_refusal(&self) -> bool {
        self.code().is_some_and(|code| (400..500).contains(&code) && code != 408)
    }

    /// Returns true if the call had no effect and a retry would have none: the request is refused until
    /// somebody changes a right, a quota, a policy or the request. Excludes 401: rejected credentials are
    /// renewed automatically.
    pub fn is_final(&self) -> bool {
        self.is_refusal() && !matches!(self.code(), Some(401 | 409 | 429))
    }

    /// All values of [`Self::reason`].
    pub const REASONS: [&str; 7] =
        ["Forbidden", "Conflict", "Invalid", "TooManyRequests", "ServerError", "Refused", "Unreachable"];

    /// Reason for conditions, events and metric labels.
    pub fn reason(&self) -> &'static str {
        match self.code() {
            Some(403) => "Forbidden",
            Some(409) => "Conflict",
            Some(422) => "Invalid",
            Some(429) => "TooManyRequests",
            Some(code) if code >= 500 => "ServerError",
            Some(_) => "Refused",
            None => "Unreachable",
        }
    }

    /// This error and its causes, for people.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// Runs a call within the time limit, in a span of its own; `action` completes the error text, as in «cannot
/// read NodeSet a».
pub async fn call<T>(
    action: impl Display,
    future: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApiError> {
    let span = debug_span!("call", %action);
    let action = || action.to_string();
    match timeout(TIME_LIMIT, future.instrument(span)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => Err(ApiError::Refused { action: action(), status }),
        Ok(Err(source)) => Err(ApiError::Failed { action: action(), source: Box::new(source) }),
        Err(_) => Err(ApiError::TimedOut { action: action() }),
    }
}

/// Sends a request by [`transport`]; of the response only the resource version is parsed.
pub async fn send(
    client: &Client,
    action: impl Display,
    method: Method,
    url: &str,
    body: Body,
) -> Result<String, ApiError> {
    exchange::<AnyObject>(client, action, method, url, body).await.map(AnyObject::into_version)
}

/// Reads `url` in protobuf.
pub async fn read<T: Message + Default>(
    client: &Client,
    action: impl Display,
    url: &str,
) -> Result<T, ApiError> {
    exchange(client, action, Method::GET, url, Body::None).await
}

async fn exchange<T: Message + Default>(
    client: &Client,
    action: impl Display,
    method: Method,
    url: &str,
    body: Body,
) -> Result<T, ApiError> {
    let span = debug_span!("call", %action);
    transport::send(client, None, method, url, body).instrument(span).await.map_err(|error| {
        let action = action.to_string();
        match error {
            TransportError::Refused(status) => ApiError::Refused { action, status },
            source => ApiError::Failed { action, source: Box::new(source) },
        }
    })
}
