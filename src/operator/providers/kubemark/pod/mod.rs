//! Builds the pod of a machine from the machine spec. No I/O.
//!
//! Our own image runs the hollow kubelet alone. Upstream kubemark runs beside a kubemark proxy from our
//! image, which holds the machine's identity and does what an unpatched kubemark cannot: see [`machine_agent::kubemark_proxy`].

mod containers;
mod volumes;

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{
        Affinity, LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement,
        NodeSelectorTerm, Pod, PodSecurityContext, PodSpec, SeccompProfile, Secret,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube_node_api::{KubemarkMachine, LocalRef, names};
use kube_node_planner::revision;
use machine_agent::machine_dir;

use crate::providers::MachineId;

/// Container with the hollow kubelet.
pub const CONTAINER: &str = "hollow-kubelet";
/// Key in the Secret: bootstrap kubeconfig of the machine.
pub const KEY_BOOTSTRAP: &str = machine_dir::BOOTSTRAP;
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
#[must_use]
pub fn name(id: &MachineId) -> String {
    let uid: String = id.uid.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    format!("{}-{uid}", id.node)
}

/// Labels of pod and Secret.
#[must_use]
pub fn labels(id: &MachineId, cluster: &str) -> BTreeMap<String, String> {
    [("name", "hollow-node"), (names::LABEL_CLUSTER, cluster), (names::LABEL_NODE_UID, &*id.uid)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The Secret of a machine.
#[must_use]
pub fn secret(
    id: &MachineId,
    cluster: &str,
    bootstrap: String,
    files: impl IntoIterator<Item = (String, Vec<u8>)>,
) -> Secret {
    let mut data: BTreeMap<String, ByteString> =
        files.into_iter().map(|(key, content)| (key, ByteString(content))).collect();
    data.insert(KEY_BOOTSTRAP.to_owned(), ByteString(bootstrap.into_bytes()));
    data.insert(KEY_PROXY_KUBECONFIG.to_owned(), ByteString(proxy_kubeconfig().into_bytes()));
    Secret { metadata: metadata(id, cluster), data: Some(data), ..Secret::default() }
}

fn metadata(id: &MachineId, cluster: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name(id)),
        namespace: Some(names::MACHINE_NAMESPACE.to_owned()),
        labels: Some(labels(id, cluster)),
        annotations: Some(BTreeMap::from([(names::ANNOTATION_NODE.to_owned(), id.node.to_string())])),
        ..ObjectMeta::default()
    }
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
#[must_use]
pub fn pod(blueprint: &Blueprint<'_>, files: &[File]) -> Pod {
    let Blueprint { id, cluster, machine, .. } = blueprint;
    let default = KubemarkMachine::default();
    let settings = machine.kubemark.as_ref().unwrap_or(&default);
    let mut metadata = metadata(id, cluster);
    metadata.annotations.get_or_insert_default().extend([
        (names::ANNOTATION_MACHINE.to_owned(), blueprint.shape.to_owned()),
        (names::ANNOTATION_SETTINGS.to_owned(), blueprint.settings.to_owned()),
    ]);
    let (main, proxy) = match &settings.image {
        None => (containers::own(blueprint, settings, files), None),
        Some(image) => {
            (containers::upstream(blueprint, settings, image, files), Some(containers::proxy(blueprint)))
        }
    };
    // Runs before the proxy: its failure is reported before anything else starts.
    let carrier = (!files.is_empty()).then(|| containers::carrier(blueprint, files));
    Pod {
        metadata,
        spec: Some(PodSpec {
            init_containers: Some(carrier.into_iter().chain(proxy).collect()),
            containers: vec![main],
            volumes: Some(volumes::all(id, files)),
            restart_policy: Some("Always".to_owned()),
            termination_grace_period_seconds: Some(GRACE),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            node_selector: (!settings.node_selector.is_empty()).then(|| settings.node_selector.clone()),
            tolerations: (!settings.tolerations.is_empty()).then(|| settings.tolerations.clone()),
            affinity: Some(away_from_hollow_nodes(settings.affinity.clone().unwrap_or_default())),
            image_pull_secrets: pull_secrets(&settings.image_pull_secrets),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

fn pull_secrets(secrets: &[LocalRef]) -> Option<Vec<LocalObjectReference>> {
    let named = |secret: &LocalRef| LocalObjectReference { name: secret.name.clone() };
    (!secrets.is_empty()).then(|| secrets.iter().map(named).collect())
}

/// Keeps the pod off hollow Nodes, which would report it as running and run nothing.
fn away_from_hollow_nodes(mut affinity: Affinity) -> Affinity {
    let real = NodeSelectorRequirement {
        key: names::LABEL_NODECLASS.to_owned(),
        operator: "DoesNotExist".to_owned(),
        values: None,
    };
    let node = affinity.node_affinity.get_or_insert_with(NodeAffinity::default);
    let required =
        node.required_during_scheduling_ignored_during_execution.get_or_insert_with(NodeSelector::default);
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
