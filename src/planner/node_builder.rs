//! Builder of Node objects: all fields that a kubelet does not set on a Node that exists already.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use k8s_pb::{
    api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, Taint as PbTaint},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use kube_node_api::{ARCHITECTURE, generated_name, names, taints::startup_record};

use super::{
    revision::ResolvedMachine,
    taints,
    template::{DesiredTemplate, same},
};

/// Annotation by which kube-controller-manager's ttl controller tells kubelets how long to cache. It changes on each Node as
/// the cluster grows, and no decision depends on it.
pub const ANNOTATION_TTL: &str = "node.alpha.kubernetes.io/ttl";

/// Reason of the Ready condition until a kubelet reports.
pub const PROVISIONING: &str = "Provisioning";

/// Sources of a set's Nodes.
#[derive(Clone, Copy, Debug)]
pub struct Blueprint<'a> {
    /// Name of the set.
    pub set: &'a str,
    /// Name of the class.
    pub class: &'a str,
    /// Revision of the machines.
    pub revision: &'a str,
    /// Specification of the machines.
    pub machine: &'a ResolvedMachine,
    /// Merged templates of class and set.
    pub template: &'a DesiredTemplate,
}

/// Identity and origin of a Node.
#[derive(Clone, Debug)]
pub struct NodeOrigin<'a> {
    /// Name of the Node.
    pub name: &'a str,
    /// Sources of the Node.
    pub blueprint: Blueprint<'a>,
    /// `spec.providerID`, if known at creation.
    pub provider_id: Option<String>,
    /// API version of the NodeSet, which owns the Node.
    pub owner_api_version: &'a str,
    /// UID of the NodeSet.
    pub owner_uid: &'a str,
    /// `spec.podCIDR`, if allocated at creation.
    pub pod_cidr: Option<String>,
    /// Number of Nodes in the cluster.
    pub cluster_size: usize,
}

/// A new Node name of a set; `pick` returns a random number below its argument.
pub fn name(set: &str, mut pick: impl FnMut(usize) -> usize) -> String {
    let suffix = (0..generated_name::LENGTH)
        .filter_map(|_| generated_name::ALPHABET.get(pick(generated_name::ALPHABET.len())))
        .map(|byte| char::from(*byte));
    format!("{set}-{}", suffix.collect::<String>())
}

