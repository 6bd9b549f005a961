//! Limit of what another cluster may show: whoever has that cluster chooses its pods, and each takes memory here. One that is no
//! machine of a Node takes a question to the API server too.
//!
//! Inputs: the pods of the cluster and the Nodes. Output: the reason why the cluster is no longer followed.

use std::time::Duration;

use anyhow::{Error, anyhow};
use kube_node_cache::{Cache, NodeView, View as _};
use tokio::time::sleep;

use super::view::MachinePod;

/// Pods per page of a list: one pod has 1.5 MiB at most, the limit of etcd.
pub const PAGE: u32 = 50;
/// Pods beside those of Nodes: machines whose Nodes went while the cluster could not be reached.
const SPARE: usize = 1_000;
/// Interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Waits until a cluster shows more pods than the machines of all Nodes could be, those that leave included.
pub async fn exceeded(pods: &Cache<MachinePod>, nodes: &Cache<NodeView>) -> Error {
    loop {
        sleep(CHECK_INTERVAL).await;
        let limit = 2 * nodes.len() + SPARE;
        if nodes.in_sync() && pods.len() > limit {
            return anyhow!(
                "the hosting cluster shows more than {limit} pods with the label of this cluster's machines: delete those that are none"
            );
        }
    }
}

/// Removes the pods that are no machine of a Node from the cache. The machines of Nodes stay as they were last known, as those of any
/// cluster that cannot be reached.
pub fn drop_strangers(pods: &Cache<MachinePod>, nodes: &Cache<NodeView>) {
    let is_of_a_node = |pod: &MachinePod| nodes.get(&pod.id.node).is_some_and(|node| node.uid == pod.id.uid);
    for pod in pods.all() {
        pods.remove_if(&pod.key(), |pod| !is_of_a_node(pod));
    }
}
