//! Where the pod of a machine is.
//!
//! Invariant: the machine of a Node is in the cluster that its class leads to. Another cluster may show what it likes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube_node_cache::NodeView;
use tracing::info;

use super::{
    KubemarkProvider, answers::refused, delete_pod, hosting_clusters::HostingCluster,
    left_secrets::of_machine, view::MachinePod,
};
use crate::provider::{MachineId, ProviderError};

/// A pod and the cluster that has it.
type Found = (Arc<HostingCluster>, Arc<MachinePod>);

impl KubemarkProvider {
    /// The pod of a machine and its hosting cluster. The machine of a Node is in the cluster that its class leads to: another cluster
    /// may show what it likes, and would get the credentials of the Node.
    pub(super) fn find(&self, id: &MachineId) -> Result<Option<Found>, ProviderError> {
        let node = self.nodes.get(&id.node).filter(|node| node.uid == id.uid);
        let pods = match node.as_ref().and_then(|node| self.cluster_of(node)) {
            Some(own) => own.pods_of(id).into_iter().map(|pod| (Arc::clone(&own), pod)).collect(),
            None => self.clusters.pods_of(id),
        };
        // While an old pod leaves, its successor may exist already.
        if let Some(found) = pods.into_iter().min_by_key(|(_, pod)| pod.leaving) {
            return Ok(Some(found));
        }
        // No pod is known. Only the cluster that would host it can tell that there is none.
        if let Some(node) = node {
            self.cluster_of(&node).unwrap_or_else(|| self.clusters.of(None)).machines()?;
        }
        Ok(None)
    }

    /// Deletes the pods of machines that are in another one of these clusters: those of a class that was made again with other
    /// credentials, or what a cluster made by itself.
    pub(super) async fn delete_strays(&self, clusters: &[Arc<HostingCluster>]) -> Result<(), ProviderError> {
        let mut failed = None;
        // With one cluster there is no other one.
        let has_others = self.clusters.all().len() > 1;
        for cluster in clusters.iter().filter(|_| has_others) {
            for pod in cluster.pods.all().into_iter().filter(|pod| !pod.leaving) {
                let node = self.nodes.get(&pod.id.node).filter(|node| node.uid == pod.id.uid);
                let own = node.and_then(|node| self.cluster_of(&node));
                let machines = own.map(|own| own.pods_of(&pod.id)).unwrap_or_default();
                // Two credentials may lead to one cluster, whose pods both show.
                let is_stray =
                    machines.iter().any(|own| !own.leaving) && machines.iter().all(|own| own.uid != pod.uid);
                if is_stray {
                    info!(pod = pod.name, "the machine is in another cluster: deleting the pod");
                    failed = delete_pod(cluster, &pod).await.err().or(failed);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The Node of a machine that this process has made.
    pub(super) fn made_lately(&self, id: &MachineId) -> Option<Arc<NodeView>> {
        let node = self.nodes.get(&id.node).filter(|node| node.uid == id.uid)?;
        self.tokens.lock().contains_key(&id.uid).then_some(node)
    }

    /// The pod of a machine that this process has made, while no watch shows it: its Node must not go before it.
    pub(super) async fn find_unseen(&self, id: &MachineId) -> Result<Option<Found>, ProviderError> {
        let Some(node) = self.made_lately(id) else { return Ok(None) };
        let Some(cluster) = self.cluster_of(&node) else { return Ok(None) };
        let own = ListParams::default().labels(&of_machine(id));
        let pods = cluster.api::<Pod>()?.list(&own).await.map_err(refused)?.into_iter().map(MachinePod::from);
        let Some(pod) = pods.filter(|pod| pod.id == *id).min_by_key(|pod| pod.leaving) else {
            self.tokens.lock().remove(&id.uid);
            return Ok(None);
        };
        Ok(Some((cluster, Arc::new(pod))))
    }

    /// The cluster that the class of a Node leads to; None if the class cannot be read.
    pub(super) fn cluster_of(&self, node: &NodeView) -> Option<Arc<HostingCluster>> {
        let class = self.classes.get(node.class()?)?;
        let credentials = class.object.as_ref().ok()?.spec.credentials_secret_ref.as_ref();
        Some(self.clusters.of(credentials.map(|secret| secret.name.as_str())))
    }
}
