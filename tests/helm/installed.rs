//! The chart installed by helm on the local cluster with a real node, where the operator runs as a pod of our own image.

#[path = "../disruptive/autoscaler/channel.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod channel;
mod cluster;
mod growth;
mod hosts;
#[allow(dead_code, reason = "a part of it is for the rendered chart")]
mod program;
pub mod release;

use kube_node_testing::{TestCluster, test_target};
use std::sync::LazyLock;

/// The cluster of this suite. The operator is the chart's.
static CLUSTER: LazyLock<TestCluster> = LazyLock::new(|| {
    TestCluster::shared(test_target!(), "installed", &["--real-node", "--without-operator"])
});
