//! What must survive: the operator killed at any moment, the API server away, objects of an older version. These tests
//! disturb everybody on the cluster, so they have one of their own and run one after another.

mod malformed;
mod rollout;

use std::{
    collections::BTreeSet,
    sync::LazyLock,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::core::v1::Node, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use tokio::time::{sleep, timeout};

use kube_node_testing::{
    Fixture, LONG, TestCluster, class_spec, create, eventually, history::leased, is_ready, test_target,
};

/// The cluster of this suite.
static CLUSTER: LazyLock<TestCluster> = LazyLock::new(|| TestCluster::shared(test_target!(), "outages", &[]));
/// Enough for a cluster that has been struck.
const RECOVERY: Duration = Duration::from_mins(3);
/// Chooses the moments of the kills; another one with `KUBE_NODE_SEED`.
const SEED: u64 = 20_261_121;

/// After it settles: each Node has its Lease and the other way round, and the operator has as many machines.
async fn nothing_lost_or_doubled(own: &Fixture, count: usize) {
    own.settled(count).await;
    eventually("as many machines as Nodes", RECOVERY, async || {
        let metrics = CLUSTER.metrics();
        let machines = metrics.lines().find_map(|line| line.strip_prefix("kube_node_hollow_machines "))?;
        (machines.parse::<usize>().ok()? == count).then_some(())
    })
    .await;
    leased(&own.client, RECOVERY).await;
}

async fn operator_is_back() {
    eventually("the operator is back", RECOVERY, async || {
        CLUSTER.metrics().contains("kube_node_hollow_machines").then_some(())
    })
    .await;
}

#[tokio::test]
async fn survivors() {
    let _turn = super::turn().await;
    // In one test, so that they come one after another.
    killed_half_way_through_a_scale_up().await;
    killed_at_random_moments().await;
    rollout::rollout_of_200().await;
    api_server_away().await;
    objects_of_an_older_definition().await;
    malformed::random_objects_past_the_schema().await;
    definitions_that_are_older_or_missing().await;
}

async fn killed_half_way_through_a_scale_up() {
    let own = Fixture::new(&CLUSTER, "outage-half", 0, class_spec()).await;
    own.settled(0).await;
    own.patch_set(json!({"spec": {"replicas": 200}})).await;
    eventually("half of them are there", RECOVERY, async || {
        (own.my_nodes().await.len() >= 100).then_some(())
    })
    .await;
    assert!(CLUSTER.kill("operator"));
    nothing_lost_or_doubled(&own, 200).await;
    own.clean_up().await;
}

async fn killed_at_random_moments() {
    let seed = std::env::var("KUBE_NODE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    let rounds = std::env::var("KUBE_NODE_KILLS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(20);
    let mut random = StdRng::seed_from_u64(seed);
    let own = Fixture::new(&CLUSTER, "outage-random", 0, class_spec()).await;
    for round in 0..rounds {
        let replicas: usize = random.random_range(0..=120);
        let offset = Duration::from_millis(random.random_range(0..1_500));
        println!("seed {seed} round {round}: to {replicas} replicas, SIGKILL after {offset:?}");
        own.patch_set(json!({"spec": {"replicas": replicas}})).await;
        sleep(offset).await;
        assert!(CLUSTER.kill("operator"), "the operator runs");
        operator_is_back().await;
        if round % 5 == 4 {
            nothing_lost_or_doubled(&own, replicas).await;
        }
    }
    own.patch_set(json!({"spec": {"replicas": 40}})).await;
    nothing_lost_or_doubled(&own, 40).await;
    let before = ports(&own).await;
    assert!(before.iter().all(|(_, port)| *port != 0) && before.len() == 40, "{before:?}");
    assert!(CLUSTER.kill("operator"), "the operator runs");
    operator_is_back().await;
    nothing_lost_or_doubled(&own, 40).await;
    assert_eq!(ports(&own).await, before, "each kubelet has the port that it had");
    own.clean_up().await;
}

/// UIDs of Nodes, with the ports of their kubelets.
async fn ports(own: &Fixture) -> BTreeSet<(Option<String>, i32)> {
    let port =
        |node: &Node| Some(node.status.as_ref()?.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref()?.port);
    let nodes = own.my_nodes().await;
    nodes.iter().map(|node| (node.metadata.uid.clone(), port(node).unwrap_or(0))).collect()
}

async fn api_server_away() {
    let own = Fixture::new(&CLUSTER, "outage-api", 20, class_spec()).await;
    let before: Vec<_> = own.settled(20).await.iter().map(|node| node.metadata.uid.clone()).collect();
    // Its supervisor starts it again at once: it is struck down until the time is over.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        CLUSTER.kill("kube-apiserver");
        sleep(Duration::from_millis(300)).await;
    }
    eventually("the API server is back", RECOVERY, async || own.sets.list(&ListParams::default()).await.ok())
        .await;
    own.patch_set(json!({"spec": {"replicas": 25}})).await;
    nothing_lost_or_doubled(&own, 25).await;
    let after: Vec<_> = own.my_nodes().await.iter().map(|node| node.metadata.uid.clone()).collect();
    assert!(before.iter().all(|uid| after.contains(uid)), "nobody was replaced");
    assert!(own.my_nodes().await.iter().all(is_ready));
    own.clean_up().await;
}

async fn objects_of_an_older_definition() {
    let own = Fixture::new(&CLUSTER, "outage-old", 1, class_spec()).await;
    own.settled(1).await;
    let crds: Api<CustomResourceDefinition> = Api::all(own.client.clone());
    let definition = crds.get("nodesets.kube-node.io").await.unwrap();
    // An older definition that let anything through.
    let loose = json!({"spec": {"versions": [{"name": "v1alpha1", "served": true, "storage": true,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    crds.patch("nodesets.kube-node.io", &PatchParams::default(), &Patch::Merge(loose)).await.unwrap();
    let malformed =
        json!({"metadata": {"name": "malformed"}, "spec": {"replicas": "many", "nodeClassName": 7}});
    eventually("the loose definition works", RECOVERY, async || {
        match create(&own.sets, malformed.clone()).await {
            Err(kube::Error::Api(_)) => None,
            // Stored, and unreadable for us as for the operator.
            _ => Some(()),
        }
    })
    .await;
    let whole = json!({"spec": {"versions": definition.spec.versions}});
    crds.patch("nodesets.kube-node.io", &PatchParams::default(), &Patch::Merge(whole)).await.unwrap();
    // The good ones are served as before.
    eventually("the good set still scales", RECOVERY, async || {
        let change = Patch::Merge(json!({"spec": {"replicas": 3}}));
        own.sets.patch(&own.name, &PatchParams::default(), &change).await.ok()
    })
    .await;
    own.settled(3).await;
    eventually("the bad one says what is wrong", RECOVERY, async || {
        let events = CLUSTER.kubectl(&["get", "events", "-A", "-o", "jsonpath={.items[*].message}"]);
        events.contains("does not fit its definition").then_some(())
    })
    .await;
    CLUSTER.kubectl(&["delete", "nodeset", "malformed", "--wait=false"]);
    own.clean_up().await;
}

/// What an operator says that is started by hand; it must end by itself.
async fn operator_says() -> String {
    let mut operator = tokio::process::Command::new(env!("CARGO_BIN_EXE_kube-node"));
    operator
        .args(["operator", "--admin-address", "127.0.0.1:0", "--kubeconfig"])
        .arg(CLUSTER.dir.join("kubeconfig"));
    operator.kill_on_drop(true);
    let output = timeout(LONG, operator.output()).await.expect("it ends").unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Comes last: afterwards the cluster has no kinds of ours any more.
async fn definitions_that_are_older_or_missing() {
    let crds: Api<CustomResourceDefinition> = Api::all(CLUSTER.client().await);
    let older = json!([{"op": "remove",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/expireAfter"}]);
    let older = Patch::Json::<()>(serde_json::from_value(older).unwrap());
    crds.patch("nodesets.kube-node.io", &PatchParams::default(), &older).await.unwrap();
    // The API server publishes the change some seconds later.
    sleep(Duration::from_secs(5)).await;
    let said = operator_says().await;
    assert!(said.contains("definition of NodeSet lacks spec.expireAfter"), "{said}");
    for name in ["nodesets.kube-node.io", "nodeclasses.kube-node.io"] {
        CLUSTER.kubectl(&["delete", "crd", name]);
    }
    let said = operator_says().await;
    assert!(
        said.contains("install the CustomResourceDefinitions first") || said.contains("has no kinds of"),
        "{said}"
    );
}
