//! What a release of Kubernetes can break: tests of other suites, on the release that `KUBE_NODE_VERSION` names.
//!
//! It is no part of `cargo test`, whose suites run on the default release. A maintainer runs it before a release of
//! kube-node, for each other release of Kubernetes: `KUBE_NODE_VERSION=1.37 cargo test --test versions`. Every other suite
//! takes the variable, too; what needs a real node is `KUBE_NODE_VERSION=1.37 cargo test --test real_node machines`.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../disruptive/autoscaler/mod.rs"]
mod autoscaler;
#[path = "../e2e/drain.rs"]
mod drain;
#[path = "../e2e/endpoints.rs"]
mod endpoints;
#[path = "../e2e/identity/mod.rs"]
mod identity;
#[path = "../e2e/kubemark.rs"]
mod kubemark;
#[path = "../e2e/kubemark_proxy.rs"]
mod kubemark_proxy;
#[path = "../e2e/pods.rs"]
mod pods;
#[path = "../e2e/policies.rs"]
mod policies;
#[path = "../e2e/rollout.rs"]
mod rollout;
#[path = "../e2e/scale.rs"]
mod scale;

use std::sync::LazyLock;

use kube_node_testing::{Fixture, TestCluster, git_version, release, test_target};
use serde_json::json;

/// The cluster of this suite.
static CLUSTER: LazyLock<TestCluster> =
    LazyLock::new(|| TestCluster::shared(test_target!(), "versions", &[]));

/// One suite here has a cluster of its own, and waits for no other one.
#[expect(clippy::unused_async, reason = "other suites wait here")]
async fn turn() -> impl Sized {}

#[tokio::test]
async fn the_cluster_is_of_the_release() {
    let version = CLUSTER.client().await.apiserver_version().await.unwrap();
    assert_eq!(version.git_version, git_version());
    assert_eq!(CLUSTER.state()["kubernetesVersion"], release().version());
}

#[tokio::test]
async fn nodes_of_up_have_kubelets_of_the_release() {
    let own = Fixture::of(CLUSTER.client().await, "hollow-nodes");
    own.patch_set(json!({"spec": {"replicas": 2}})).await;
    for node in own.settled(2).await {
        assert_eq!(node.status.unwrap().node_info.unwrap().kubelet_version, git_version());
    }
    own.patch_set(json!({"spec": {"replicas": 0}})).await;
    own.settled(0).await;
}
