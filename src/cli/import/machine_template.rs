//! Node template: the part of a Node that other Nodes can share (shape, labels and taints). Node-specific and
//! temporary parts are left out and reported.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Node, Taint},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::ResourceExt;
use kube_node_api::{Resources, names, quantity};

use crate::manifest::{TAINTS_MAX, TEXTS_MAX};

/// Number of Nodes from which a label with a different value on each counts as a name.
const NAMES_FROM: usize = 4;
/// Labels that a kubelet or kube-node sets.
const OWN_LABELS: [&str; 7] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    MACHINE_TYPE,
];
/// Key prefixes of labels of Kubernetes itself.
const WELL_KNOWN: [&str; 3] = ["kubernetes.io/", "node.kubernetes.io/", "topology.kubernetes.io/"];
/// Label that becomes the `machineType` of the class.
pub(super) const MACHINE_TYPE: &str = "node.kubernetes.io/instance-type";
/// Key prefixes of taints that reflect the state of a Node.
const PASSING_TAINTS: [&str; 7] = [
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "kube-node.io/",
    names::TAINT_TO_BE_DELETED,
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/unregistered",
];

/// A Node without its individual parts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MachineTemplate {
    pub(super) shape: Shape,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) taints: Vec<Taint>,
}

/// Properties of a machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) machine_type: Option<String>,
    pub(super) kubelet: Option<String>,
    /// Name and version of the container runtime.
    pub(super) runtime: Option<(String, String)>,
    pub(super) capacity: Resources,
    pub(super) allocatable: Resources,
}

/// Templates of all Nodes sorted by name, and a sentence for each part that is left out.
pub(super) fn of_all(nodes: &[Node], unwanted: &[String]) -> (Vec<MachineTemplate>, Vec<String>) {
    let (mut machine_templates, mut omitted) = (Vec::new(), Vec::new());
    let naming = naming_labels(nodes);
    let mut nodes: Vec<&Node> = nodes.iter().collect();
    nodes.sort_by_key(|node| node.metadata.name.as_deref());
    for node in nodes {
        let Some(shape) = Shape::of(node) else {
            omitted.push(format!("Node {} is left out: it has not said what it has", node.name_any()));
            continue;
        };
        let mut labels = node.labels().clone();
        labels.retain(|key, _| {
            if OWN_LABELS.contains(&key.as_str()) || key.starts_with("kube-node.io/") {
                return false;
            }
            let reasons = [
                (naming.contains(key), ": it differs from Node to Node"),
                (unwanted.contains(key), ", as asked"),
                (is_protected(key), ": a NodeClass may not make pods trust its nodes"),
            ];
            let reason = reasons.iter().find(|(holds, _)| *holds);
            omitted.extend(reason.map(|(_, reason)| format!("label {key} is left out{reason}")));
            reason.is_none()
        });
        for key in beyond(&labels) {
            labels.remove(&key);
            omitted.push(format!("label {key} is left out: a NodeSet has at most {TEXTS_MAX}"));
        }
        let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        taints.retain_mut(|taint| {
            taint.time_added = None;
            let is_passing = PASSING_TAINTS.iter().any(|prefix| taint.key.starts_with(prefix));
            if is_passing {
                omitted.push(format!("taint {} is left out: it says how a Node stands just now", taint.key));
            }
            !is_passing
        });
        taints.sort_by(|a, b| (&a.key, &a.effect).cmp(&(&b.key, &b.effect)));
        for taint in taints.drain(taints.len().min(TAINTS_MAX)..) {
            omitted.push(format!("taint {} is left out: a NodeSet has at most {TAINTS_MAX}", taint.key));
        }
        if let Some(system) = foreign_system(node) {
            omitted.push(format!("some Nodes are {system}: hollow ones say what this program runs on"));
        }
        machine_templates.push(MachineTemplate { shape, labels, taints });
    }
    (machine_templates, omitted)
}

/// Labels that are too many for a NodeSet. Those of Kubernetes itself stay, since pods select by them.
fn beyond(labels: &BTreeMap<String, String>) -> Vec<String> {
    let is_own = |key: &str| WELL_KNOWN.iter().any(|prefix| key.starts_with(prefix));
    let (own, others): (Vec<&String>, Vec<&String>) = labels.keys().partition(|key| is_own(key));
    own.into_iter().chain(others).skip(TEXTS_MAX).cloned().collect()
}

/// Returns true for the labels that the admission policy kube-node-protected-labels forbids.
pub(crate) fn is_protected(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    matches!(prefix, "node-role.kubernetes.io" | "node-restriction.kubernetes.io")
        || prefix.ends_with(".node-restriction.kubernetes.io")
}

/// Label keys with a different value on each Node. Topology keys are never such, even with one Node in each zone.
fn naming_labels(nodes: &[Node]) -> BTreeSet<String> {
    let mut values: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for (key, value) in nodes.iter().flat_map(|node| node.metadata.labels.iter().flatten()) {
        let (count, different) = values.entry(key).or_default();
        *count += 1;
        different.insert(value);
    }
    let names = values.into_iter().filter(|(key, (count, different))| {
        *count >= NAMES_FROM && different.len() == *count && !key.starts_with("topology.kubernetes.io/")
    });
    names.map(|(key, _)| key.to_owned()).collect()
}

/// Operating system and architecture of a Node, if hollow nodes of this program would report others.
fn foreign_system(node: &Node) -> Option<String> {
    let info = node.status.as_ref()?.node_info.as_ref()?;
    let ours = kube_node_planner::node_builder::well_known_labels("", None);
    let is_ours =
        ours.get("kubernetes.io/arch") == Some(&info.architecture) && info.operating_system == "linux";
    (!is_ours).then(|| format!("{}/{}", info.operating_system, info.architecture))
}

