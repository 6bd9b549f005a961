//! Writes of objects, each only in the state that was read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use kube_ext::{
    call::{ApiError, call},
    objects::Typed,
};
use kube_node_api::names::FIELD_MANAGER;
use kube_node_cache::NodeView;
use serde::Serialize;
use serde_json::{Value, json};

/// Metadata of a Node that identify it and its version for a write.
pub fn metadata(node: &NodeView) -> ObjectMeta {
    ObjectMeta {
        name: Some(node.name.to_string()),
        uid: Some(node.uid.to_string()),
        resource_version: Some(node.resource_version.clone()),
        finalizers: Some(node.finalizers.clone()),
        ..ObjectMeta::default()
    }
}

/// Parameters of a patch with our field manager.
pub fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Sends a JSON merge patch, which reaches no other object and no newer state than `read`. `change` is an
/// object, and `what` describes it, as in «change the owner».
pub async fn patch<K: Typed>(
    api: &Api<K>,
    read: &ObjectMeta,
    mut change: Value,
    what: &str,
) -> Result<(), ApiError> {
    change["metadata"]["uid"] = json!(read.uid);
    change["metadata"]["resourceVersion"] = json!(read.resource_version);
    let name = read.name.as_deref().unwrap_or_default();
    let action = format!("{what} of {} {name}", K::kind(&()));
    call(action, api.patch_metadata(name, &patch_params(), &Patch::Merge(change))).await.map(drop)
}

/// Adds or removes a finalizer. Returns true if the object did not have it, or had it.
pub async fn set_finalizer<K: Typed>(
    api: &Api<K>,
    read: &ObjectMeta,
    finalizer: &str,
    wanted: bool,
) -> Result<bool, ApiError> {
    let finalizers = read.finalizers.as_deref().unwrap_or_default();
    let Some(finalizers) = with_finalizer(finalizers, finalizer, wanted) else { return Ok(false) };
    let change = json!({ "metadata": { "finalizers": finalizers } });
    let what = if wanted { "set the finalizer" } else { "drop the finalizer" };
    patch(api, read, change, what).await.map(|()| true)
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

/// Precondition of a status that others write, too: nobody has changed the object since it was read.
pub fn same_version(read: &ObjectMeta) -> Value {
    json!({ "op": "add", "path": "/metadata/resourceVersion", "value": read.resource_version })
}

/// Precondition of a status that no one else writes: the spec is the one that the status is about. A write that
/// arrives late would report an older spec otherwise.
pub fn same_generation(read: &ObjectMeta) -> Value {
    json!({ "op": "test", "path": "/metadata/generation", "value": read.generation })
}

/// Replaces the whole status: fields that are no longer set must disappear. Returns the object as the API
/// server stored it.
pub async fn replace_status<K: Typed>(
    api: &Api<K>,
    name: &str,
    precondition: Value,
    status: &impl Serialize,
) -> Result<K, ApiError> {
    let change = json!([precondition, { "op": "add", "path": "/status", "value": status }]);
    let write = async {
        let change = serde_json::from_value(change).map_err(kube::Error::SerdeError)?;
        api.patch_status(name, &patch_params(), &Patch::<()>::Json(change)).await
    };
    call(format!("write the status of {} {name}", K::kind(&())), write).await
}

/// Deletes an object in the state that was read. With `dry_run`, the API server says whether it would.
pub async fn delete<K: Typed>(api: &Api<K>, read: &ObjectMeta, dry_run: bool) -> Result<(), ApiError> {
    let (uid, resource_version) = (read.uid.clone(), read.resource_version.clone());
    let preconditions = Some(Preconditions { uid, resource_version });
    let params = DeleteParams { dry_run, preconditions, ..DeleteParams::default() };
    let name = read.name.as_deref().unwrap_or_default();
    call(format!("delete {} {name}", K::kind(&())), api.delete(name, &params)).await.map(drop)
}
