//! Two control planes: the machines of one are pods of the other. The test cluster, with the real node, hosts; the other
//! one has nodes and no place of its own for pods. What the hosting cluster gives is docs/hosting-cluster.yaml, no more.

use std::{
    collections::BTreeSet,
    process::Command,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    core::v1::{Node, Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy},
    config::Kubeconfig,
};
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use crate::{
    CLUSTER,
    kinds::{BOTH, Kind, UP, machine, ready},
};
use kube_node_testing::{
    Fixture, LONG, TemporaryCluster, always, class_spec, condition, create, delete, eventually, is_ready,
    test_target,
};

const RIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/hosting-cluster.yaml");
/// Name of the Secret.
const HOSTING: &str = "hosting";

/// The kubeconfig that docs/kubemark-provider.md says how to make.
fn kubeconfig() -> String {
    CLUSTER.kubectl(&["apply", "-f", RIGHTS]);
    let token =
        CLUSTER.kubectl(&["-n", "kubemark", "create", "token", "kube-node-hosting", "--duration=24h"]);
    let admin = Kubeconfig::read_from(CLUSTER.dir.join("kubeconfig")).unwrap();
    let cluster = admin.clusters[0].cluster.as_ref().unwrap();
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": HOSTING, "cluster": cluster}],
        "users": [{"name": HOSTING, "user": {"token": token.trim()}}],
        "contexts": [{"name": HOSTING, "context": {"cluster": HOSTING, "user": HOSTING}}],
        "current-context": HOSTING,
    })
    .to_string()
}

/// The cluster that has the nodes, and what it has in the other one.
struct Guest {
    cluster: TemporaryCluster,
    client: Client,
    pods: Api<Pod>,
    secrets: Api<Secret>,
    selector: ListParams,
}

impl Guest {
    async fn start() -> Self {
        let host = CLUSTER.state()["network"]["host"].as_str().unwrap().to_owned();
        let cluster = TemporaryCluster::start(test_target!(), "guest", &["--listen-address", &host]);
        let client = cluster.client().await;
        let there = CLUSTER.client().await;
        let uid = cluster.kubectl(&["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"]);
        let secret = json!({"metadata": {"name": HOSTING}, "stringData": {"kubeconfig": kubeconfig()}});
        create(&Api::<Secret>::namespaced(client.clone(), "kube-node-system"), secret).await.unwrap();
        Self {
            cluster,
            client,
            pods: Api::namespaced(there.clone(), "kubemark"),
            secrets: Api::namespaced(there, "kubemark"),
            selector: ListParams::default().labels(&format!("kube-node.io/cluster={uid}")),
        }
    }

    async fn set(&self, kind: Kind, replicas: i32) -> Fixture {
        let own = Fixture::of(self.client.clone(), &kind.name("hosted"));
        let spec = kind.class(json!({"credentialsSecretRef": {"name": HOSTING}}));
        create(&own.classes, json!({"metadata": {"name": own.name}, "spec": spec})).await.unwrap();
        own.create_set(replicas, json!({})).await;
        own
    }

    async fn machines(&self) -> Vec<Pod> {
        self.pods.list(&self.selector).await.unwrap().items
    }

    /// Waits until there are so many pods, each with a Secret, and no further Secret.
    async fn has(&self, count: usize) {
        eventually(&format!("{count} machines in the hosting cluster"), UP, async || {
            let pods: BTreeSet<_> = self.machines().await.iter().map(ResourceExt::name_any).collect();
            let secrets = self.secrets.list(&self.selector).await.unwrap();
            let secrets: BTreeSet<_> = secrets.iter().map(ResourceExt::name_any).collect();
            (pods.len() == count && pods == secrets).then_some(())
        })
        .await;
    }

