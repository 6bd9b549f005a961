//! A process carries no more hollow machines than it has room for; the other Nodes wait, and say what for.

use std::{
    process::{Child, Command},
    time::Duration,
};

use serde_json::{Value, json};

use kube_node_testing::{
    Fixture, LONG, TemporaryCluster, TestCluster, class_spec, condition, create, eventually, is_ready, name,
    test_target,
};

/// Most machines of the operator.
const MAX: usize = 5;

/// A class in a cluster of this test.
async fn class(cluster: &TestCluster, name: &str, more: Value) -> Fixture {
    let own = Fixture::of(cluster.client().await, name);
    let mut spec = class_spec();
    if !more.is_null() {
        spec["hollow"] = more;
    }
    create(&own.classes, json!({"metadata": {"name": name}, "spec": spec})).await.unwrap();
    own
}

/// How many of the set's Nodes are Ready, and what the others say of their machines.
async fn stand(own: &Fixture) -> (usize, Vec<String>) {
    let nodes = own.my_nodes().await;
    let says = |node| condition(node, "kube-node.io/Machine").filter(|says| says.status == "False");
    let waiting = nodes.iter().filter(|node| !is_ready(node));
    let says = waiting.filter_map(|node| says(node)?.reason.clone()).collect();
    (nodes.iter().filter(|node| is_ready(node)).count(), says)
}

async fn stands(own: &Fixture, ready: usize, waiting: usize) {
    let what = format!("{ready} Ready nodes of {}, {waiting} without room", own.name);
    eventually(&what, LONG, async || {
        (stand(own).await == (ready, vec!["OutOfResources".to_owned(); waiting])).then_some(())
    })
    .await;
}

async fn measures(cluster: &TestCluster, name: &str, value: usize) {
    let line = format!("{name} {value}");
    eventually(&line, LONG, async || cluster.metrics().lines().any(|other| other == line).then_some(()))
        .await;
}

async fn scale(own: &Fixture, replicas: usize) {
    own.patch_set(json!({"spec": {"replicas": replicas}})).await;
}

#[tokio::test]
async fn nodes_beyond_the_room_wait_until_there_is_some() {
    let cluster = TemporaryCluster::start(
        test_target!(),
        "room",
        &["--component-arg", &format!("operator=--max-machines={MAX}")],
    );
    let (first, many) =
        (class(&cluster, "room-first", json!(null)).await, class(&cluster, "room-many", json!(null)).await);
    let operator = cluster.pid("operator").unwrap();
    first.create_set(2, json!({})).await;
    first.settled(2).await;
    many.create_set(40, json!({})).await;
    stands(&many, 3, 37).await;
    measures(&cluster, "kube_node_waiting_nodes{reason=\"OutOfResources\"}", 37).await;
    measures(&cluster, "kube_node_hollow_machines_refused", 37).await;
    measures(&cluster, "kube_node_hollow_machines_max", MAX).await;
    measures(&cluster, "kube_node_machines{provider=\"hollow\"}", MAX).await;
    let said = many.set_says("Degraded", "True", "NodesInTrouble").await;
    assert!(said.contains("OutOfResources: this process carries 5 hollow machines"), "{said}");
    let nodes = many.my_nodes().await;
    let waiting = name(nodes.iter().find(|node| !is_ready(node)).unwrap());
    eventually("an event says it", LONG, async || many.event_of(&waiting, "OutOfResources").await).await;

    // Room that others make is taken at once, in the order in which Nodes came, and those that work notice nothing.
    let ready_before: Vec<String> = nodes.iter().filter(|node| is_ready(node)).map(name).collect();
    let began = tokio::time::Instant::now();
    scale(&first, 0).await;
    stands(&many, MAX, 35).await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    for node in ready_before {
        assert!(is_ready(&many.nodes.get(&node).await.unwrap()), "{node}");
    }

    on_a_host(&cluster).await;

    // The Nodes that wait go first; what is left has room, and says so.
    scale(&many, MAX).await;
    many.settled(MAX).await;
    many.set_says("Degraded", "False", "AsExpected").await;
    measures(&cluster, "kube_node_waiting_nodes{reason=\"OutOfResources\"}", 0).await;
    measures(&cluster, "kube_node_hollow_machines_refused", 0).await;
    assert_eq!(cluster.pid("operator"), Some(operator), "it lives");
}

/// A host, until it is dropped.
struct Host(Child);

impl Host {
    fn start(cluster: &TestCluster, max: usize) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
        command.args(["hollow-host", "--hosts", "small", "--name", "h-0", "--kubeconfig"]);
        command.arg(cluster.dir.join("hollow-host.kubeconfig"));
        command.args(["--max-machines", &max.to_string(), "--admin-address=127.0.0.1:0"]);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same on a host, which says on the Nodes what the operator cannot know.
async fn on_a_host(cluster: &TestCluster) {
    let own = class(cluster, "room-hosted", json!({"hosts": "small"})).await;
    let host = Host::start(cluster, 2);
    own.create_set(4, json!({})).await;
    stands(&own, 2, 2).await;
    measures(cluster, "kube_node_waiting_nodes{reason=\"OutOfResources\"}", 37).await;
    drop(host);
    let _larger = Host::start(cluster, 9);
    stands(&own, 4, 0).await;
    eventually("all say so", LONG, async || {
        let nodes = own.my_nodes().await;
        let is_well = |node| condition(node, "kube-node.io/Machine").is_none_or(|says| says.status == "True");
        nodes.iter().all(is_well).then_some(())
    })
    .await;
    scale(&own, 0).await;
    own.settled(0).await;
}
