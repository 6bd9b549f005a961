//! Rules for Machines, MachineSets and MachineDeployments: what becomes of them in a NodeSet and its NodeClass. No I/O.
//!
//! The NodeSet stands for the set, and the Node for the Machine, so labels and annotations of Machines become those of Nodes.

use serde_json::{Map, Value, json};

use super::{
    document::{Document, Kind},
    ledger::{Ledger, Outcome, Path},
    values::{
        Refused, count, flag, kubelet_version, number_or_percentage, refused_on_nodes, refused_taint,
        refused_text, scale_down_order, seconds, strategy_type, written_count,
    },
};
use crate::manifest::{TAINTS_MAX, TEXTS_MAX};

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

/// Most bytes of the annotations of a template: the limit of the schema.
const MOST_BYTES: usize = 64 * 1024;
/// Most bytes of the annotations of an object, for any API server (`TotalAnnotationSizeLimitB`).
const MOST_BYTES_OF_OBJECT: usize = 256 * 1024;

/// Fields of metadata that API servers write, and the namespace: a NodeSet has none.
const LEFT_OUT: [&str; 7] =
    ["creationTimestamp", "generation", "managedFields", "namespace", "resourceVersion", "selfLink", "uid"];
/// Annotations that kubectl and controllers write about an object.
const LEFT_OUT_ANNOTATIONS: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "machine.openshift.io/instance-state",
    "machinedeployment.clusters.k8s.io/desired-replicas",
    "machinedeployment.clusters.k8s.io/max-replicas",
    "machinedeployment.clusters.k8s.io/revision",
    "machinedeployment.clusters.k8s.io/revision-history",
];
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
    if document.kind == Kind::MachineDeployment {
        refuse_pairs(ledger);
    }
    for (from, to, read) in rules {
        ledger.place(&root.at(from), set, to, read);
    }
    if is_machine {
        set["spec"]["replicas"] = json!(1);
        ledger.leave_out(&machine.at("providerID"));
    } else {
        autoscaling(ledger, set);
        texts(ledger, set, &root.at("metadata"), "metadata", refused_text);
    }
    if document.kind == Kind::MachineSet {
        // A MachineSet never replaces a Machine because of its template.
        set["spec"]["strategy"]["type"] = json!("OnDelete");
    }
    // A Node had the labels of `spec.metadata`, so those take precedence over labels of its Machine.
    for metadata in [machine.at("metadata"), document.kind.machine_metadata()] {
        texts(ledger, set, &metadata, "spec.template", refused_on_nodes);
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

/// Closes what a list has besides its items.
pub(super) fn of_list(document: &Document, ledger: &mut Ledger) {
    recognized(document, ledger);
    left_out(ledger, &Path::default().at("metadata"));
    let items = Path::default().at("items");
    ledger.refuse(&items, "it is no list: write one object per item");
    ledger.items(&items);
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
pub(super) fn object(document: &Document, ledger: &mut Ledger) {
    let root = Path::default();
    recognized(document, ledger);
    ledger.leave_out(&root.at("status"));
    let (machine, template) = (document.kind.machine(), document.kind.machine_metadata());
    for metadata in [root.at("metadata"), template, machine.at("metadata")] {
        left_out(ledger, &metadata);
    }
    ledger.enter_object(&machine.at("lifecycleHooks"));
}

/// Leaves out what servers and controllers write into metadata.
pub(super) fn left_out(ledger: &mut Ledger, metadata: &Path) {
    ledger.enter_object(metadata);
    for field in LEFT_OUT {
        ledger.leave_out(&metadata.at(field));
    }
    let annotations = metadata.at("annotations");
    for key in LEFT_OUT_ANNOTATIONS {
        ledger.leave_out(&annotations.key(key));
    }
    ledger.enter_object(&annotations);
    ledger.enter_object(&metadata.at("labels"));
    let finalizers = metadata.at("finalizers");
    for finalizer in (0..ledger.items(&finalizers)).map(|at| finalizers.item(at)) {
        let is_of_controller = |text: &str| GROUPS.iter().any(|group| text.contains(group));
        if ledger.get(&finalizer).and_then(Value::as_str).is_some_and(is_of_controller) {
            ledger.leave_out(&finalizer);
        }
    }
    let owners = metadata.at("ownerReferences");
    for owner in (0..ledger.items(&owners)).map(|at| owners.item(at)) {
        ledger.refuse(
            &owner,
            "this owner is not converted: put the owner and its configuration into the same file",
        );
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
    ledger.same(&name, &json!(own));
    for path in [name, generated] {
        if let Some(in_file) = text(ledger, &path) {
            ledger.without_effect(&path, &format!("{in_file} is {own} here"));
        }
    }
}

/// Labels and annotations at one place of the document, for one place in the NodeSet.
fn texts(ledger: &mut Ledger, set: &mut Value, from: &Path, to: &str, refused: Refused) {
    let to_path = Path::default().at(to);
    for field in ["labels", "annotations"] {
        for (key, value) in ledger.entries(&from.at(field)) {
            let path = from.at(field).key(&key);
            if field == "annotations" && is_for_machines(&key) {
                continue;
            }
            let all = &set.pointer(&format!("/{}/{field}", to.replace('.', "/")));
            let too_many = || is_too_many(field, &key, &value, all.and_then(Value::as_object), to);
            match refused(field, &key, &value).or_else(too_many) {
                Some(reason) => ledger.refuse(&path, reason),
                None => ledger.place_together(&[path], set, &to_path.at(field).key(&key), value),
            }
        }
    }
}

/// Returns why there is no room for a label or annotation beside `all`, if there is none.
fn is_too_many(
    field: &str,
    key: &str,
    value: &Value,
    all: Option<&Map<String, Value>>,
    to: &str,
) -> Option<String> {
    let all = all.filter(|all| !all.contains_key(key))?;
    let is_template = to != "metadata";
    if is_template && all.len() >= TEXTS_MAX {
        return Some(format!("a template has at most {TEXTS_MAX} {field}"));
    }
    let size = |key: &str, value: &Value| key.len() + value.as_str().map_or(0, str::len);
    let bytes = size(key, value) + all.iter().map(|(key, value)| size(key, value)).sum::<usize>();
    let most = if is_template { MOST_BYTES } else { MOST_BYTES_OF_OBJECT };
    (field == "annotations" && bytes > most).then(|| {
        format!("with it there are {bytes} bytes of annotations, and {most} are the most: shorten one")
    })
}

/// Returns true for annotations whose readers know no NodeSet and no Node.
fn is_for_machines(key: &str) -> bool {
    let is_bound = key.rsplit('/').next().is_some_and(|name| name == MIN_SIZE || name == MAX_SIZE);
    is_bound || key.split_once('/').is_some_and(|(prefix, _)| GROUPS.contains(&prefix))
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
                    ledger.place_together(
                        &[path],
                        set,
                        &Path::default().at("spec.autoscaling").at(field),
                        bound,
                    );
                }
            }
            return;
        }
        _ => format!("cluster-autoscaler needs both {MIN_SIZE} and {MAX_SIZE}"),
    };
    min.iter().chain(&max).for_each(|(path, _)| ledger.refuse(path, &reason));
}