/// The object to create, in the form that is cheapest for the API server: Nodes are created by the thousand.
///
/// The Node has Ready=False and no allocatable resources yet: the node lifecycle controller treats a Node
/// *without* a Ready condition as able to take pods.
pub fn node(origin: NodeOrigin<'_>, now: Timestamp) -> Node {
    let NodeOrigin { name, blueprint, .. } = origin;
    let Blueprint { set, template: desired, .. } = blueprint;
    let labels = labels(name, blueprint);
    let mut annotations = desired.annotations.clone();
    // With the right value for the cluster size, the ttl controller has nothing to write.
    annotations.insert(ANNOTATION_TTL.to_owned(), ttl_seconds(origin.cluster_size).to_string());
    let startup = startup_record(&desired.startup_taints);
    annotations.extend(startup.map(|record| (names::ANNOTATION_STARTUP_TAINTS.to_owned(), record)));
    annotations.extend(desired.record().map(|record| (names::ANNOTATION_APPLIED.to_owned(), record)));
    let mut taints = taints::at_birth();
    for taint in desired.startup_taints.iter().chain(&desired.taints) {
        // The API server refuses two taints of the same key and effect.
        if !taints.iter().any(|own| same(own, taint)) {
            taints.push(taint.clone());
        }
    }
    Node {
        metadata: Some(ObjectMeta {
            name: Some(name.to_owned()),
            labels,
            annotations,
            finalizers: vec![names::FINALIZER_MACHINE.to_owned()],
            owner_references: vec![OwnerReference {
                api_version: Some(origin.owner_api_version.to_owned()),
                kind: Some("NodeSet".to_owned()),
                name: Some(set.to_owned()),
                uid: Some(origin.owner_uid.to_owned()),
                controller: Some(true),
                block_owner_deletion: None,
            }],
            ..ObjectMeta::default()
        }),
        spec: Some(NodeSpec {
            provider_id: origin.provider_id,
            pod_cid_rs: origin.pod_cidr.clone().into_iter().collect(),
            pod_cidr: origin.pod_cidr,
            taints: taints.into_iter().map(encoded).collect(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            conditions: vec![ready("False", PROVISIONING, Some("the machine is being made"), now)],
            ..NodeStatus::default()
        }),
    }
}

/// All labels of a Node: those of the template, of a kubelet and ours.
pub(super) fn labels(name: &str, blueprint: Blueprint<'_>) -> BTreeMap<String, String> {
    let Blueprint { set, class, revision, machine, template } = blueprint;
    let mut labels = well_known_labels(name, machine.machine_type.as_deref());
    for kind in ["arch", "os"] {
        // A kubelet sets both labels; a template names one of them.
        if let Some(value) = template.labels.get(&format!("kubernetes.io/{kind}")) {
            labels.insert(format!("beta.kubernetes.io/{kind}"), value.clone());
        }
    }
    labels.extend(template.labels.clone());
    let owned = [
        (names::LABEL_NODESET, set),
        (names::LABEL_NODECLASS, class),
        (names::LABEL_REVISION, revision),
        (names::LABEL_NODE_CONTROLLER, machine.node_controller.as_str()),
    ];
    let hosts = machine.hosts().map(|hosts| (names::LABEL_HOLLOW_HOSTS, hosts));
    let load = machine.load().map(|load| (names::LABEL_HOLLOW_LOAD, load));
    labels.extend(
        owned.into_iter().chain(hosts).chain(load).map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    labels
}

pub(super) fn encoded(Taint { key, value, effect, time_added }: Taint) -> PbTaint {
    PbTaint { key: Some(key), value, effect: Some(effect), time_added: time_added.map(|time| at(time.0)) }
}

pub(super) fn at(time: Timestamp) -> Time {
    Time { seconds: Some(time.as_second()), nanos: Some(0) }
}

/// Ready condition since `now`.
pub(super) fn ready(status: &str, reason: &str, message: Option<&str>, now: Timestamp) -> NodeCondition {
    NodeCondition {
        r#type: Some("Ready".to_owned()),
        status: Some(status.to_owned()),
        reason: Some(reason.to_owned()),
        message: message.map(str::to_owned),
        last_heartbeat_time: Some(at(now)),
        last_transition_time: Some(at(now)),
    }
}

/// Labels that a kubelet sets when it registers its Node itself.
pub fn well_known_labels(node: &str, machine_type: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for prefix in ["kubernetes.io", "beta.kubernetes.io"] {
        labels.insert(format!("{prefix}/arch"), ARCHITECTURE.to_owned());
        labels.insert(format!("{prefix}/os"), "linux".to_owned());
    }
    labels.insert("kubernetes.io/hostname".to_owned(), node.to_owned());
    if let Some(machine_type) = machine_type {
        labels.insert("node.kubernetes.io/instance-type".to_owned(), machine_type.to_owned());
    }
    labels
}

/// Values of kube-controller-manager's ttl controller (pkg/controller/ttl in Kubernetes 1.36).
fn ttl_seconds(cluster_size: usize) -> u32 {
    match cluster_size {
        0..=100 => 0,
        101..=500 => 15,
        501..=1_000 => 30,
        1_001..=2_000 => 60,
        _ => 300,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_node_api::NodeTemplate;

    fn origin<'a>(machine: &'a ResolvedMachine, template: &'a DesiredTemplate) -> NodeOrigin<'a> {
        NodeOrigin {
            name: "workers-abc234",
            blueprint: Blueprint { set: "workers", class: "medium", revision: "v1-0", machine, template },
            provider_id: Some("hollow://workers-abc234".to_owned()),
            owner_api_version: "kube-node.io/v1alpha1",
            owner_uid: "u",
            pod_cidr: Some("10.128.7.0/24".to_owned()),
            cluster_size: 1_500,
        }
    }

    #[test]
    fn a_newborn_takes_no_pods_and_carries_its_templates() {
        let template: NodeTemplate = serde_json::from_value(serde_json::json!({
            "labels": {"zone": "a", "kubernetes.io/hostname": "mine", "kubernetes.io/arch": "s390x"},
            "annotations": {"note": "x"},
            "taints": [{"key": "t", "effect": "NoSchedule"}],
            "startupTaints": [{"key": "t", "effect": "NoSchedule", "value": "start"}, {"key": "cni", "effect": "NoExecute"}]
        }))
        .unwrap();
        let machine: ResolvedMachine = serde_json::from_value(serde_json::json!({
            "nodeController": "hollow", "machineType": "m.medium", "hollow": {"hosts": "big", "load": "Kubelet"},
        }))
        .unwrap();
        let template = DesiredTemplate::merge(Some(&template), None);
        let node = node(origin(&machine, &template), Timestamp::UNIX_EPOCH);
        let metadata = node.metadata.unwrap();
        let labels = metadata.labels;
        assert_eq!(labels["zone"], "a");
        assert_eq!(labels["kubernetes.io/hostname"], "workers-abc234", "a template does not rename the host");
        for (label, value) in [("arch", "s390x"), ("os", "linux")] {
            assert_eq!(labels[&format!("kubernetes.io/{label}")], value);
            assert_eq!(labels[&format!("beta.kubernetes.io/{label}")], value);
        }
        assert_eq!(labels[names::LABEL_REVISION], "v1-0");
        assert_eq!(labels[names::LABEL_HOLLOW_HOSTS], "big");
        assert_eq!(labels[names::LABEL_HOLLOW_LOAD], "Kubelet");
        let annotations = metadata.annotations;
        assert_eq!(annotations[ANNOTATION_TTL], "60");
        assert!(annotations[names::ANNOTATION_APPLIED].contains("zone"));
        assert_eq!(annotations[names::ANNOTATION_STARTUP_TAINTS], "t:NoSchedule,cni:NoExecute");
        let spec = node.spec.unwrap();
        assert_eq!(
            (spec.pod_cidr(), &*spec.pod_cid_rs),
            ("10.128.7.0/24", &["10.128.7.0/24".to_owned()][..])
        );
        let taints: Vec<_> =
            spec.taints.into_iter().map(|taint| (taint.key.unwrap(), taint.effect.unwrap())).collect();
        let pair = |key: &str, effect: &str| (key.to_owned(), effect.to_owned());
        assert_eq!(
            taints,
            [
                pair(names::TAINT_UNINITIALIZED, "NoSchedule"),
                pair(names::TAINT_UNINITIALIZED, "NoExecute"),
                pair("t", "NoSchedule"),
                pair("cni", "NoExecute")
            ]
        );
        let status = node.status.unwrap();
        assert!(status.allocatable.is_empty());
        assert_eq!(status.conditions[0].status(), "False");
    }

    #[test]
    fn names_fit_the_longest_set() {
        let mut turn = 0;
        let name = name(&"s".repeat(56), |below| {
            turn += 1;
            turn % below
        });
        assert_eq!(name.len(), 63);
        assert!(name.ends_with("-cdfghj"), "{name}");
    }
}
