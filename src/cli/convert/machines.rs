//! Rules for Machines, MachineSets and MachineDeployments: what becomes of them in a NodeSet and its NodeClass. No I/O.
//!
//! The NodeSet stands for the set, and the Node for the Machine, so labels and annotations of Machines become those of Nodes.

use serde_json::{Value, json};

use super::{
    document::{Document, Kind},
    ledger::{Ledger, Outcome, Path},
    values::{
        count, flag, kubelet_version, number_or_percentage, refused_label, refused_on_nodes, refused_taint,
        scale_down_order, seconds, strategy_type, text, written_count,
    },
};

/// A place in the document, the place in the NodeSet, and the reader of the value.
pub(super) type Rule = (&'static str, &'static str, fn(&Value) -> Outcome);

/// Seconds of a day and of a week, the limits of the schema.
const DAY: u64 = 24 * 60 * 60;
const WEEK: u64 = 7 * DAY;

pub(super) const SET_RULES: [Rule; 2] = [
    ("spec.replicas", "spec.replicas", |value| count(value, 0..=100_000)),
    ("spec.minReadySeconds", "spec.minReadyTime", |value| seconds(value, 0..=DAY)),
];
pub(super) const MACHINE_SET_RULES: [Rule; 1] =
    [("spec.deletePolicy", "spec.scaleDown.order", scale_down_order)];
pub(super) const MACHINE_DEPLOYMENT_RULES: [Rule; 6] = [
    ("spec.strategy.type", "spec.strategy.type", strategy_type),
    ("spec.strategy.rollingUpdate.maxSurge", "spec.strategy.rollingUpdate.maxSurge", number_or_percentage),
    (
        "spec.strategy.rollingUpdate.maxUnavailable",
        "spec.strategy.rollingUpdate.maxUnavailable",
        number_or_percentage,
    ),
    ("spec.progressDeadlineSeconds", "spec.progressDeadline", |value| seconds(value, 1..=WEEK)),
    ("spec.revisionHistoryLimit", "spec.revisionHistoryLimit", |value| count(value, 0..=1_000)),
    ("spec.paused", "spec.paused", flag),
];

/// Fields of metadata that API servers write, and the namespace: a NodeSet has none.
const LEFT_OUT: [&str; 7] =
    ["creationTimestamp", "generation", "managedFields", "namespace", "resourceVersion", "selfLink", "uid"];
/// Annotations that kubectl and controllers write about an object.
const LEFT_OUT_ANNOTATIONS: [&str; 5] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "machine.openshift.io/instance-state",
    "machinedeployment.clusters.k8s.io/desired-replicas",
    "machinedeployment.clusters.k8s.io/max-replicas",
    "machinedeployment.clusters.k8s.io/revision",
];
/// Label that the controller of MachineDeployments adds to its MachineSets and their Machines.
const TEMPLATE_HASH: &str = "machine-template-hash";
/// API groups of Machines. Their controllers add finalizers and read annotations.
const GROUPS: [&str; 2] = ["cluster.k8s.io", "machine.openshift.io"];
/// Names, behind any prefix, of the annotations that make a set a node group of cluster-autoscaler.
const MIN_SIZE: &str = "cluster-api-autoscaler-node-group-min-size";
const MAX_SIZE: &str = "cluster-api-autoscaler-node-group-max-size";

/// Places all of a document but its provider configuration in a NodeSet and its class.
pub(super) fn convert(document: &Document, ledger: &mut Ledger, set: &mut Value, class: &mut Value) {
    let root = Path::default();
    let machine = document.kind.machine();
    let is_machine = document.kind == Kind::Machine;
    object(document, ledger);
    of_name(ledger, set);
    let rules = match document.kind {
        Kind::MachineSet => [&SET_RULES[..], &MACHINE_SET_RULES].concat(),
        Kind::MachineDeployment => [&SET_RULES[..], &MACHINE_DEPLOYMENT_RULES].concat(),
        _ => Vec::new(),
    };
    for (from, to, read) in rules {
        ledger.place(&root.at(from), set, to, read);
    }
    if is_machine {
        set["spec"]["replicas"] = json!(1);
        ledger.leave_out(&machine.at("providerID"));
    } else {
        autoscaling(ledger, set);
        of_set(ledger, set);
    }
    if document.kind == Kind::MachineSet {
        // A MachineSet never replaces a Machine because of its template.
        set["spec"]["strategy"]["type"] = json!("OnDelete");
    }
    // A Node had the labels of `spec.metadata`, so those take precedence over labels of its Machine.
    for metadata in [machine.at("metadata"), document.kind.machine_metadata()] {
        of_nodes(ledger, set, &metadata);
    }
    taints(ledger, set, &machine.at("taints"));
    if !is_machine {
        selector(ledger, set);
    }
    ledger.place(
        &machine.at("versions.kubelet"),
        class,
        "spec.provisioning.kubelet.version",
        kubelet_version,
    );
}