impl Shape {
    fn of(node: &Node) -> Option<Self> {
        let status = node.status.as_ref()?;
        // Amounts of zero are left out: every Node has zero of other resources.
        let is_some = |amount: &Quantity| quantity::nanos(amount).is_ok_and(|amount| amount > 0);
        let mut capacity = status.capacity.clone().unwrap_or_default();
        capacity.retain(|_, amount| is_some(amount));
        let mut allocatable = status.allocatable.clone().unwrap_or_default();
        allocatable.retain(|name, amount| is_some(amount) && capacity.contains_key(name));
        let info = status.node_info.as_ref();
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let runtime = info.and_then(|info| info.container_runtime_version.split_once("://"));
        let runtime = runtime.filter(|(name, version)| !name.is_empty() && !version.is_empty());
        (!capacity.is_empty()).then(|| Self {
            machine_type: node.labels().get(MACHINE_TYPE).and_then(text),
            kubelet: info.and_then(|info| text(&info.kubelet_version)),
            runtime: runtime.map(|(name, version)| (name.to_owned(), version.to_owned())),
            capacity,
            allocatable,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, change: &Value) -> Node {
        let mut node = json!({
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "pool": "a",
                "topology.kubernetes.io/zone": name, "example.com/machine": name,
                MACHINE_TYPE: "m.large", "kube-node.io/nodeset": "x",
                "node-role.kubernetes.io/worker": "", "a.node-restriction.kubernetes.io/b": "c",
            }},
            "spec": {"taints": [
                {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
                {"key": "gpu", "effect": "NoSchedule"},
            ]},
            "status": {
                "capacity": {"cpu": "4", "memory": "16Gi", "hugepages-1Gi": "0", "pods": "110"},
                "allocatable": {"cpu": "3920m", "memory": "15Gi", "hugepages-1Gi": "0", "pods": "110"},
                "nodeInfo": {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.0",
                    "architecture": "amd64", "operatingSystem": "linux", "bootID": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "machineID": "", "osImage": "", "systemUUID": ""},
            },
        });
        for (key, value) in change.as_object().unwrap() {
            node[key] = value.clone();
        }
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn labels_beyond_the_limit_are_left_out_and_named() {
        let mut labels: BTreeMap<String, String> =
            (0..80).map(|n| (format!("feature.example.com/f{n:02}"), String::new())).collect();
        labels.insert("topology.kubernetes.io/zone".to_owned(), "a".to_owned());
        let (templates, omitted) = of_all(&[node("a", &json!({ "metadata": { "labels": labels } }))], &[]);
        assert_eq!(templates[0].labels.len(), TEXTS_MAX);
        assert!(templates[0].labels.contains_key("topology.kubernetes.io/zone"));
        let omitted: Vec<&String> = omitted.iter().filter(|text| text.starts_with("label ")).collect();
        assert_eq!(omitted.len(), 17);
        assert_eq!(omitted[16], "label feature.example.com/f79 is left out: a NodeSet has at most 64");
    }

    #[test]
    fn what_is_a_nodes_own_stays_behind() {
        let nodes: Vec<Node> = ["a", "b", "c", "d"].map(|name| node(name, &json!({}))).into();
        let (machine_templates, omitted) = of_all(&nodes, &["pool".to_owned()]);
        assert_eq!(machine_templates.len(), 4);
        let machine_template = &machine_templates[1];
        let labels: Vec<&str> = machine_template.labels.keys().map(String::as_str).collect();
        assert_eq!(labels, ["topology.kubernetes.io/zone"]);
        let taints: Vec<&str> = machine_template.taints.iter().map(|taint| taint.key.as_str()).collect();
        assert_eq!(taints, ["gpu"]);
        let shape = &machine_template.shape;
        assert_eq!(shape.machine_type.as_deref(), Some("m.large"));
        assert_eq!(shape.runtime, Some(("containerd".to_owned(), "2.1.0".to_owned())));
        assert!(!shape.capacity.contains_key("hugepages-1Gi"));
        let said: BTreeSet<String> = omitted.into_iter().collect();
        assert_eq!(
            said.into_iter().collect::<Vec<_>>(),
            [
                "label a.node-restriction.kubernetes.io/b is left out: a NodeClass may not make pods trust its nodes",
                "label example.com/machine is left out: it differs from Node to Node",
                "label node-role.kubernetes.io/worker is left out: a NodeClass may not make pods trust its nodes",
                "label pool is left out, as asked",
                "taint node.kubernetes.io/not-ready is left out: it says how a Node stands just now",
            ]
        );
        // Three Nodes are too few to decide.
        assert!(of_all(&nodes[..3], &[]).0[0].labels.contains_key("example.com/machine"));
    }

    #[test]
    fn who_says_nothing_or_something_else_is_named() {
        let mut foreign = node("a", &json!({}));
        foreign.status.as_mut().unwrap().node_info.as_mut().unwrap().operating_system = "windows".to_owned();
        let (machine_templates, omitted) = of_all(&[foreign, node("b", &json!({"status": {}}))], &[]);
        assert_eq!(machine_templates.len(), 1);
        assert!(omitted.iter().any(|text| text.starts_with("some Nodes are windows/amd64: ")));
        assert!(omitted.iter().any(|text| text.starts_with("Node b is left out: ")));
    }
}
