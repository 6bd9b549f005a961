//! Calls to the API server, each with a time limit.
//!
//! Output: the response, or an [`ApiError`] that names the action and tells what may be concluded.

use std::{cell::LazyCell, time::Duration};

use http::{Method, StatusCode};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use kube_ext::{
    error::chain,
    wire::{self, AnyObject, Body, WireError},
};
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tracing::{Instrument, debug_span, instrument::Instrumented};

/// Time limit of a call; kube-apiserver itself gives up after 60 s.
const TIME_LIMIT: Duration = Duration::from_secs(20);

pub use kube_node_api::names::FIELD_MANAGER;

/// A call that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Refused by the API server, or by something on the way to it.
    #[error("cannot {action}")]
    Refused {
        /// Description of the call.
        action: String,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// The same, for a request sent by [`kube_ext::wire`].
    #[error("cannot {action}")]
    Wire {
        /// Description of the call.
        action: String,
        /// Cause.
        #[source]
        source: WireError,
    },
    /// No response in time; the call may have taken effect.
    #[error("cannot {action}: no answer in {} s", TIME_LIMIT.as_secs())]
    TimedOut {
        /// Description of the call.
        action: String,
    },
}

impl ApiError {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { .. } => self.status().map(|status| status.code),
            Self::Wire { source, .. } => source.code(),
            Self::TimedOut { .. } => None,
        }
    }

    fn is(&self, code: StatusCode) -> bool {
        self.code() == Some(code.as_u16())
    }

    /// Returns true if the object changed since it was read, or a precondition does not hold.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.is(StatusCode::CONFLICT)
    }

    /// Returns true if the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is(StatusCode::NOT_FOUND)
    }

    /// The API server's message about the disruption budget that refused an eviction; it names the budget.
    /// None if the call failed for another reason.
    #[must_use]
    pub fn disruption_budget(&self) -> Option<String> {
        let status = self.status()?;
        if let Some(said) = self.cause("DisruptionBudget").filter(|_| status.code == 429) {
            return Some(said.to_owned());
        }
        // A pod that several budgets cover cannot be evicted at all; the response has no cause.
        let several = status.code == 500 && status.message.contains("more than one PodDisruptionBudget");
        several.then(|| status.message.clone())
    }

    /// Returns true if the namespace is being deleted, and its pods with it: the API server then creates
    /// nothing there, evictions included.
    #[must_use]
    pub fn is_in_leaving_namespace(&self) -> bool {
        self.is(StatusCode::FORBIDDEN) && self.cause("NamespaceTerminating").is_some()
    }

    /// Message of the API server; the error chain if there is none.
    #[must_use]
    pub fn server_message(&self) -> String {
        self.status().map_or_else(|| self.chain(), |status| status.message.clone())
    }

    fn status(&self) -> Option<&kube::core::Status> {
        let Self::Refused { source, .. } = self else { return None };
        let kube::Error::Api(status) = &**source else { return None };
        Some(status)
    }

    /// Message of a cause by its type.
    fn cause(&self, reason: &str) -> Option<&str> {
        let causes = self.status()?.details.iter().flat_map(|details| &details.causes);
        causes.into_iter().find(|cause| cause.reason == reason).map(|cause| cause.message.as_str())
    }

    /// Returns true if the call had no effect and a retry would have none: the request is refused until
    /// somebody changes a right, a quota, a policy or the request. Excludes 401: rejected credentials are
    /// renewed automatically.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.code().is_some_and(|code| (400..500).contains(&code) && !matches!(code, 401 | 408 | 409 | 429))
    }

    /// All values of [`Self::reason`].
    pub const REASONS: [&str; 7] =
        ["Forbidden", "Conflict", "Invalid", "TooManyRequests", "ServerError", "Refused", "Unreachable"];

    /// Reason for conditions, events and metric labels.
    #[must_use]
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
    #[must_use]
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// Runs a call with the time limit. `action` describes it, as in «cannot create Node a».
pub async fn call<T>(
    action: impl FnOnce() -> String,
    future: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApiError> {
    let action = LazyCell::new(action);
    match tokio::time::timeout(TIME_LIMIT, traced(&action, future)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(ApiError::Refused { action: action.clone(), source: Box::new(source) }),
        Err(_) => Err(ApiError::TimedOut { action: action.clone() }),
    }
}

/// Sends a request by [`wire`]; of the response only the resource version is parsed.
pub async fn send(
    client: &Client,
    action: impl FnOnce() -> String,
    method: Method,
    url: &str,
    body: Body,
) -> Result<String, ApiError> {
    let action = LazyCell::new(action);
    let answer = traced(&action, wire::send::<AnyObject>(client, method, url, body)).await;
    answer.map(AnyObject::into_version).map_err(|source| ApiError::Wire { action: action.clone(), source })
}

/// Reads `url` in protobuf.
pub async fn read<T: Message + Default>(
    client: &Client,
    action: impl FnOnce() -> String,
    url: &str,
) -> Result<T, ApiError> {
    let action = LazyCell::new(action);
    let answer = traced(&action, wire::send(client, Method::GET, url, Body::None)).await;
    answer.map_err(|source| ApiError::Wire { action: action.clone(), source })
}

/// Gives the call its own span. `action` is formatted only if the span is recorded.
fn traced<F>(action: &LazyCell<String, impl FnOnce() -> String>, future: F) -> Instrumented<F> {
    future.instrument(debug_span!("call", action = action.as_str()))
}

/// Identity and version of an object as it was read. A write with these preconditions reaches no other object
/// and no newer state.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Name.
    pub name: &'a str,
    /// UID.
    pub uid: &'a str,
    /// Resource version.
    pub resource_version: &'a str,
}

