//! The nodes of a cluster, copied: what a scheduler sees of the copy is what it sees of them.

use std::{
    collections::BTreeMap,
    io::Write,
    process::{Command, Stdio},
};

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{ListParams, PropagationPolicy};
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, delete, eventually, is_ready};

/// What a scheduler goes by.
type Seen =
    (BTreeMap<String, String>, Vec<Taint>, BTreeMap<String, String>, BTreeMap<String, String>, String);

fn seen(node: &Node) -> Seen {
    let amounts =
        |amounts: &Option<BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>| {
            amounts.iter().flatten().map(|(name, amount)| (name.clone(), amount.0.clone())).collect()
        };
    let mut labels = node.metadata.labels.clone().unwrap();
    labels.retain(|key, _| !key.starts_with("kube-node.io/") && key != "kubernetes.io/hostname");
    let mut taints = node.spec.clone().unwrap().taints.unwrap_or_default();
    taints.retain(|taint| !taint.key.starts_with("node.kubernetes.io/"));
    let status = node.status.as_ref().unwrap();
    let version = status.node_info.as_ref().unwrap().kubelet_version.clone();
    (labels, taints, amounts(&status.capacity), amounts(&status.allocatable), version)
}

fn apply(objects: &str) {
    let mut kubectl = Command::new(CLUSTER.state()["binaries"].as_str().unwrap().to_owned() + "/kubectl")
        .args(["apply", "--filename", "-", "--kubeconfig"])
        .arg(CLUSTER.dir.join("kubeconfig"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    kubectl.stdin.take().unwrap().write_all(objects.as_bytes()).unwrap();
    assert!(kubectl.wait().unwrap().success());
}

#[tokio::test]
async fn a_copy_looks_like_the_original() {
    let mut class = class_spec();
    class["capacity"]["example.com/gpu"] = json!("2");
    class["provisioning"] = json!({"kubelet": {"version": "v1.35.7"}});
    class["template"] = json!({"labels": {"import": "yes", "tier": "class"}});
    let own = Fixture::without_set(&CLUSTER, "import", class).await;
    own.create_set(
        2,
        json!({"template": {
            "labels": {"pool": "gpus", "topology.kubernetes.io/zone": "a", "tier": "set"},
            "taints": [{"key": "gpu", "value": "only", "effect": "NoSchedule"}],
        }}),
    )
    .await;
    let mut originals: Vec<Seen> = own.settled(2).await.iter().map(seen).collect();

    let args = ["import", "--from-cluster", "--selector", "import=yes", "--prefix", "copy-"];
    let output = CLUSTER.kube_node(&args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("nodes: 2, NodeSets: 1, NodeClasses: 1"), "{said}");
    let objects = String::from_utf8(output.stdout).unwrap();
    apply(&objects);
    let copies = eventually("the copies are Ready", LONG, async || {
        let copies =
            own.nodes.list(&ListParams::default().labels("kube-node.io/nodeset=copy-gpus-a")).await.unwrap();
        (copies.items.len() == 2 && copies.items.iter().all(is_ready)).then_some(copies.items)
    })
    .await;
    let open = |node: &Node| node.spec.as_ref().unwrap().taints.as_ref().unwrap().len() == 1;
    eventually("the copies are open", LONG, async || {
        let copies =
            own.nodes.list(&ListParams::default().labels("kube-node.io/nodeset=copy-gpus-a")).await.unwrap();
        copies.items.iter().all(open).then_some(())
    })
    .await;
    let nodes =
        own.nodes.list(&ListParams::default().labels("kube-node.io/nodeset=copy-gpus-a")).await.unwrap();
    assert_eq!(copies.len(), nodes.items.len());
    let mut after: Vec<Seen> = nodes.items.iter().map(seen).collect();
    originals.sort_by(|a, b| a.0.cmp(&b.0));
    after.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(after, originals);

    // A file with the same Nodes makes the same objects.
    let listed = CLUSTER.kubectl(&[
        "get",
        "nodes",
        "--selector",
        "import=yes,kube-node.io/nodeset=import",
        "--output=json",
    ]);
    let file = CLUSTER.dir.join("import.json");
    std::fs::write(&file, listed).unwrap();
    let output = CLUSTER.kube_node(&["import", "--file", file.to_str().unwrap(), "--prefix", "copy-"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), objects);

    delete(&own.sets, "copy-gpus-a", PropagationPolicy::Background).await;
    delete(&own.classes, "copy-test", PropagationPolicy::Background).await;
    own.clean_up().await;
}

#[tokio::test]
async fn what_cannot_be_imported_is_said() {
    let file = CLUSTER.dir.join("no-nodes");
    std::fs::write(&file, "a: b").unwrap();
    let file = file.to_str().unwrap();
    for (args, sentence) in [
        (&["--file", file][..], "is no list of Nodes: write it with kubectl get nodes --output=json"),
        (&["--file", "/nonexistent"], "cannot read /nonexistent"),
        (&[], "the following required arguments were not provided"),
        (&["--from-cluster", "--prefix", "A_"], "write up to 20 lower case letters, digits and hyphens"),
        (&["--from-cluster", "--selector", "a=none"], "there is no Node that says what it has"),
        (&["--from-cluster", "--selector", "a==b==c"], "cannot list Nodes"),
    ] {
        let output = CLUSTER.kube_node(&[&["import"], args].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(sentence), "{args:?}: {said}");
    }
}
