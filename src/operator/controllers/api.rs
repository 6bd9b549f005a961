//! Writes of cluster-scoped objects under preconditions.

use http::Method;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
pub use kube_ext::call::ApiError;
use kube_ext::{call, wire::Body};
pub use kube_node_api::names::FIELD_MANAGER;
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

/// [`call::call`] with the action as a closure.
pub async fn call<T>(
    action: impl FnOnce() -> String,
    future: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApiError> {
    call::call(action(), future).await
}

/// [`call::send`] with the action as a closure.
pub async fn send(
    client: &Client,
    action: impl FnOnce() -> String,
    method: Method,
    url: &str,
    body: Body,
) -> Result<String, ApiError> {
    call::send(client, action(), method, url, body).await
}

/// [`call::read`] with the action as a closure.
pub async fn read<T: Message + Default>(
    client: &Client,
    action: impl FnOnce() -> String,
    url: &str,
) -> Result<T, ApiError> {
    call::read(client, action(), url).await
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
    let request = request.map_err(|source| ApiError::Failed { action: action(), source: source.into() })?;
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