/// Sends a JSON merge patch for a cluster-scoped object, only in exactly the state that was seen. `change` is
/// an object.
pub async fn patch<K>(
    client: &Client,
    seen: Seen<'_>,
    mut change: serde_json::Value,
    what: &str,
) -> Result<(), ApiError>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    change["metadata"]["uid"] = json!(seen.uid);
    change["metadata"]["resourceVersion"] = json!(seen.resource_version);
    let api = Api::<K>::all(client.clone());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let action = || format!("{what} of {} {}", K::kind(&()), seen.name);
    call(action, api.patch(seen.name, &params, &Patch::Merge(&change))).await.map(drop)
}

/// Replaces the whole status of a cluster-scoped object: fields that are no longer set must disappear.
/// Returns the object as the API server stored it. Where others write the status too, `seen` is the resource
/// version that `status` is based on: their writes in between are then a conflict.
pub async fn replace_status<K>(
    client: &Client,
    name: &str,
    seen: Option<&str>,
    status: &impl Serialize,
) -> Result<K, ApiError>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let seen = seen.map(|seen| json!({ "op": "add", "path": "/metadata/resourceVersion", "value": seen }));
    let status = json!({ "op": "add", "path": "/status", "value": status });
    let change: Vec<_> = seen.into_iter().chain([status]).collect();
    let url = format!("{}/{name}/status?fieldManager={FIELD_MANAGER}", K::url_path(&(), None));
    let request = http::Request::patch(url)
        .header(http::header::CONTENT_TYPE, "application/json-patch+json")
        .body(serde_json::to_vec(&change).unwrap_or_default());
    let action = || format!("write the status of {} {name}", K::kind(&()));
    let request = request.map_err(|source| ApiError::Wire { action: action(), source: source.into() })?;
    call(action, client.request::<K>(request)).await
}

/// Sends a JSON merge patch for the status of a cluster-scoped object.
pub async fn patch_status<K>(client: &Client, name: &str, status: &impl Serialize) -> Result<(), ApiError>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let api = Api::<kube::core::PartialObjectMeta<K>>::all(client.clone());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let action = || format!("write the status of {} {name}", K::kind(&()));
    call(action, api.patch_status(name, &params, &Patch::Merge(json!({ "status": status })))).await.map(drop)
}

/// Deletes a cluster-scoped object, only in exactly the state that was seen.
pub async fn delete<K>(client: &Client, seen: Seen<'_>) -> Result<(), ApiError>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let api = Api::<kube::core::PartialObjectMeta<K>>::all(client.clone());
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(seen.uid.to_owned()),
        resource_version: Some(seen.resource_version.to_owned()),
    });
    let action = || format!("delete {} {}", K::kind(&()), seen.name);
    call(action, api.delete(seen.name, &params)).await.map(drop)
}
