//! Secrets of machines. Each goes with its machine's pod, also where others remove the pod, and the Node with it.
//!
//! Inputs: names of Secrets that may be left, by pods that went and creations that began, and the Nodes. Output:
//! deletions. A name is looked up alone; all Secrets of a cluster are listed after the start and rarely.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, PartialObjectMeta, Preconditions},
};
use kube_node_api::names;
use kube_node_cache::{Cache, NodeView};

use super::{answers::refused, hosting_clusters::HostingCluster, noted_secrets::NotedSecrets};
use crate::provider::{MachineId, ProviderError};

/// Time between two searches of a cluster: only machines that another process made, and others removed, leave Secrets
/// that nobody names here.
pub const SEARCH_INTERVAL: Duration = Duration::from_hours(1);
/// Secrets per page of a search.
const PAGE: u32 = 500;

/// Deletes the noted Secrets whose Nodes are gone. One that cannot be looked up stays noted.
pub async fn delete_noted(
    noted: &NotedSecrets,
    clusters: &[&HostingCluster],
    nodes: &Cache<NodeView>,
) -> Result<(), ProviderError> {
    if !nodes.in_sync() {
        return Ok(());
    }
    let mut failed = None;
    for (name, id) in noted.all() {
        let has_pod = clusters.iter().any(|cluster| !cluster.pods_of(&id).is_empty());
        if !has_pod && nodes.get(&id.node).is_some_and(|node| node.uid == id.uid) {
            continue;
        }
        let mut deleted = Ok(());
        // The pod is noted again when it goes.
        for cluster in clusters.iter().filter(|_| !has_pod) {
            deleted = delete_of_machine(cluster, &name, &id).await.and(deleted);
        }
        match deleted {
            Ok(()) => noted.forget(&name),
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Deletes the Secret of a machine.
pub async fn delete_of_machine(
    cluster: &HostingCluster,
    name: &str,
    id: &MachineId,
) -> Result<(), ProviderError> {
    // A list of one name is a lookup for the API server, and takes no right beyond that to list.
    let one = ListParams::default().fields(&format!("metadata.name={name}")).labels(&of_machine(id));
    delete(cluster, one, |_| true).await
}

/// Deletes those of the selected Secrets that no machine and no Node needs, and notes those that only a Node needs: the Node may
/// go without a machine.
pub async fn search(
    cluster: &HostingCluster,
    labels: &str,
    nodes: &Cache<NodeView>,
    noted: &NotedSecrets,
) -> Result<(), ProviderError> {
    delete(cluster, ListParams::default().labels(labels), |secret| {
        let uid = secret.labels().get(names::LABEL_NODE_UID).map(String::as_str).unwrap_or_default();
        let has_pod = !cluster.pods.by_index(uid).is_empty();
        let node = secret.annotations().get(names::ANNOTATION_NODE).and_then(|name| nodes.get(name));
        let node = node.filter(|node| &*node.uid == uid);
        if let Some(node) = node.as_ref().filter(|_| !has_pod) {
            noted.note(&secret.name_any(), &MachineId::of(node));
        }
        node.is_none() && !has_pod && nodes.in_sync()
    })
    .await
}

/// Deletes Secrets in the state in which they are listed: the next machine of a Node has a Secret of the same name, which a
/// deletion that is carried out late must not take.
async fn delete(
    cluster: &HostingCluster,
    selected: ListParams,
    goes: impl Fn(&PartialObjectMeta<Secret>) -> bool,
) -> Result<(), ProviderError> {
    let secrets = cluster.api::<Secret>()?;
    let (mut failed, mut selected) = (None, selected.limit(PAGE));
    loop {
        let page = secrets.list_metadata(&selected).await.map_err(refused)?;
        let token = page.metadata.continue_.clone().filter(|token| !token.is_empty());
        for secret in page.into_iter().filter(&goes) {
            let this = Preconditions { uid: secret.uid(), resource_version: secret.resource_version() };
            let deleted =
                secrets.delete(&secret.name_any(), &DeleteParams::default().preconditions(this)).await;
            // One that has changed meanwhile is listed again.
            if let Err(error) = deleted
                && !matches!(&error, kube::Error::Api(status) if status.code == 404)
            {
                failed = Some(refused(error));
            }
        }
        let Some(token) = token else { break };
        selected = selected.continue_token(&token);
    }
    failed.map_or(Ok(()), Err)
}

/// Label selector of a machine's objects.
pub fn of_machine(id: &MachineId) -> String {
    format!("{}={}", names::LABEL_NODE_UID, id.uid)
}
