//! Hollow machines on hosts of their own: how they are shared out, and what becomes of them when hosts come, go, hang and die.
//! The tests kill hosts and the operator, so they have a cluster of their own, and run one after another.

mod changes;
mod dedicated_identity;
mod group;
mod host;
mod losses;
mod refusals;

use group::Group;
use kube_node_testing::{Fixture, TestCluster, class_spec, create, test_target};
use serde_json::json;
use std::sync::LazyLock;

/// The cluster of this suite.
static CLUSTER: LazyLock<TestCluster> = LazyLock::new(|| TestCluster::shared(test_target!(), "hosts", &[]));
/// The group of hosts.
const GROUP: &str = "big";
/// How many Nodes it carries.
const NODES: usize = 60;

#[tokio::test]
async fn hosts_carry_machines_in_the_operators_place() {
    let _turn = super::turn().await;
    let mut class = class_spec();
    class["hollow"] = json!({ "hosts": GROUP });
    let own = Fixture::new(&CLUSTER, "hosted", i32::try_from(NODES).unwrap(), class).await;
    let mut group = Group::default();
    refusals::without_a_host(&own).await;
    refusals::without_rights_or_a_name(&own).await;
    group.start(&["h-0", "h-1", "h-2"]);
    own.settled(NODES).await;
    own.workload(NODES).await;
    group.runs(NODES).await;
    group.shares_are_by_the_hash(&own).await;
    group.exports_what_the_page_says();
    changes::addresses_are_unique(&own).await;
    changes::events_are_told(&own).await;
    changes::csi_nodes_are_created(&own).await;
    losses::killed(&own, &mut group).await;
    losses::frozen(&own, &mut group).await;
    losses::stopped(&own, &mut group).await;
    losses::of_a_lease(&own, &group).await;
    losses::of_the_operator(&own, &group).await;
    changes::more_hosts(&own, &mut group).await;
    changes::failures_in_place(&own, &group).await;
    changes::a_node_by_hand(&own, &group).await;
    own.end_workload().await;
    changes::fewer_nodes_and_another_revision(&own, &group).await;
    changes::back_into_the_operator(&own, &group).await;
    own.clean_up().await;
    group.runs(0).await;
    dedicated_identity::machines_with_identities(&mut group).await;
}

/// Machines that the operator carries itself.
fn in_the_operator() -> usize {
    let metrics = CLUSTER.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix("kube_node_hollow_machines "));
    line.unwrap().parse().unwrap()
}

/// A Node written by hand, of this class.
async fn write_node(own: &Fixture, name: &str) {
    let labels = json!({ "kube-node.io/nodeclass": own.name });
    create(&own.nodes, json!({ "metadata": { "name": name, "labels": labels } })).await.unwrap();
}
