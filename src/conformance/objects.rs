//! What the check makes in the cluster: all of one name, so that it is found and taken away again.

use std::time::Duration;

use kube::Resource;
use kube_node_api::{GoDuration, NodeClass, NodeClassSpec, NodeTemplate, names};
use kube_node_planner::node_builder::ALPHABET;
use rand::seq::IndexedRandom;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Label and annotation of all that a run makes.
pub(super) const KEY: &str = "conformance.kube-node.io/run";
/// Start-up taint of its Nodes: it waits for the run.
pub(super) const STARTUP_TAINT: &str = "conformance.kube-node.io/startup";
/// Taint that the run writes onto Nodes that come: somebody else's, to a controller.
pub(super) const MARK_TAINT: &str = "conformance.kube-node.io/by-hand";
/// Resource by which two revisions of the class differ.
pub(super) const ROLLOUT_RESOURCE: &str = "conformance.kube-node.io/rollout";
/// Condition of the class that is not the controller's.
pub(super) const CONDITION: &str = "conformance.kube-node.io/Watched";
/// The controller of a class that nobody serves.
pub(super) const NOBODY: &str = "nobody.conformance.kube-node.io";
/// How long machines of the run linger.
pub(super) const LINGERS: Duration = Duration::from_secs(5);
/// How long the drain may take in which pods may not be evicted.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// A name that no other run has.
pub(super) fn run_name() -> String {
    let mut rng = rand::rng();
    let suffix = (0..5).filter_map(|_| ALPHABET.choose(&mut rng)).map(|byte| char::from(*byte));
    format!("conformance-{}", suffix.collect::<String>())
}

/// The class of the run: as it was given, with what the run knows its Nodes by, and without failures on purpose.
pub(super) fn class(run: &str, given: &NodeClassSpec) -> NodeClass {
    let mut spec = given.clone();
    let template = spec.template.get_or_insert_with(NodeTemplate::default);
    template.labels.insert(KEY.to_owned(), run.to_owned());
    template.annotations.insert(KEY.to_owned(), run.to_owned());
    template.startup_taints.push(k8s_openapi::api::core::v1::Taint {
        key: STARTUP_TAINT.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Default::default()
    });
    spec.deletion_timeout = Some(GoDuration(LINGERS));
    spec.failures = None;
    let mut class = NodeClass::new(run, spec);
    class.metadata.labels = Some([(KEY.to_owned(), run.to_owned())].into());
    class
}

/// A class of a controller that does not exist.
pub(super) fn class_of_nobody(run: &str) -> Value {
    json!({
        "metadata": {"name": of_nobody(run), "labels": {KEY: run}},
        "spec": {"nodeController": NOBODY, "capacity": {"cpu": "1", "memory": "1Gi", "pods": "10"}},
    })
}

pub(super) fn of_nobody(run: &str) -> String {
    format!("{run}-nobody")
}

/// The set; replacements may all come at once, so that nothing waits for a budget.
pub(super) fn set(run: &str, replicas: i32) -> Value {
    json!({
        "metadata": {"name": run, "labels": {KEY: run}},
        "spec": {"replicas": replicas, "nodeClassName": run, "strategy": {"rollingUpdate": {"maxSurge": "100%"}}},
    })
}

/// A Node written by hand, as NodeSets make theirs; the finalizer where it is to have it from the start.
pub(super) fn node(
    run: &str,
    name: &str,
    class: &str,
    controller: &str,
    revision: &str,
    finalizer: bool,
) -> Value {
    let taint = |effect: &str| json!({"key": names::TAINT_UNINITIALIZED, "effect": effect});
    let finalizers: &[&str] = if finalizer { &[names::FINALIZER_MACHINE] } else { &[] };
    json!({
        "metadata": {
            "name": name,
            "finalizers": finalizers,
            "annotations": {KEY: run},
            "labels": {
                KEY: run,
                "kubernetes.io/hostname": name,
                names::LABEL_NODECLASS: class,
                names::LABEL_NODE_CONTROLLER: controller,
                names::LABEL_REVISION: revision,
            },
        },
        "spec": {"taints": [taint("NoSchedule"), taint("NoExecute")]},
        "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Provisioning",
            "message": "the machine is being made"}]},
    })
}

/// A DaemonSet whose pods run on all Nodes of the run.
pub(super) fn daemons(run: &str, image: &str) -> Value {
    json!({
        "metadata": {"name": "daemons"},
        "spec": {
            "selector": {"matchLabels": {"app": "daemons"}},
            "template": {"metadata": {"labels": {"app": "daemons"}}, "spec": {
                "nodeSelector": {KEY: run},
                "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": image}],
            }},
        },
    })
}

/// Owner of pods that some controller is to stand behind.
pub(super) const OWNER: &str = "owner";

/// A pod that is bound to a Node. `owner`: UID of the ConfigMap that stands for the controller that would make it again.
pub(super) fn pod(name: &str, node: &str, image: &str, owner: Option<&str>) -> Value {
    let owners: Vec<Value> = owner
        .map(|uid| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": OWNER, "uid": uid, "controller": true}))
        .into_iter()
        .collect();
    json!({
        "metadata": {"name": name, "labels": {"app": name}, "ownerReferences": owners},
        "spec": {
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": image}],
        },
    })
}

/// An object written as JSON, without kind and version.
pub(super) fn object<K: Resource<DynamicType = ()> + DeserializeOwned>(
    mut value: Value,
) -> serde_json::Result<K> {
    value["apiVersion"] = json!(K::api_version(&()));
    value["kind"] = json!(K::kind(&()));
    serde_json::from_value(value)
}