/// Compares a document with its owner, whose NodeSet stands for both. Differences stay open.
pub(super) fn compare(document: &Document, owner: &Document, ledger: &mut Ledger) {
    let root = Path::default();
    object(document, ledger);
    if let Some(name) = document.leaves.get(&root.at("metadata.name")) {
        // The note about objects with an owner has the name.
        ledger.same(&root.at("metadata.name"), name);
    }
    ledger.leave_out(&root.at("metadata.generateName"));
    ledger.leave_out(&root.at("metadata.ownerReferences"));
    ledger.leave_out(&document.kind.machine().at("providerID"));
    for labels in [
        "metadata.labels",
        "spec.selector.matchLabels",
        "spec.template.metadata.labels",
        "spec.template.spec.metadata.labels",
    ] {
        ledger.leave_out(&root.at(labels).key(TEMPLATE_HASH));
    }
    let metadata = owner.kind.machine_metadata();
    for field in ["labels", "annotations"] {
        ledger.same_below(&root.at("metadata").at(field), &owner.leaves, &metadata.at(field));
    }
    let (own, owners) = match document.kind {
        Kind::Machine => (document.kind.machine(), owner.kind.machine()),
        _ => (root.at("spec"), root.at("spec")),
    };
    ledger.same_below(&own, &owner.leaves, &owners);
    for path in document.leaves.keys() {
        ledger.refuse(path, format!("{} has another value or none", owner.subject));
    }
}

/// Closes what a list has besides its items.
pub(super) fn of_list(document: &Document, ledger: &mut Ledger) {
    recognized(document, ledger);
    left_out(ledger, &Path::default().at("metadata"));
    ledger.enter(&Path::default().at("items"));
}

/// Closes kind and API version, by which the document was recognized.
fn recognized(document: &Document, ledger: &mut Ledger) {
    for path in ["apiVersion", "kind"].map(|field| Path::default().at(field)) {
        if let Some(value) = document.leaves.get(&path) {
            ledger.same(&path, value);
        }
    }
}

/// Closes what every object has: its kind, and what servers and controllers write.
fn object(document: &Document, ledger: &mut Ledger) {
    let root = Path::default();
    recognized(document, ledger);
    ledger.leave_out(&root.at("status"));
    let (machine, template) = (document.kind.machine(), document.kind.machine_metadata());
    for metadata in [root.at("metadata"), template, machine.at("metadata")] {
        left_out(ledger, &metadata);
    }
    ledger.enter(&machine.at("lifecycleHooks"));
}

/// Leaves out what servers and controllers write into metadata.
pub(super) fn left_out(ledger: &mut Ledger, metadata: &Path) {
    ledger.enter(metadata);
    for field in LEFT_OUT {
        ledger.leave_out(&metadata.at(field));
    }
    let annotations = metadata.at("annotations");
    for key in LEFT_OUT_ANNOTATIONS {
        ledger.leave_out(&annotations.key(key));
    }
    ledger.enter(&annotations);
    ledger.enter(&metadata.at("labels"));
    let finalizers = metadata.at("finalizers");
    for finalizer in (0..ledger.items(&finalizers)).map(|at| finalizers.item(at)) {
        let is_of_controller = |text: &str| GROUPS.iter().any(|group| text.contains(group));
        if ledger.get(&finalizer).and_then(Value::as_str).is_some_and(is_of_controller) {
            ledger.leave_out(&finalizer);
        }
    }
    let owners = metadata.at("ownerReferences");
    for owner in (0..ledger.items(&owners)).map(|at| owners.item(at)) {
        ledger.refuse(&owner, "convert the owner as well, in the same file");
    }
}

/// The name; a prefix of generated names is a prefix of the name, as of those of Nodes.
pub(super) fn of_name(ledger: &mut Ledger, object: &Value) {
    let (name, generated) =
        (Path::default().at("metadata.name"), Path::default().at("metadata.generateName"));
    let own = object["metadata"]["name"].as_str().unwrap_or_default();
    let text = |ledger: &Ledger, path: &Path| ledger.get(path).and_then(Value::as_str).map(str::to_owned);
    if text(ledger, &generated).is_some_and(|prefix| own.starts_with(prefix.trim_end_matches('-'))) {
        ledger.leave_out(&generated);
    }
    if !ledger.same(&name, &json!(own))
        && let Some(in_file) = text(ledger, &name)
    {
        ledger.without_effect(&name, &format!("{in_file} is {own} here"));
    }
}

