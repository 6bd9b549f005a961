//! The whole operator on the API server in memory.

use std::{pin::pin, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use kube_ext::environment::{self, Environment, within};
use kube_node_api::{NodeClass, NodeSet, names};
use kube_node_controllers::{Access, ProviderIdPrefix};
use kube_node_operator::{Caches, Options};
use kube_node_testing::{api_server::ApiServer, seeds, simulated_time::SimulatedTime};
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

/// All writes of a run of this seed. Events are left out: kube's recorder names them by the time of day.
fn writes(seed: u64) -> Vec<String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let changes = runtime.block_on(async { Box::pin(simulated(seed)).await.changes() });
    let changes = changes.iter().filter(|change| change.after["kind"] != "Event");
    changes.map(|change| format!("{} {} {}", change.revision, change.deleted, change.after)).collect()
}

#[test]
fn the_operator_scales_and_rolls_a_set_and_repeats_a_run_from_its_seed() {
    let failure = seeds::first_failure(0..20, |seed| {
        let (first, second) = (writes(seed), writes(seed));
        match first.iter().zip(&second).find(|(one, other)| one != other) {
            Some((one, other)) => Err(format!("{one}\n{other}")),
            None if first.len() == second.len() => Ok(()),
            None => Err(format!("{} writes, then {}", first.len(), second.len())),
        }
    });
    assert!(failure.is_none(), "{failure:?}");
    assert_ne!(writes(0), writes(1), "the seed decides");
}

/// Runs the operator and its users until the end; returns the server.
async fn simulated(seed: u64) -> ApiServer {
    let time: Arc<dyn Environment> = Arc::new(SimulatedTime::new(seed));
    let server = within(Arc::clone(&time), async { ApiServer::new(seed, environment::now) }).await;
    Box::pin(within(time, run(Client::new(server.clone(), "default")))).await;
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
        admin_address: None,
        pod_cidrs: None,
        provider_id_prefix: ProviderIdPrefix::Provider,
        machine_namespace: names::MACHINE_NAMESPACE.to_owned(),
        machine_image: String::new(),
        machine_api_server: None,
        insecure_credentials: false,
        autoscaler: None,
        election: None,
        caches: Caches::default(),
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