    async fn pod_of(&self, node: &Node) -> Option<Pod> {
        let uid = node.uid()?;
        let listed = self.machines().await.into_iter();
        let mut of_node: Vec<Pod> =
            listed.filter(|pod| pod.labels()["kube-node.io/node-uid"] == uid).collect();
        of_node.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_some());
        of_node.into_iter().next()
    }

    fn doctor(&self) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_kube-node"))
            .arg("doctor")
            .env("KUBECONFIG", self.cluster.dir.join("kubeconfig"))
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}

/// The Node of each of these got its certificate here, by a token that is bound to it.
async fn identities(client: &Client, nodes: &[Node]) -> bool {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let requests = requests.list(&ListParams::default()).await.unwrap().items;
    nodes.iter().all(|node| {
        requests.iter().any(|csr| {
            let extra = csr.spec.extra.as_ref();
            let bound =
                |key: &str| extra?.get(&format!("authentication.kubernetes.io/{key}"))?.first().cloned();
            bound("node-name") == Some(node.name_any())
                && bound("node-uid") == node.uid()
                && csr.spec.username.as_deref() == Some("system:serviceaccount:kubemark:kube-node-machine")
                && csr.status.as_ref().is_some_and(|status| status.certificate.is_some())
        })
    })
}

pub async fn machines_of_another_cluster() {
    let _node = crate::NODE.read().await;
    let guest = Guest::start().await;
    let here = Fixture::of(guest.client.clone(), "here");
    create(&here.classes, json!({"metadata": {"name": "here"}, "spec": class_spec()})).await.unwrap();
    here.create_set(1, json!({})).await;
    let [own, upstream] = [guest.set(BOTH[0], 2).await, guest.set(BOTH[1], 2).await];
    for set in [&own, &upstream] {
        let nodes = ready(set, 2).await;
        assert!(identities(&guest.client, &nodes).await, "{}", set.name);
        assert!(
            !identities(&CLUSTER.client().await, &nodes).await,
            "no request of theirs is in the other one"
        );
    }
    guest.has(4).await;
    for pod in guest.machines().await {
        assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("real-node"));
    }
    let of_its_own: Api<Pod> = Api::namespaced(guest.client.clone(), "kubemark");
    assert!(of_its_own.list(&ListParams::default()).await.unwrap().items.is_empty());
    // Nobody's pods are taken for somebody else's.
    let said = guest.doctor();
    assert!(said.contains("ok   pods         4 carry a machine each (cluster of Secret hosting)"), "{said}");
    assert!(said.contains("the machines of 4 pods renew their Leases"), "{said}");

    for set in [&own, &upstream] {
        set.patch_set(json!({"spec": {"replicas": 1}})).await;
        ready(set, 1).await;
    }
    guest.has(2).await;
    for set in [&own, &upstream] {
        comes_back(&guest, set).await;
    }
    refused_and_given_back(&guest, [&own, &upstream], &here).await;
    leaves_nothing(&guest, own).await;
    leaves_nothing_by_force(&guest, upstream).await;
    here.clean_up().await;
    let secrets: Api<Secret> = Api::namespaced(guest.client.clone(), "kube-node-system");
    assert!(secrets.get(HOSTING).await.unwrap().finalizers().is_empty(), "nobody needs it");
}

/// A pod that somebody deletes in the hosting cluster.
async fn comes_back(guest: &Guest, set: &Fixture) {
    let node = set.my_nodes().await.remove(0);
    let pod = guest.pod_of(&node).await.unwrap();
    guest.pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    let start = Instant::now();
    eventually("it is told", LONG, async || set.event_of(&node.name_any(), "MachineLost").await).await;
    println!("{}: a pod that was deleted elsewhere was missed after {:?}", set.name, start.elapsed());
    eventually("another pod works", UP, async || {
        let again = guest.pod_of(&node).await?;
        let node = set.nodes.get(&node.name_any()).await.unwrap();
        // A kubelet that starts says NotReady for a while, after a time in which the Node still says what the pod
        // before it said. So Ready counts from the new pod on.
        let heartbeat = condition(&node, "Ready")?.last_heartbeat_time.clone()?;
        let is_its_word = heartbeat.0 > again.creation_timestamp()?.0;
        (again.uid() != pod.uid() && is_its_word && is_ready(&node) && machine(&node)?.0 == "True")
            .then_some(())
    })
    .await;
}

