//! Writes of cluster-scoped objects, each only in the state that was read.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::{ClusterResourceScope, PartialObjectMeta},
};
use kube_ext::call::{ApiError, call};
use kube_node_api::names::FIELD_MANAGER;
use kube_node_cache::NodeView;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// A cluster-scoped kind.
pub trait ClusterScoped:
    Resource<DynamicType = (), Scope = ClusterResourceScope> + DeserializeOwned + Clone + Debug
{
}

impl<K> ClusterScoped for K where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + DeserializeOwned + Clone + Debug
{
}

/// Identity and version of an object as it was read. A write with these preconditions reaches no other object
/// and no newer state.
#[derive(Clone, Copy, Debug)]
pub struct ObjectVersion<'a> {
    name: &'a str,
    uid: &'a str,
    resource_version: &'a str,
    finalizers: &'a [String],
}

impl<'a> From<&'a NodeView> for ObjectVersion<'a> {
    fn from(node: &'a NodeView) -> Self {
        let NodeView { name, uid, resource_version, finalizers, .. } = node;
        Self { name, uid, resource_version, finalizers }
    }
}

impl<'a> From<&'a ObjectMeta> for ObjectVersion<'a> {
    fn from(metadata: &'a ObjectMeta) -> Self {
        Self {
            name: metadata.name.as_deref().unwrap_or_default(),
            uid: metadata.uid.as_deref().unwrap_or_default(),
            resource_version: metadata.resource_version.as_deref().unwrap_or_default(),
            finalizers: metadata.finalizers.as_deref().unwrap_or_default(),
        }
    }
}

/// Parameters of a patch with our field manager.
pub fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Sends a JSON merge patch. `change` is an object, and `what` describes it, as in «change the owner».
pub async fn patch<K: ClusterScoped>(
    client: &Client,
    read: impl Into<ObjectVersion<'_>>,
    mut change: Value,
    what: &str,
) -> Result<(), ApiError> {
    let ObjectVersion { name, uid, resource_version, .. } = read.into();
    change["metadata"]["uid"] = json!(uid);
    change["metadata"]["resourceVersion"] = json!(resource_version);
    let api = Api::<K>::all(client.clone());
    let action = format!("{what} of {} {name}", K::kind(&()));
    call(action, api.patch(name, &patch_params(), &Patch::Merge(&change))).await.map(drop)
}

/// Adds or removes a finalizer. Returns true if the object did not have it, or had it.
pub async fn set_finalizer<K: ClusterScoped>(
    client: &Client,
    read: impl Into<ObjectVersion<'_>>,
    finalizer: &str,
    wanted: bool,
) -> Result<bool, ApiError> {
    let read = read.into();
    let Some(finalizers) = with_finalizer(read.finalizers, finalizer, wanted) else { return Ok(false) };
    let change = json!({ "metadata": { "finalizers": finalizers } });
    let what = if wanted { "set the finalizer" } else { "drop the finalizer" };
    patch::<K>(client, read, change, what).await.map(|()| true)
}

/// The finalizers with or without this one; None if that changes nothing.
pub fn with_finalizer(finalizers: &[String], finalizer: &str, wanted: bool) -> Option<Vec<String>> {
    let mut changed: Vec<String> = finalizers.iter().filter(|other| *other != finalizer).cloned().collect();
    let has = changed.len() < finalizers.len();
    if wanted {
        changed.push(finalizer.to_owned());
    }
    (has != wanted).then_some(changed)
}

/// Replaces the whole status of a cluster-scoped object: fields that are no longer set must disappear.
/// Returns the object as the API server stored it. Where others write the status too, `read` is the resource
/// version that `status` is based on: their writes in between are then a conflict.
pub async fn replace_status<K: ClusterScoped>(
    client: &Client,
    name: &str,
    read: Option<&str>,
    status: &impl Serialize,
) -> Result<K, ApiError> {
    let add = |path: &str, value| json!({ "op": "add", "path": path, "value": value });
    let version = read.map(|version| add("/metadata/resourceVersion", json!(version)));
    let change: Value = version.into_iter().chain([add("/status", json!(status))]).collect();
    let action = format!("write the status of {} {name}", K::kind(&()));
    let api = Api::<K>::all(client.clone());
    let change = serde_json::from_value(change).map(Patch::<()>::Json);
    let change =
        change.map_err(|source| ApiError::Failed { action: action.clone(), source: source.into() })?;
    call(action, api.patch_status(name, &patch_params(), &change)).await
}

/// Sends a JSON merge patch for the status of a cluster-scoped object.
pub async fn patch_status<K: ClusterScoped>(
    client: &Client,
    name: &str,
    status: Value,
) -> Result<(), ApiError> {
    let api = Api::<PartialObjectMeta<K>>::all(client.clone());
    let change = Patch::Merge(json!({ "status": status }));
    let action = format!("write the status of {} {name}", K::kind(&()));
    call(action, api.patch_status(name, &patch_params(), &change)).await.map(drop)
}

/// Deletes a cluster-scoped object.
pub async fn delete<K: ClusterScoped>(
    client: &Client,
    read: impl Into<ObjectVersion<'_>>,
) -> Result<(), ApiError> {
    let ObjectVersion { name, uid, resource_version, .. } = read.into();
    let api = Api::<PartialObjectMeta<K>>::all(client.clone());
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: Some(resource_version.to_owned()),
    });
    call(format!("delete {} {name}", K::kind(&())), api.delete(name, &params)).await.map(drop)
}
