//! Several operators of one cluster: one leads, and whatever happens to it, another one goes on where it stood. These tests
//! stop, kill and freeze operators, so they have a cluster of their own and run one after another.

mod audit;
mod deaf;
mod ends;
mod kills;
mod pause;
mod refusals;

use audit::Audit;
use kube_node_testing::{Fixture, TemporaryCluster, class_spec, create, test_target};
use serde_json::json;

#[tokio::test]
async fn failover() {
    let _turn = super::turn().await;
    let cluster = TemporaryCluster::folder(test_target!(), "failover");
    let audit = Audit::of(&cluster);
    let [argument, policy] = audit.args();
    cluster.up(&["--without-operator", &argument, &policy]);
    let own = set_of(&cluster, "failover").await;
    let leader = ends::in_good_order_and_by_a_crash(&cluster, &own).await;
    let leader = deaf::without_its_election(&cluster, &own, &audit, leader).await;
    let leader = pause::beyond_the_lease(&cluster, &own, &audit, leader).await;
    kills::twenty_during_a_scale_up(&cluster, &own, leader).await;
    refusals::beside_a_leader(&cluster).await;
    refusals::without_rights(&cluster).await;
}

/// A class and a set without Nodes yet.
async fn set_of(cluster: &TemporaryCluster, name: &str) -> Fixture {
    // The audit log tells what the test does from what operators do.
    let own = Fixture::of(cluster.client_as("tester", &["system:masters"]).await, name);
    create(&own.classes, json!({"metadata": {"name": name}, "spec": class_spec()})).await.unwrap();
    own.create_set(0, json!({})).await;
    own
}

async fn scale(own: &Fixture, replicas: usize) {
    own.patch_set(json!({"spec": {"replicas": replicas}})).await;
}
