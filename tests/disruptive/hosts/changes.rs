//! What people change: hosts, Nodes, classes.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::{Event, Node},
    storage::v1::{CSIDriver, CSINode},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

use super::{CLUSTER, NODES, group::Group, in_the_operator, write_node};
use kube_node_testing::{
    Fixture, LONG, condition, create, eventually, history::RecordedHistory, http::Request, is_ready, name,
};

/// Processes that know little of each other give out addresses, and ports at one that they share.
pub async fn addresses_are_unique(own: &Fixture) {
    let of_node = |node: &Node| {
        let status = node.status.clone().unwrap();
        let mut addresses = status.addresses.unwrap().into_iter();
        let address = addresses.find(|address| address.type_ == "InternalIP").unwrap().address;
        (address, status.daemon_endpoints.unwrap().kubelet_endpoint.unwrap().port)
    };
    let nodes: BTreeSet<(String, i32)> = own.my_nodes().await.iter().map(of_node).collect();
    assert_eq!(nodes.len(), NODES);
    // A host asks by itself who a client is, and what it may.
    let token = CLUSTER.kubectl(&["create", "token", "default"]);
    for (address, port) in nodes.iter().take(3) {
        let url = format!("https://{address}:{port}/healthz");
        let (_, answer) = Request::get(&url).bearer(token.trim()).answer().unwrap();
        let who = "Forbidden (user=system:serviceaccount:default:default, verb=get";
        assert!(answer.starts_with(who), "{url}: {answer}");
    }
    let selector = ListParams::default().labels(&format!("app={}", own.name));
    let pods = own.pods.list(&selector).await.unwrap();
    let pods: BTreeSet<String> =
        pods.items.into_iter().map(|pod| pod.status.unwrap().pod_ip.unwrap()).collect();
    assert_eq!(pods.len(), NODES);
}

/// What pods do is told by the host that carries their Node, and what comes again is counted up.
pub async fn events_are_told(own: &Fixture) {
    let node = name(&own.my_nodes().await[0]);
    let run_time = json!({ "hollow.kube-node.io/run-time": "1s" });
    own.pod_on(&node, "starts-again", run_time, json!({ "restartPolicy": "Always" })).await;
    let events: Api<Event> = Api::default_namespaced(own.client.clone());
    let starts = ListParams::default().fields("involvedObject.name=starts-again,reason=Started");
    eventually("its second start is counted", LONG, async || {
        let event = events.list(&starts).await.unwrap().items.pop()?;
        (event.count >= Some(2)).then_some(())
    })
    .await;
    own.pods.delete("starts-again", &DeleteParams::default()).await.unwrap();
}

/// Each host creates the `CSINode`s of its machines once there is a `CSIDriver`.
pub async fn csi_nodes_are_created(own: &Fixture) {
    let drivers: Api<CSIDriver> = Api::all(own.client.clone());
    let driver = json!({ "metadata": { "name": "csi.example.com" }, "spec": { "attachRequired": false } });
    create(&drivers, driver).await.unwrap();
    let csi_nodes: Api<CSINode> = Api::all(own.client.clone());
    let expected: BTreeSet<String> = own.my_nodes().await.iter().map(name).collect();
    eventually("every Node has its CSINode", LONG, async || {
        let listed = csi_nodes.list(&ListParams::default()).await.unwrap();
        let found: BTreeSet<String> = listed.iter().map(ResourceExt::name_any).collect();
        let missing: Vec<String> = expected.difference(&found).cloned().collect();
        if missing.is_empty() { Ok(()) } else { Err(missing) }
    })
    .await;
    drivers.delete("csi.example.com", &DeleteParams::default()).await.unwrap();
}

/// A host that comes takes its share from all others.
pub async fn more_hosts(own: &Fixture, group: &mut Group) {
    let history = RecordedHistory::begin(own).await;
    group.start(&["h-3", "h-4"]);
    for host in &group.hosts {
        host.is_ready().await;
    }
    group.shares_are_by_the_hash(own).await;
    history.shows_nothing_but(NODES).await;
}

/// Failures on purpose reach a machine that lives.
pub async fn failures_in_place(own: &Fixture, group: &Group) {
    own.patch_class(json!({"spec": {"failures": {"unhealthyDuration": "1s", "turnUnhealthyAfter": true}}}))
        .await;
    eventually("a Node turns unhealthy", LONG, async || {
        let nodes = own.my_nodes().await;
        let ready = |node: &Node| condition(node, "Ready").is_some_and(|ready| ready.status == "True");
        nodes.iter().any(|node| !ready(node)).then_some(())
    })
    .await;
    own.patch_class(json!({"spec": {"failures": null}})).await;
    own.settled(NODES).await;
    group.runs(NODES).await;
}

/// A Node that somebody writes finds its way to a host, and leaves when it is deleted.
pub async fn a_node_by_hand(own: &Fixture, group: &Group) {
    write_node(own, "by-hand").await;
    eventually("it is Ready", LONG, async || own.nodes.get("by-hand").await.ok().filter(is_ready)).await;
    group.runs(NODES + 1).await;
    own.nodes.delete("by-hand", &DeleteParams::default()).await.unwrap();
    eventually("it is gone", LONG, async || {
        own.nodes.get_opt("by-hand").await.unwrap().is_none().then_some(())
    })
    .await;
    group.runs(NODES).await;
}

pub async fn fewer_nodes_and_another_revision(own: &Fixture, group: &Group) {
    own.patch_set(json!({"spec": {"replicas": 12}})).await;
    own.settled(12).await;
    group.runs(12).await;
    let before: BTreeSet<String> = own.my_nodes().await.iter().map(name).collect();
    own.patch_class(json!({"spec": {"capacity": {"cpu": "8"}}})).await;
    eventually("each was replaced", LONG, async || {
        own.my_nodes().await.iter().all(|node| !before.contains(&name(node))).then_some(())
    })
    .await;
    own.settled(12).await;
    group.runs(12).await;
}

/// A class that names no hosts any more rolls its Nodes into the operator.
pub async fn back_into_the_operator(own: &Fixture, group: &Group) {
    own.patch_class(json!({"spec": {"hollow": null}})).await;
    eventually("the operator carries them", LONG, async || (in_the_operator() == 12).then_some(())).await;
    let nodes = own.settled(12).await;
    assert!(
        nodes.iter().all(|node| !node
            .metadata
            .labels
            .as_ref()
            .unwrap()
            .contains_key("kube-node.io/hollow-hosts"))
    );
    group.runs(0).await;
}
