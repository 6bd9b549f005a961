//! A rollout of 200 Nodes with a workload on them, and the operator killed in the middle of it.

use std::{collections::HashSet, time::Duration};

use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{CLUSTER, RECOVERY, nothing_lost_or_doubled, operator_is_back};
use kube_node_testing::{Fixture, class_spec, eventually, is_ready, taints};

const NODES: usize = 200;
const PODS: usize = 40;
/// What the disruption budget asks for.
const LEAST_PODS: usize = 36;
const SURGE: usize = NODES / 4;
/// Times of the kills after the change of the class.
const KILLS: [Duration; 2] = [Duration::from_millis(1_500), Duration::from_secs(6)];

/// How long it may take. An eviction that its client's death cut off keeps its place in the disruption budget for two
/// minutes (`DeletionTimeout` of the disruption controller).
const LIMIT: Duration = Duration::from_mins(6);

/// Writes to Nodes and Leases that the API server has served, renewals included.
fn writes() -> f64 {
    let text = CLUSTER.kubectl(&["get", "--raw", "/metrics"]);
    let counted = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && ["resource=\"nodes\"", "resource=\"leases\""].iter().any(|resource| line.contains(resource))
            && ["POST", "PUT", "PATCH", "DELETE"]
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
            && line.contains("code=\"20")
    };
    text.lines().filter(counted).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

pub async fn rollout_of_200() {
    for kills in [&[][..], &KILLS] {
        let own = Fixture::without_set(&CLUSTER, "outage-roll", class_spec()).await;
        own.create_set(
            i32::try_from(NODES).unwrap(),
            json!({"strategy": {"rollingUpdate": {"maxSurge": "25%"}}}),
        )
        .await;
        let before: HashSet<_> = own.settled(NODES).await.into_iter().map(|node| node.metadata.uid).collect();
        own.workload(PODS).await;
        own.budget(json!({"minAvailable": LEAST_PODS})).await;

        let writes_before = writes();
        own.patch_class(json!({"spec": {"capacity": {"cpu": "8"}}})).await;
        let start = Instant::now();
        let mut kills = kills.iter().copied().peekable();
        let (mut fewest_pods, mut fewest_nodes, mut most_nodes) = (PODS, NODES, NODES);
        loop {
            assert!(start.elapsed() < LIMIT, "not rolled within {LIMIT:?}");
            if kills.next_if(|at| start.elapsed() >= *at).is_some() {
                assert!(CLUSTER.kill("operator"), "the operator runs");
                operator_is_back().await;
            }
            fewest_pods = fewest_pods.min(own.endpoints().await);
            let nodes = own.my_nodes().await;
            fewest_nodes = fewest_nodes.min(nodes.iter().filter(|node| is_ready(node)).count());
            most_nodes = most_nodes.max(nodes.len());
            if nodes.len() == NODES && nodes.iter().all(|node| !before.contains(&node.metadata.uid)) {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        let took = start.elapsed();
        let each = (writes() - writes_before) / NODES as f64;
        println!(
            "{NODES} nodes rolled in {:.1} s: {fewest_pods} of {PODS} endpoints at least, {fewest_nodes} to {most_nodes} nodes, {each:.1} writes a replaced node",
            took.as_secs_f64()
        );
        assert!(fewest_pods >= LEAST_PODS, "{fewest_pods} endpoints");
        assert!(fewest_nodes >= NODES, "{fewest_nodes} Ready nodes");
        assert!(most_nodes <= NODES + SURGE, "{most_nodes} nodes");
        nothing_lost_or_doubled(&own, NODES).await;
        what_propagates_replaces_nobody(&own).await;
        own.end_workload().await;
        own.clean_up().await;
    }
}

async fn what_propagates_replaces_nobody(own: &Fixture) {
    let uids = |nodes: Vec<Node>| -> HashSet<_> { nodes.into_iter().map(|node| node.metadata.uid).collect() };
    let before = uids(own.my_nodes().await);
    own.patch_class(json!({"spec": {
        "template": {"labels": {"rack": "7"}, "taints": [{"key": "a", "effect": "NoSchedule"}]},
        "deletionTimeout": "1s",
        "failures": {"unhealthyDuration": "1h", "turnUnhealthyAfter": true},
    }}))
    .await;
    eventually("all have label and taint", RECOVERY, async || {
        let has_both = |node: &Node| {
            node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("rack"))
                && taints(node).iter().any(|(key, _)| key == "a")
        };
        own.my_nodes().await.iter().all(has_both).then_some(())
    })
    .await;
    assert_eq!(uids(own.settled(NODES).await), before, "nobody was replaced");
}
