//! Builds the pod of a machine from the machine spec. No I/O.
//!
//! Our own image runs the hollow kubelet alone. Upstream kubemark runs beside a kubemark proxy from our
//! image, which holds the machine's identity and does what an unpatched kubemark cannot: see `kubemark_proxy` in `src/machine-agent`.
//!
//! A manifest is written as JSON, as Kubernetes documents it. Tests check that the types of the API know each field.

mod containers;

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{Affinity, NodeSelectorRequirement, NodeSelectorTerm, Pod, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube_node_api::{KubemarkMachine, machine_files, names};
use kube_node_planner::revision;
use serde_json::{Value, json};

use crate::provider::MachineId;

/// Container with the hollow kubelet.
pub const CONTAINER: &str = "hollow-kubelet";
/// Key in the Secret: bootstrap kubeconfig of the machine.
pub const KEY_BOOTSTRAP: &str = machine_files::BOOTSTRAP;
/// Key in the Secret: kubeconfig by which an upstream kubemark reaches the proxy.
const KEY_PROXY_KUBECONFIG: &str = "kubeconfig";

/// Listen address of the kubemark proxy.
const PROXY_ADDRESS: &str = "127.0.0.1:6444";
/// User of all containers: no image needs root.
pub const USER: i64 = 65_532;
/// Grace period of a machine's pod, in seconds.
const GRACE: i64 = 5;

/// Inputs of a pod.
#[derive(Clone, Debug)]
pub struct Blueprint<'a> {
    /// Identity of the machine.
    pub id: &'a MachineId,
    /// UID of the cluster that has the Nodes.
    pub cluster: &'a str,
    /// Machine spec: the content of the revision.
    pub machine: &'a revision::ResolvedMachine,
    /// Our own image.
    pub own_image: &'a str,
    /// Content of `machine.json`.
    pub shape: &'a str,
    /// Content of `settings.json`.
    pub settings: &'a str,
}

/// A file of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Key in the Secret.
    pub key: String,
    /// Path in the machine.
    pub path: String,
    /// Mode.
    pub mode: i32,
    /// User and group.
    pub owner: (i64, i64),
}

/// Name of pod and Secret: the same for the same Node, another for a later Node of the same name.
pub fn name(id: &MachineId) -> String {
    let uid: String = id.uid.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    format!("{}-{uid}", id.node)
}

/// Labels of pod and Secret.
fn labels(id: &MachineId, cluster: &str) -> BTreeMap<String, String> {
    [("name", "hollow-node"), (names::LABEL_CLUSTER, cluster), (names::LABEL_NODE_UID, &*id.uid)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The Secret of a machine.
pub fn secret(
    id: &MachineId,
    cluster: &str,
    bootstrap: String,
    files: impl IntoIterator<Item = (String, Vec<u8>)>,
) -> Secret {
    let own = [(KEY_BOOTSTRAP, bootstrap), (KEY_PROXY_KUBECONFIG, proxy_kubeconfig())];
    let own = own.map(|(key, text)| (key.to_owned(), text.into_bytes()));
    let data = files.into_iter().chain(own).map(|(key, content)| (key, ByteString(content))).collect();
    let metadata = ObjectMeta {
        name: Some(name(id)),
        labels: Some(labels(id, cluster)),
        annotations: Some(BTreeMap::from([(names::ANNOTATION_NODE.to_owned(), id.node.to_string())])),
        ..ObjectMeta::default()
    };
    Secret { metadata, data: Some(data), ..Secret::default() }
}

/// Kubeconfig without a credential: the kubemark proxy has it.
fn proxy_kubeconfig() -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: kubemark-proxy\n  cluster: {{server: \"http://{PROXY_ADDRESS}\"}}\n\
         contexts:\n- name: kubemark-proxy\n  context: {{cluster: kubemark-proxy, user: nobody}}\nusers:\n- name: nobody\n  user: {{}}\n\
         current-context: kubemark-proxy\n"
    )
}

/// The pod of a machine.
pub fn pod(blueprint: &Blueprint<'_>, files: &[File]) -> serde_json::Result<Pod> {
    serde_json::from_value(manifest(blueprint, files))
}

fn manifest(blueprint: &Blueprint<'_>, files: &[File]) -> Value {
    let Blueprint { id, cluster, machine, .. } = blueprint;
    let default = KubemarkMachine::default();
    let settings = machine.kubemark.as_ref().unwrap_or(&default);
    // The files are installed before the proxy starts: a failure is reported before anything else runs.
    let mut init_containers = Vec::new();
    if !files.is_empty() {
        init_containers.push(containers::install_files(blueprint, files));
    }
    let main = match &settings.image {
        None => containers::own(blueprint, settings, files),
        Some(image) => {
            init_containers.push(containers::proxy(blueprint));
            containers::upstream(blueprint, settings, image, files)
        }
    };
    json!({
        "metadata": {
            "name": name(id),
            "labels": labels(id, cluster),
            "annotations": {
                names::ANNOTATION_NODE: &*id.node,
                names::ANNOTATION_MACHINE: blueprint.shape,
                names::ANNOTATION_SETTINGS: blueprint.settings,
            },
        },
        "spec": {
            "initContainers": init_containers,
            "containers": [main],
            "volumes": volumes(id, files),
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": GRACE,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "nodeSelector": settings.node_selector,
            "tolerations": settings.tolerations,
            "affinity": away_from_hollow_nodes(settings.affinity.clone().unwrap_or_default()),
            "imagePullSecrets": settings.image_pull_secrets,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
        },
    })
}

fn volumes(id: &MachineId, files: &[File]) -> Value {
    let item = |key: &str| json!({ "key": key, "path": key });
    let annotation = |key: &str, path: &str| json!({ "path": path, "fieldRef": { "fieldPath": format!("metadata.annotations['{key}']") } });
    // In memory: keys never touch a disk.
    let memory = |limit: &str| json!({ "medium": "Memory", "sizeLimit": limit });
    let input = json!([
        { "secret": { "name": name(id), "items": [item(KEY_BOOTSTRAP), item(KEY_PROXY_KUBECONFIG)] } },
        { "downwardAPI": { "items": [
            annotation(names::ANNOTATION_MACHINE, machine_files::MACHINE),
            annotation(names::ANNOTATION_SETTINGS, machine_files::SETTINGS),
        ] } },
    ]);
    let mut volumes = vec![
        json!({ "name": "machine", "projected": { "defaultMode": 0o440, "sources": input } }),
        json!({ "name": "state", "emptyDir": memory("1Mi") }),
        json!({ "name": "tmp", "emptyDir": {} }),
    ];
    if !files.is_empty() {
        let items: Vec<_> = files.iter().map(|file| item(&file.key)).collect();
        let secret = json!({ "secretName": name(id), "items": items, "defaultMode": 0o440 });
        volumes.push(json!({ "name": "secret-files", "secret": secret }));
        volumes.push(json!({ "name": "files", "emptyDir": memory("4Mi") }));
    }
    Value::Array(volumes)
}

/// Keeps the pod off hollow Nodes, which would report it as running and run nothing.
fn away_from_hollow_nodes(mut affinity: Affinity) -> Affinity {
    let real = NodeSelectorRequirement {
        key: names::LABEL_NODECLASS.to_owned(),
        operator: "DoesNotExist".to_owned(),
        values: None,
    };
    let node = affinity.node_affinity.get_or_insert_default();
    let required = node.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_expressions.get_or_insert_default().push(real.clone());
    }
    affinity
}

#[cfg(test)]
mod tests;
