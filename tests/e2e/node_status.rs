//! The status of hollow Nodes after edits by other clients: what a kubelet owns is put right, what others add stays.

use std::time::{Duration, Instant};

use jiff::SignedDuration;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, create, eventually, name, phase};

/// A kubelet compares its status with the Node every 10 s.
const REPAIRED: Duration = Duration::from_secs(20);

async fn edit(own: &Fixture, node: &str, edits: Value) {
    let patch: Patch<Node> = Patch::Json(serde_json::from_value(edits).unwrap());
    own.nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
}

async fn status(own: &Fixture, node: &str) -> Value {
    json!(own.nodes.get(node).await.unwrap().status.unwrap())
}

/// Waits until the status has these values, and returns the time that it took.
async fn repaired(own: &Fixture, node: &str, wanted: &[(&str, Value)]) -> Duration {
    let began = Instant::now();
    eventually("the status is put right", LONG, async || {
        let status = status(own, node).await;
        wanted.iter().all(|(path, value)| status.pointer(path) == Some(value)).then_some(())
    })
    .await;
    began.elapsed()
}

#[tokio::test]
async fn an_extended_resource_that_an_admin_adds_to_the_capacity_becomes_allocatable() {
    let own = Fixture::new(&CLUSTER, "status-extended", 1, class_spec()).await;
    let node = name(&own.settled(1).await[0]);
    let dongle = |section: &str| format!("/{section}/example.com~1dongle");
    edit(&own, &node, json!([{"op": "add", "path": format!("/status{}", dongle("capacity")), "value": "1"}]))
        .await;
    let took = repaired(&own, &node, &[(&dongle("allocatable"), json!("1"))]).await;
    assert!(took < REPAIRED, "{took:?}");

    // The scheduler counts it, and so does the kubelet: a pod that the scheduler did not place is refused.
    let limits =
        json!([{"name": "main", "image": "i", "resources": {"limits": {"example.com/dongle": "1"}}}]);
    let pod = json!({"metadata": {"name": "status-dongle"}, "spec": {
        "nodeSelector": {"kube-node.io/nodeset": "status-extended"}, "terminationGracePeriodSeconds": 1, "containers": limits,
    }});
    create(&own.pods, pod).await.unwrap();
    let is = async |pod: &str, wanted: &str| {
        eventually(&format!("{pod} is {wanted}"), LONG, async || {
            own.pods.get(pod).await.ok().filter(|pod| phase(pod) == wanted)
        })
        .await
    };
    is("status-dongle", "Running").await;
    own.pod_on(&node, "status-no-dongle", json!({}), json!({"containers": limits})).await;
    let refused = is("status-no-dongle", "Failed").await;
    assert_eq!(refused.status.unwrap().reason.as_deref(), Some("OutOfexample.com/dongle"));

    // It goes with its capacity.
    edit(&own, &node, json!([{"op": "remove", "path": format!("/status{}", dongle("capacity"))}])).await;
    eventually("the allocatable amount goes", LONG, async || {
        status(&own, &node).await.pointer(&dongle("allocatable")).is_none().then_some(())
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_node_status_that_another_client_overwrites_is_put_right_within_20_seconds() {
    let own = Fixture::new(&CLUSTER, "status-edited", 1, class_spec()).await;
    let node = name(&own.settled(1).await[0]);
    let before = status(&own, &node).await;
    edit(
        &own,
        &node,
        json!([
            {"op": "replace", "path": "/status/capacity/cpu", "value": "1"},
            {"op": "add", "path": "/status/capacity/example.com~1dongle", "value": "4"},
            {"op": "remove", "path": "/status/allocatable/pods"},
            {"op": "add", "path": "/status/addresses/-", "value": {"type": "ExternalIP", "address": "192.0.2.1"}},
            {"op": "replace", "path": "/status/daemonEndpoints/kubeletEndpoint/Port", "value": 1},
            {"op": "replace", "path": "/status/nodeInfo/osImage", "value": "other"},
            {"op": "replace", "path": "/status/conditions/0/status", "value": "True"},
        ]),
    )
    .await;
    let kept = [
        "/addresses",
        "/daemonEndpoints",
        "/nodeInfo",
        "/capacity/cpu",
        "/allocatable/pods",
        "/conditions/0/status",
    ];
    let wanted: Vec<_> = kept.iter().map(|path| (*path, before.pointer(path).unwrap().clone())).collect();
    let took = repaired(&own, &node, &wanted).await;
    assert!(took < REPAIRED, "{took:?}");
    let capacity = &status(&own, &node).await["capacity"];
    assert_eq!(capacity["example.com/dongle"], "4", "a kubelet leaves the resources of others alone");
    own.clean_up().await;
}

#[tokio::test]
async fn a_lease_is_renewed_after_another_client_removed_its_owner() {
    let own = Fixture::new(&CLUSTER, "status-lease", 1, class_spec()).await;
    let node = name(&own.settled(1).await[0]);
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), "kube-node-lease");
    let disown = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
    let disowned = leases.patch(&node, &PatchParams::default(), &disown).await.unwrap();
    let renewed_at = |lease: &Lease| lease.spec.as_ref().unwrap().renew_time.clone().unwrap().0;
    let before = renewed_at(&disowned);
    // Twice: the first write takes the Lease over, and the next ones are those of each renewal.
    eventually("the Lease is renewed again and again", LONG, async || {
        let renewed = renewed_at(&leases.get(&node).await.unwrap());
        if renewed.duration_since(before) > SignedDuration::from_secs(25) { Ok(()) } else { Err(renewed) }
    })
    .await;
    own.clean_up().await;
}

#[tokio::test]
async fn a_class_with_labels_of_another_architecture_makes_nodes_that_report_this_architecture() {
    let mut class = class_spec();
    class["template"] = json!({"labels": {"kubernetes.io/arch": "arm64", "kubernetes.io/os": "windows"}});
    let own = Fixture::new(&CLUSTER, "status-arm", 1, class).await;
    let node = name(&own.settled(1).await[0]);
    let status = status(&own, &node).await;
    let reported = ["architecture", "operatingSystem"].map(|field| &status["nodeInfo"][field]);
    assert_eq!(reported, ["arm64", "windows"]);
    own.clean_up().await;
}