/// Refuses fields that the schema takes by themselves, and not beside each other.
fn refuse_pairs(ledger: &mut Ledger) {
    let spec = Path::default().at("spec");
    let least = ledger.check(&spec.at("minReadySeconds"), |value| count(value, 0..=DAY));
    let deadline = spec.at("progressDeadlineSeconds");
    let limit = ledger.check(&deadline, |value| count(value, 1..=WEEK));
    if least.zip(limit).is_some_and(|(least, limit)| limit.as_u64() <= least.as_u64()) {
        ledger.refuse(
            &deadline,
            "a Node makes no progress before minReadySeconds are over: write more seconds than those",
        );
    }
    let [surge, unavailable] =
        ["maxSurge", "maxUnavailable"].map(|field| spec.at("strategy.rollingUpdate").at(field));
    let is_zero = |value: Value| [json!(0), json!("0%"), json!("00%")].contains(&value);
    let no_surge = ledger.check(&surge, number_or_percentage).is_some_and(is_zero);
    let none_missing = ledger.check(&unavailable, number_or_percentage).is_none_or(is_zero);
    if no_surge && none_missing {
        ledger.refuse(&surge, "nothing could be replaced: write maxSurge: 1 or maxUnavailable: 1");
    }
}

fn taints(ledger: &mut Ledger, set: &mut Value, taints: &Path) {
    let to = Path::default().at("spec.template.taints");
    for at in 0..ledger.items(taints) {
        let taint = taints.item(at);
        let paths = ["key", "value", "effect"].map(|field| taint.at(field));
        let [key, value, effect] = paths.each_ref().map(|path| ledger.value(path));
        let all = set["spec"]["template"]["taints"].as_array();
        let same = |other: &Value| other.get("key") == key.as_ref() && other.get("effect") == effect.as_ref();
        let is_repeated = all.is_some_and(|all| all.iter().any(same));
        let repeated = || is_repeated.then(|| "another taint has the same key and effect".to_owned());
        let is_full = all.is_some_and(|all| all.len() >= TAINTS_MAX);
        let too_many = || is_full.then(|| format!("a template has at most {TAINTS_MAX} taints"));
        let refused = refused_taint(key.as_ref(), value.as_ref(), effect.as_ref());
        let refused = refused.or_else(repeated).or_else(too_many);
        if let Some(reason) = refused {
            ledger.refuse(&taint, reason);
            continue;
        }
        let end = to.item(all.map_or(0, Vec::len));
        let fields = [("key", key), ("value", value), ("effect", effect)].into_iter();
        let fields = fields.filter_map(|(field, value)| Some((field.to_owned(), value?)));
        let object = fields.filter(|(_, value)| !value.is_null()).collect();
        ledger.place_together(&paths, set, &end, object);
    }
}

/// A selector of labels that all Nodes have says nothing new.
fn selector(ledger: &mut Ledger, set: &Value) {
    let labels = Path::default().at("spec.selector.matchLabels");
    for (key, _) in ledger.entries(&labels) {
        ledger.same(&labels.key(&key), &set["spec"]["template"]["labels"][&key]);
    }
}
