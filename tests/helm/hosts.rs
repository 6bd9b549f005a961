//! Hosts as pods: they come with an upgrade, are scaled, roll, and go, and the Nodes that they carry do not notice.

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Api;
use serde_json::json;

use super::{
    CLUSTER,
    cluster::{Fleet, NAMESPACE, upgrade},
    program::CHART,
};
use kube_node_testing::{Fixture, LONG, class_spec, create, eventually, is_ready, name};

const NODES: usize = 20;
const SET: &str = "kube-node-hollow-big";

/// Once all pods are there, of the newest revision, and carry machines.
async fn hosts_are(client: &kube::Client, count: i32) {
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), NAMESPACE);
    eventually(&format!("{count} hosts"), LONG * 2, async || {
        let set = sets.get(SET).await.unwrap();
        let (generation, status) = (set.metadata.generation, set.status?);
        let is_new =
            status.observed_generation == generation && status.current_revision == status.update_revision;
        (is_new && status.ready_replicas == Some(count) && status.replicas == count).then_some(())
    })
    .await;
}

/// The same Nodes, and Ready since the same time.
async fn living(own: &Fixture) -> Vec<(String, String)> {
    let mut living: Vec<(String, String)> = own
        .settled(NODES)
        .await
        .iter()
        .map(|node| {
            assert!(is_ready(node));
            let ready =
                kube_node_testing::condition(node, "Ready").unwrap().last_transition_time.as_ref().unwrap();
            (name(node), ready.0.to_string())
        })
        .collect();
    living.sort();
    living
}

pub async fn come_and_go(fleet: &Fleet) {
    let client = &fleet.hollow.client;
    let own = Fixture::of(client.clone(), "helm-hosted");
    let mut class = class_spec();
    class["hollow"] = json!({"hosts": "big"});
    class["template"] = json!({"taints": [{"key": "example.com/hollow", "effect": "NoSchedule"}]});
    create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class})).await.unwrap();
    own.create_set(i32::try_from(NODES).unwrap(), json!({})).await;

    let notes = upgrade(CHART, &["hollowHosts.big.replicas=2"]);
    assert!(notes.contains("Groups: big."), "{notes}");
    hosts_are(client, 2).await;
    let before = living(&own).await;
    let system = ["-n", NAMESPACE];
    CLUSTER.kubectl(&[&system[..], &["scale", "statefulset", SET, "--replicas=3"]].concat());
    hosts_are(client, 3).await;
    // One after another.
    CLUSTER.kubectl(&[&system[..], &["rollout", "restart", "statefulset", SET]].concat());
    hosts_are(client, 3).await;
    CLUSTER.kubectl(&[&system[..], &["scale", "statefulset", SET, "--replicas=1"]].concat());
    hosts_are(client, 1).await;
    assert_eq!(living(&own).await, before);
    own.clean_up().await;
    upgrade(CHART, &[]);
    fleet.is_alive("hosts").await;
}
