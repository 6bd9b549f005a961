//! Objects that a test run creates. All share one name, so that they are found and deleted again.

use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use kube_node_api::{GoDuration, NodeClass, NodeClassSpec, NodeTemplate, generated_name::ALPHABET, names};
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

/// Label and annotation of all objects of a test run.
pub(super) const KEY: &str = "conformance.kube-node.io/run";
/// Start-up taint of its Nodes, which the test run removes.
pub(super) const STARTUP_TAINT: &str = "conformance.kube-node.io/startup";
/// Taint that the test run adds to new Nodes; to the controller it is a foreign taint.
pub(super) const MARK_TAINT: &str = "conformance.kube-node.io/by-hand";
/// Resource that only the second revision of the class has.
pub(super) const ROLLOUT_RESOURCE: &str = "conformance.kube-node.io/rollout";
/// Condition of the class that another field manager owns.
pub(super) const CONDITION: &str = "conformance.kube-node.io/Watched";
/// Name of a NodeController that does not exist.
pub(super) const NOBODY: &str = "nobody.conformance.kube-node.io";
/// `deletionTimeout` of the class. Short, since each Node that a rollout replaces lingers for so long.
pub(super) const LINGERS: Duration = Duration::from_secs(5);

/// A unique name for a test run.
pub(super) fn run_name() -> String {
    let mut rng = rand::rng();
    let suffix = (0..5).filter_map(|_| ALPHABET.choose(&mut rng)).map(|byte| char::from(*byte));
    format!("conformance-{}", suffix.collect::<String>())
}

/// The class of the test run: the given spec with a label, an annotation and a start-up taint for its Nodes,
/// without fault injection.
pub(super) fn class(run: &str, given: &NodeClassSpec) -> NodeClass {
    let mut spec = given.clone();
    let template = spec.template.get_or_insert_with(NodeTemplate::default);
    template.labels.insert(KEY.to_owned(), run.to_owned());
    template.annotations.insert(KEY.to_owned(), run.to_owned());
    let (key, effect) = (STARTUP_TAINT.to_owned(), "NoSchedule".to_owned());
    template.startup_taints.push(Taint { key, effect, ..Taint::default() });
    spec.deletion_timeout = Some(GoDuration(LINGERS));
    spec.failures = None;
    let mut class = NodeClass::new(run, spec);
    class.metadata.labels = Some([(KEY.to_owned(), run.to_owned())].into());
    class
}

/// A class of a NodeController that does not exist.
pub(super) fn class_of_nobody(run: &str) -> Value {
    json!({
        "metadata": {"name": of_nobody(run), "labels": {KEY: run}},
        "spec": {"nodeController": NOBODY, "capacity": {"cpu": "1", "memory": "1Gi", "pods": "10"}},
    })
}

pub(super) fn of_nobody(run: &str) -> String {
    format!("{run}-nobody")
}

/// The NodeSet. It may replace all Nodes at once, so that no check waits for the budget.
pub(super) fn set(run: &str, replicas: i32) -> Value {
    json!({
        "metadata": {"name": run, "labels": {KEY: run}},
        "spec": {"replicas": replicas, "nodeClassName": run, "strategy": {"rollingUpdate": {"maxSurge": "100%"}}},
    })
}

/// A Node written by hand as NodeSets create theirs, with our finalizer if `finalizer` is true.
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

/// A DaemonSet whose pods run on all Nodes of the test run.
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

/// Name of the ConfigMap that owns pods which need a controller.
pub(super) const OWNER: &str = "owner";

/// A pod bound to a Node. `owner` is the UID of a ConfigMap that stands for the pod's controller.
pub(super) fn pod(name: &str, node: &str, image: &str, owner: Option<&str>) -> Value {
    let reference =
        |uid| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": OWNER, "uid": uid, "controller": true});
    let owners: Vec<Value> = owner.map(reference).into_iter().collect();
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