/// Labels and annotations of the set itself.
fn of_set(ledger: &mut Ledger, set: &mut Value) {
    let metadata = Path::default().at("metadata");
    for field in ["labels", "annotations"] {
        for (key, value) in ledger.entries(&metadata.at(field)) {
            let from = metadata.at(field).key(&key);
            if field == "annotations" && is_for_machines(&key) {
                continue;
            }
            match text(&value) {
                Ok(value) => ledger.place_together(&[from], set, &["metadata", field, &key], value),
                Err(reason) => ledger.refuse(&from, reason),
            }
        }
    }
}

/// Labels and annotations of all Nodes.
fn of_nodes(ledger: &mut Ledger, set: &mut Value, metadata: &Path) {
    for field in ["labels", "annotations"] {
        for (key, value) in ledger.entries(&metadata.at(field)) {
            let from = metadata.at(field).key(&key);
            let refused = match field {
                "labels" => refused_label(&key, &value),
                _ if is_for_machines(&key) => continue,
                _ => refused_on_nodes(&key, &value),
            };
            match refused {
                Some(reason) => ledger.refuse(&from, reason),
                None => ledger.place_together(&[from], set, &["spec", "template", field, &key], value),
            }
        }
    }
}

/// Returns true for annotations whose readers know no NodeSet and no Node.
fn is_for_machines(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').unwrap_or_default();
    GROUPS.contains(&prefix) || name == MIN_SIZE || name == MAX_SIZE
}

/// Bounds for cluster-autoscaler, which needs both.
fn autoscaling(ledger: &mut Ledger, set: &mut Value) {
    let annotations = Path::default().at("metadata.annotations");
    let entries = ledger.entries(&annotations);
    let mut bounds = |suffix: &str, least: u64| -> Vec<(Path, Value)> {
        let of_name = entries.iter().filter(|(key, _)| key.rsplit('/').next() == Some(suffix));
        let read = |(key, value): &(String, Value)| {
            let path = annotations.key(key);
            let bound = written_count(value, least..=100_000).map_err(|reason| ledger.refuse(&path, reason));
            Some((path, bound.ok()?))
        };
        of_name.filter_map(read).collect()
    };
    let (min, max) = (bounds(MIN_SIZE, 0), bounds(MAX_SIZE, 1));
    let first = |bounds: &[(Path, Value)]| bounds.first().and_then(|(_, bound)| bound.as_u64());
    let reason = match (first(&min), first(&max)) {
        (Some(min), Some(max)) if min > max => format!("the minimum {min} is above the maximum {max}"),
        (Some(_), Some(_)) => {
            for (bounds, field) in [(min, "minReplicas"), (max, "maxReplicas")] {
                for (path, bound) in bounds {
                    ledger.place_together(&[path], set, &["spec", "autoscaling", field], bound);
                }
            }
            return;
        }
        _ => format!("cluster-autoscaler needs both {MIN_SIZE} and {MAX_SIZE}"),
    };
    min.iter().chain(&max).for_each(|(path, _)| ledger.refuse(path, &reason));
}

fn taints(ledger: &mut Ledger, set: &mut Value, taints: &Path) {
    for at in 0..ledger.items(taints) {
        let taint = taints.item(at);
        let [key, value, effect] = ["key", "value", "effect"].map(|field| taint.at(field));
        let refused = refused_taint(ledger.get(&key), ledger.get(&value), ledger.get(&effect));
        let same = |other: &Value| {
            Some(&other["key"]) == ledger.get(&key) && Some(&other["effect"]) == ledger.get(&effect)
        };
        let is_repeated =
            set["spec"]["template"]["taints"].as_array().is_some_and(|all| all.iter().any(same));
        let repeated = || is_repeated.then(|| "another taint has the same key and effect".to_owned());
        if let Some(reason) = refused.or_else(repeated) {
            ledger.refuse(&taint, reason);
            continue;
        }
        let fields = [("key", &key), ("value", &value), ("effect", &effect)];
        let fields =
            fields.map(|(field, path)| (field.to_owned(), ledger.get(path).cloned().unwrap_or_default()));
        let object = fields.into_iter().filter(|(_, value)| !value.is_null()).collect();
        ledger.place_together(&[key, value, effect], set, &["spec", "template", "taints", "-"], object);
    }
}

/// A selector of labels that all Nodes have says nothing new.
fn selector(ledger: &mut Ledger, set: &Value) {
    let labels = Path::default().at("spec.selector.matchLabels");
    for (key, _) in ledger.entries(&labels) {
        ledger.same(&labels.key(&key), &set["spec"]["template"]["labels"][&key]);
    }
}
