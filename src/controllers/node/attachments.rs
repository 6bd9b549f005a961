//! Which volumes are attached to a machine that is about to go.
//!
//! The API server cannot select attachments by Node, so all are listed, and one list serves every Node that asked before
//! it began: a set of hundreds that drains at once costs a few lists.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, Client, api::ListParams};
use tokio::sync::Mutex;

use crate::{
    cache::{NodeView, PodView, WirePod},
    controllers::{ApiError, api::call},
};

/// Names of volumes by Node.
type ByNode = HashMap<String, Vec<String>>;

/// Looks attachments up.
pub(super) struct Attachments {
    client: Client,
    /// The last list, and when it was asked for.
    last: Mutex<Option<(Instant, Arc<ByNode>)>>,
}

impl Attachments {
    pub(super) fn new(client: Client) -> Self {
        Self { client, last: Mutex::default() }
    }

    /// The volumes attached to a Node, but for those of pods that stay on it.
    pub(super) async fn of(&self, node: &NodeView) -> Result<Vec<String>, ApiError> {
        let mut attached = self.list().await?.get(&*node.name).cloned().unwrap_or_default();
        if !attached.is_empty() {
            let staying = self.of_pods_that_stay(node).await?;
            attached.retain(|volume| !staying.contains(volume));
        }
        Ok(attached)
    }

    /// A list that began after the question.
    async fn list(&self) -> Result<Arc<ByNode>, ApiError> {
        let asked = Instant::now();
        let mut known = self.last.lock().await;
        if let Some((began, list)) = &*known
            && *began >= asked
        {
            return Ok(Arc::clone(list));
        }
        let began = Instant::now();
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let listed = call(|| "list VolumeAttachments".to_owned(), api.list(&ListParams::default())).await?;
        let mut by_node = ByNode::new();
        for attachment in listed.items {
            let volume = attachment.spec.source.persistent_volume_name;
            let name = volume.or(attachment.metadata.name).unwrap_or_default();
            by_node.entry(attachment.spec.node_name).or_default().push(name);
        }
        for names in by_node.values_mut() {
            names.sort();
        }
        let list = Arc::new(by_node);
        *known = Some((began, Arc::clone(&list)));
        Ok(list)
    }

    /// Names of the volumes that pods claim which stay to the end. Hardly any does.
    async fn of_pods_that_stay(&self, node: &NodeView) -> Result<HashSet<String>, ApiError> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let selector = ListParams::default().fields(&format!("spec.nodeName={}", node.name));
        let listed = call(|| format!("list the pods of {}", node.name), pods.list(&selector)).await?;
        let mut volumes = HashSet::new();
        for pod in listed.items {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let claims = claims(&pod);
            if claims.is_empty() || !stays(pod) {
                continue;
            }
            let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
            for name in claims {
                let claim =
                    call(|| format!("read PersistentVolumeClaim {namespace}/{name}"), api.get_opt(&name))
                        .await?;
                volumes.extend(claim.and_then(|claim| claim.spec).and_then(|spec| spec.volume_name));
            }
        }
        Ok(volumes)
    }
}

/// As the cache sees it.
fn stays(pod: Pod) -> bool {
    let wire = serde_json::to_value(pod).and_then(serde_json::from_value::<WirePod>);
    wire.is_ok_and(|pod| PodView::from(pod).stays())
}

/// Names of a pod's claims.
fn claims(pod: &Pod) -> Vec<String> {
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{pod_name}-{}", volume.name)),
            (None, None) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_of_both_kinds_are_known_by_name() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "agent-x", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u", "controller": true}]},
            "spec": {"containers": [], "volumes": [
                {"name": "shared", "persistentVolumeClaim": {"claimName": "shared-data"}},
                {"name": "own", "ephemeral": {}},
                {"name": "tmp", "emptyDir": {}}]}
        }))
        .unwrap();
        assert_eq!(claims(&pod), ["shared-data", "agent-x-own"]);
        assert!(stays(pod));
    }
}
