//! Objects that `kube-node convert` makes of Machines: the API server takes them, and the operator makes their Nodes.

use std::{fs, path::PathBuf, process::Command};

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{Api, api::ListParams};
use kube_node_api::{NodeClass, NodeSet};
use serde::Deserialize;
use serde_json::Value;

use crate::CLUSTER;
use kube_node_testing::{LONG, eventually};

/// Outputs that the unit tests compare.
fn examples() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/convert/examples");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.to_string_lossy().ends_with(".converted.yaml")).collect()
}

/// Returns true if a Node has all labels, annotations and taints of a set's template.
fn is_as_its_template_says(node: &Node, set: &NodeSet) -> bool {
    let Some(template) = &set.spec.template else { return true };
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let taints = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    let parts =
        |taint: &Taint| (taint.key.clone(), taint.value.clone().unwrap_or_default(), taint.effect.clone());
    let has = |own: &Taint| taints.iter().any(|taint| parts(taint) == parts(own));
    template.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
        && template.annotations.iter().all(|(key, value)| annotations.get(key) == Some(value))
        && template.taints.iter().all(has)
}

#[tokio::test]
async fn converted_machines_become_nodes() {
    let client = CLUSTER.client().await;
    let (classes, nodes) = (Api::<NodeClass>::all(client.clone()), Api::<Node>::all(client));
    let examples = examples();
    assert_eq!(examples.len(), 7);
    for file in &examples {
        let file = file.to_str().unwrap();
        let input = file.replace(".converted.yaml", ".yaml");
        let output = Command::new(env!("CARGO_BIN_EXE_kube-node"))
            .args(["convert", "--file", &input, "--allow-loss"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{input}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, fs::read_to_string(file).unwrap());
        CLUSTER.kubectl(&["apply", "--validate=strict", "--filename", file]);
        for document in serde_norway::Deserializer::from_str(&text) {
            let object = Value::deserialize(document).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap();
            if object["kind"] == "NodeClass" {
                eventually(&format!("{name} is accepted"), LONG, async || {
                    let status = classes.get(name).await.unwrap().status?;
                    let mut conditions = status.conditions.iter();
                    conditions.any(|own| own.type_ == "Accepted" && own.status == "True").then_some(())
                })
                .await;
                continue;
            }
            let set: NodeSet = serde_json::from_value(object.clone()).unwrap();
            let of_set = ListParams::default().labels(&format!("kube-node.io/nodeset={name}"));
            eventually(&format!("the Nodes of {name}"), LONG, async || {
                let nodes = nodes.list(&of_set).await.unwrap().items;
                let is_complete = i32::try_from(nodes.len()).unwrap() == set.spec.replicas;
                (is_complete && nodes.iter().all(|node| is_as_its_template_says(node, &set))).then_some(())
            })
            .await;
        }
    }
    for file in &examples {
        CLUSTER.kubectl(&["delete", "--timeout=120s", "--filename", file.to_str().unwrap()]);
    }
}