async fn refused_and_given_back(guest: &Guest, sets: [&Fixture; 2], here: &Fixture) {
    CLUSTER.kubectl(&["-n", "kubemark", "delete", "rolebinding", "kube-node-hosting"]);
    let start = Instant::now();
    for set in sets {
        let message = eventually(&format!("{}: it is told", set.name), LONG, async || {
            let (status, reason, message) = machine(set.my_nodes().await.first()?)?;
            (status == "False" && reason == "ProviderUnreachable").then_some(message)
        })
        .await;
        assert!(
            message.contains("the hosting cluster refuses: ") && message.contains("forbidden"),
            "{message}"
        );
        // Also of one that would be made.
        set.patch_set(json!({"spec": {"replicas": 2}})).await;
    }
    println!("that the hosting cluster refuses was told after {:?}", start.elapsed());
    here.patch_set(json!({"spec": {"replicas": 3}})).await;
    here.settled(3).await;
    for set in sets {
        eventually(&format!("{}: both nodes say so", set.name), LONG, async || {
            let nodes = set.my_nodes().await;
            let is_waiting =
                |node: &Node| machine(node).is_some_and(|machine| machine.1 == "ProviderUnreachable");
            (nodes.len() == 2 && nodes.iter().all(is_waiting)).then_some(())
        })
        .await;
        set.set_says("Degraded", "True", "NodesInTrouble").await;
    }
    let said = guest.doctor();
    assert!(said.contains("BAD  hosting      the cluster of Secret hosting: cannot list pods"), "{said}");
    always("what runs there goes on", Duration::from_secs(5), async || {
        let mut nodes = Vec::new();
        for set in sets {
            nodes.extend(set.my_nodes().await);
        }
        let goes_on = nodes.iter().filter(|node| is_ready(node)).count() == 2;
        if !goes_on {
            println!("{:#?}", nodes.iter().map(|node| condition(node, "Ready")).collect::<Vec<_>>());
        }
        goes_on
    })
    .await;

    CLUSTER.kubectl(&["apply", "-f", RIGHTS]);
    for set in sets {
        ready(set, 2).await;
        eventually(&format!("{}: nothing stands in the way", set.name), LONG, async || {
            let nodes = set.my_nodes().await;
            let fine = |node: &Node| machine(node).is_none_or(|machine| machine.0 == "True");
            nodes.iter().all(fine).then_some(())
        })
        .await;
    }
    guest.has(4).await;
}

async fn leaves_nothing(guest: &Guest, set: Fixture) {
    let name = set.name.clone();
    set.clean_up().await;
    guest.has(2).await;
    assert!(guest.machines().await.iter().all(|pod| !pod.name_any().starts_with(&name)));
}

/// Set and Nodes go past their finalizers while no operator looks: no Node leads to the hosting cluster any more.
async fn leaves_nothing_by_force(guest: &Guest, set: Fixture) {
    let operator = guest.cluster.pid("operator").unwrap();
    kill(operator, Signal::SIGSTOP).unwrap();
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let params = PatchParams::default();
    let nodes = set.my_nodes().await;
    delete(&set.sets, &set.name, PropagationPolicy::Background).await;
    let _ = set.sets.patch(&set.name, &params, &none).await;
    for node in &nodes {
        delete(&set.nodes, &node.name_any(), PropagationPolicy::Background).await;
        let _ = set.nodes.patch(&node.name_any(), &params, &none).await;
    }
    assert!(set.my_nodes().await.is_empty());
    assert_eq!(guest.machines().await.len(), 2);
    assert!(guest.cluster.kill("operator"), "another one begins");
    guest.has(0).await;
    set.clean_up().await;
}
