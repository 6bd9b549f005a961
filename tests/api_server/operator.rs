//! The whole operator on the API server in memory.

use std::{collections::BTreeMap, net::Ipv4Addr, pin::pin, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use kube_ext::environment::{self, Environment, within};
use kube_node_api::{NodeClass, NodeSet};
use kube_node_operator::{Access, Options, controllers::ProviderIdPrefix};
use kube_node_testing::{api_server::ApiServer, simulated_time::SimulatedTime};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Waits until the Nodes meet a condition.
async fn nodes(client: &Client, condition: impl Fn(&[Node]) -> bool) -> Vec<Node> {
    let api: Api<Node> = Api::all(client.clone());
    let met = async {
        loop {
            let nodes = api.list(&ListParams::default()).await.unwrap().items;
            if condition(&nodes) {
                return nodes;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_mins(10), met).await.unwrap()
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True") && taints.count() == 0
}

fn version(node: &Node) -> &str {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map_or("", |info| &info.kubelet_version)
}

#[tokio::test(start_paused = true)]
async fn the_operator_scales_and_rolls_a_set() {
    let server = simulated(1).await;
    let kinds = server.changes().iter().fold(BTreeMap::new(), |mut kinds: BTreeMap<_, usize>, change| {
        *kinds.entry(change.after["kind"].to_string()).or_default() += 1;
        kinds
    });
    println!("{kinds:?}");
}

/// Runs the operator and its users until the end; returns the server.
async fn simulated(seed: u64) -> ApiServer {
    let time: Arc<dyn Environment> = Arc::new(SimulatedTime::new(seed));
    let server = within(Arc::clone(&time), async { ApiServer::new(seed, environment::now) }).await;
    within(time, run(Client::new(server.clone(), "default"))).await;
    server
}

async fn run(client: Client) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in ["kube-system", "kube-node-lease", "kube-node-system"] {
        let namespace = object(json!({ "metadata": { "name": name } }));
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    }
    let options = Options {
        client: Access::by(client.clone()),
        hollow: None,
        endpoints: None,
        max_machines: 1_000,
        namespace: "kube-node-system".to_owned(),
        admin_address: (Ipv4Addr::LOCALHOST, 0).into(),
        pod_cidrs: None,
        provider_id_prefix: ProviderIdPrefix::Provider,
        machine_image: String::new(),
        machine_api_server: None,
        insecure_credentials: false,
        autoscaler: None,
        election: None,
    };
    let shutdown = CancellationToken::new();
    let mut operator = pin!(kube_node_operator::run(options, shutdown.clone()));
    tokio::select! {
        ended = &mut operator => panic!("the operator ended by itself: {ended:?}"),
        () = scale_and_roll(&client) => {}
    }
    shutdown.cancel();
    operator.await.unwrap();
}

/// What users do to a set, and what has to come of it.
async fn scale_and_roll(client: &Client) {
    let classes: Api<NodeClass> = Api::all(client.clone());
    let sets: Api<NodeSet> = Api::all(client.clone());
    let spec = json!({
        "nodeController": "hollow", "capacity": { "cpu": "4", "memory": "8Gi", "pods": "110" },
        "provisioning": { "kubelet": { "version": "v1.36.3" } },
    });
    let class = object(json!({ "metadata": { "name": "small" }, "spec": spec }));
    classes.create(&PostParams::default(), &class).await.unwrap();
    let set = object(
        json!({ "metadata": { "name": "web" }, "spec": { "nodeClassName": "small", "replicas": 10 } }),
    );
    sets.create(&PostParams::default(), &set).await.unwrap();
    let first = nodes(client, |nodes| nodes.len() == 10 && nodes.iter().all(is_ready)).await;

    let change = |change: Value| Patch::Merge(change);
    let newer = change(json!({ "spec": { "provisioning": { "kubelet": { "version": "v1.37.0" } } } }));
    classes.patch("small", &PatchParams::default(), &newer).await.unwrap();
    let rolled = |nodes: &[Node]| {
        nodes.len() == 10 && nodes.iter().all(|node| is_ready(node) && version(node) == "v1.37.0")
    };
    let second = nodes(client, rolled).await;
    assert!(second.iter().all(|node| first.iter().all(|old| old.uid() != node.uid())));

    sets.patch("web", &PatchParams::default(), &change(json!({ "spec": { "replicas": 3 } }))).await.unwrap();
    nodes(client, |nodes| nodes.len() == 3 && nodes.iter().all(is_ready)).await;
    sets.delete("web", &kube::api::DeleteParams::default()).await.unwrap();
    nodes(client, <[Node]>::is_empty).await;
}
