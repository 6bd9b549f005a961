//! Property: every leaf of a generated object is in the output at the place that its rule says, or a line names it.
//!
//! The expectations are written down here once more, apart from the rules. [`violations`] compares them with a result; that it
//! finds a value that vanished is tested with results from which one was taken.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::Map;

use super::*;

/// What has to become of a leaf.
#[derive(Clone, Debug)]
enum Fate {
    /// It has this value at this JSON pointer of the object of this kind, and no line names it.
    Placed(&'static str, String, Value),
    /// A line names it, or an object or list around it, as lost.
    Lost,
    /// The last line names it, or an object around it.
    LeftOut,
    /// A note names it.
    Noted,
    /// The output says the same without a place for it.
    Implied,
}

/// A generated object.
#[derive(Clone, Debug)]
struct Case {
    kind: &'static str,
    value: Value,
    /// Expectations by path, as messages print it.
    fates: Vec<(String, Fate)>,
    /// Number of fields that no rule knows.
    planted: usize,
}

const KINDS: [&str; 4] = ["KubemarkMachineProviderConfig", "Machine", "MachineSet", "MachineDeployment"];
const API: [&str; 2] = ["cluster.k8s.io/v1alpha1", "machine.openshift.io/v1beta1"];

/// Writes a value into a document; `-` appends to a list.
fn insert(document: &mut Value, steps: &[String], value: Value) {
    let mut slot = document;
    for step in steps {
        slot = match step.parse::<usize>() {
            Ok(at) => {
                if slot.is_null() {
                    *slot = json!([]);
                }
                let items = slot.as_array_mut().unwrap();
                items.resize(items.len().max(at + 1), Value::Null);
                &mut items[at]
            }
            Err(_) => &mut slot[step.as_str()],
        };
    }
    *slot = value;
}

/// A path as messages print it.
fn shown(steps: &[String]) -> String {
    let mut text = String::new();
    for step in steps {
        if step.bytes().all(|byte| byte.is_ascii_digit()) || step.contains(['.', '/']) {
            text.extend(["[", step, "]"]);
        } else {
            text += if text.is_empty() { "" } else { "." };
            text += step;
        }
    }
    text
}

/// Paths of all leaves.
fn leaves(value: &Value, steps: &[String], found: &mut Vec<Vec<String>>) {
    let below = |step: String| [steps, &[step]].concat();
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(key, value)| leaves(value, &below(key.clone()), found));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().for_each(|(at, item)| leaves(item, &below(at.to_string()), found));
        }
        _ => found.push(steps.to_vec()),
    }
}

fn steps(path: &str) -> Vec<String> {
    path.split('.').filter(|step| !step.is_empty()).map(str::to_owned).collect()
}

/// An object under construction; the choices say what each field has.
struct Builder {
    case: Case,
    choices: Vec<usize>,
}

impl Builder {
    /// One of so many alternatives.
    fn choose(&mut self, alternatives: usize) -> usize {
        self.choices.pop().unwrap_or(0) % alternatives
    }

    fn add(&mut self, path: &[String], value: Value, fate: &Fate) {
        let mut found = Vec::new();
        leaves(&value, path, &mut found);
        insert(&mut self.case.value, path, value);
        self.case.fates.extend(found.iter().map(|leaf| (shown(leaf), fate.clone())));
    }

    /// A field that is absent, has one of these values, or one that has no place.
    fn field(&mut self, path: &str, place: (&'static str, &str), good: &[(Value, Value)], bad: &[Value]) {
        let at = self.choose(good.len() + bad.len() + 1);
        match (good.get(at), at.checked_sub(good.len()).and_then(|at| bad.get(at))) {
            (Some((value, expected)), _) => {
                let fate = Fate::Placed(place.0, place.1.to_owned(), expected.clone());
                self.add(&steps(path), value.clone(), &fate);
            }
            (None, Some(value)) => self.add(&steps(path), value.clone(), &Fate::Lost),
            (None, None) => {}
        }
    }

    /// Labels or annotations, some of which have no place.
    fn texts(&mut self, parent: &str, place: &str, prefix: &str, bad: &[(&str, Value)]) {
        for key in [format!("{prefix}a"), format!("example.com/{prefix}b"), format!("{prefix}c.d")] {
            if self.choose(2) == 0 {
                let pointer = format!("{place}/{}", key.replace('/', "~1"));
                let path = [steps(parent), vec![key]].concat();
                self.add(&path, json!("x"), &Fate::Placed("NodeSet", pointer, json!("x")));
            }
        }
        let at = self.choose(bad.len() + 1);
        if let Some((key, value)) = bad.get(at) {
            self.add(&[steps(parent), vec![(*key).to_owned()]].concat(), value.clone(), &Fate::Lost);
        }
    }

    fn metadata(&mut self, path: &str) {
        for field in ["uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "namespace"] {
            if self.choose(3) == 0 {
                self.add(&steps(&format!("{path}.{field}")), json!("x"), &Fate::LeftOut);
            }
        }
        if self.choose(3) == 0 {
            let value = json!([{"manager": "kubectl", "operation": "Update"}]);
            self.add(&steps(&format!("{path}.managedFields")), value, &Fate::LeftOut);
        }
    }

    fn same(values: &[Value]) -> Vec<(Value, Value)> {
        values.iter().map(|value| (value.clone(), value.clone())).collect()
    }

    fn set(&mut self) {
        let numbers =
            |values: &[u64]| Self::same(&values.iter().map(|value| json!(value)).collect::<Vec<_>>());
        let nodes = [json!(0), json!(2), json!("25%"), json!("100%")];
        let no_number =
            [json!(-1), json!("3"), json!(1.5), json!(true), json!({"a": 1}), json!([]), json!(100_001)];
        self.field("spec.replicas", ("NodeSet", "/spec/replicas"), &numbers(&[0, 3, 100_000]), &no_number);
        let seconds = [(json!(1), json!("1s")), (json!(90), json!("1m30s"))];
        let no_seconds = [json!("5s"), json!(-1), json!(700_000), json!({"b": null})];
        self.field("spec.minReadySeconds", ("NodeSet", "/spec/minReadyTime"), &seconds, &no_seconds);
        if self.case.kind == "MachineSet" {
            let orders = Self::same(&[json!("Newest"), json!("Oldest")]);
            let bad = [json!("Random"), json!(7)];
            self.field("spec.deletePolicy", ("NodeSet", "/spec/scaleDown/order"), &orders, &bad);
            if self.choose(3) == 0 {
                self.add(&steps("spec.strategy.type"), json!("RollingUpdate"), &Fate::Lost);
            }
        } else {
            let types = Self::same(&[json!("RollingUpdate"), json!("OnDelete")]);
            let bad = [json!("Recreate"), json!(1)];
            self.field("spec.strategy.type", ("NodeSet", "/spec/strategy/type"), &types, &bad);
            for field in ["maxSurge", "maxUnavailable"] {
                let path = format!("spec.strategy.rollingUpdate.{field}");
                let pointer = format!("/spec/strategy/rollingUpdate/{field}");
                let bad = [json!("101%"), json!("+1%"), json!("2"), json!(-1), json!(2.5)];
                self.field(&path, ("NodeSet", &pointer), &Self::same(&nodes), &bad);
            }
            let place = ("NodeSet", "/spec/progressDeadline");
            self.field("spec.progressDeadlineSeconds", place, &seconds, &no_seconds);
            let place = ("NodeSet", "/spec/revisionHistoryLimit");
            self.field("spec.revisionHistoryLimit", place, &numbers(&[0, 10]), &no_number);
            let place = ("NodeSet", "/spec/paused");
            self.field("spec.paused", place, &Self::same(&[json!(true), json!(false)]), &[json!("true")]);
        }
        let bad = [("b", json!(3))];
        self.texts("metadata.labels", "/metadata/labels", "", &bad);
        let bad = [("cluster.k8s.io/delete-machine", json!("yes")), ("b", json!(true))];
        self.texts("metadata.annotations", "/metadata/annotations", "", &bad);
        self.bounds();
        match self.choose(3) {
            0 => {
                let pointer = "/spec/template/labels/t-selected".to_owned();
                let fate = Fate::Placed("NodeSet", pointer, json!("x"));
                self.add(&steps("spec.template.metadata.labels.t-selected"), json!("x"), &fate);
                self.add(&steps("spec.selector.matchLabels.t-selected"), json!("x"), &fate);
            }
            1 => self.add(&steps("spec.selector.matchLabels.t-none"), json!("x"), &Fate::Lost),
            _ => {}
        }
    }

    /// Bounds for cluster-autoscaler: both, or none.
    fn bounds(&mut self) {
        let of = |min: &str, max: &str| (Some(json!(min)), Some(json!(max)));
        let (bounds, is_good) = match self.choose(6) {
            0 => (of("1", "12"), true),
            1 => (of("0", "1"), true),
            2 => (of("3", "2"), false),
            3 => ((Some(json!("1")), None), false),
            4 => (of("-1", "x"), false),
            _ => ((None, None), false),
        };
        let prefix = ["cluster.k8s.io", "machine.openshift.io"][self.choose(2)];
        for (name, field, bound) in [("min", "minReplicas", bounds.0), ("max", "maxReplicas", bounds.1)] {
            let Some(bound) = bound else { continue };
            let key = format!("{prefix}/cluster-api-autoscaler-node-group-{name}-size");
            let number = bound.as_str().and_then(|text| text.parse::<u64>().ok());
            let fate = match number.filter(|_| is_good) {
                Some(number) => Fate::Placed("NodeSet", format!("/spec/autoscaling/{field}"), json!(number)),
                None => Fate::Lost,
            };
            self.add(&[steps("metadata.annotations"), vec![key]].concat(), bound, &fate);
        }
    }

    fn machine(&mut self, machine: &str, metadata: &str) {
        let bad = [
            ("kube-node.io/x", json!("x")),
            ("node-role.kubernetes.io/worker", json!("")),
            ("b", json!(3)),
            ("e", json!(null)),
        ];
        self.texts(&format!("{machine}.metadata.labels"), "/spec/template/labels", "n-", &bad);
        self.texts(&format!("{metadata}.labels"), "/spec/template/labels", "t-", &bad);
        let bad = [("machine.openshift.io/x", json!("x")), ("kube-node.io/x", json!("x")), ("b", json!(1))];
        self.texts(&format!("{machine}.metadata.annotations"), "/spec/template/annotations", "n-", &bad);
        self.texts(&format!("{metadata}.annotations"), "/spec/template/annotations", "t-", &bad);
        if self.choose(3) == 0 {
            // The label of the Node wins over that of the Machine.
            let (node, machine_label) =
                (format!("{machine}.metadata.labels.both"), format!("{metadata}.labels.both"));
            let fate = Fate::Placed("NodeSet", "/spec/template/labels/both".to_owned(), json!("node"));
            self.add(&steps(&node), json!("node"), &fate);
            self.add(&steps(&machine_label), json!("machine"), &Fate::Lost);
        }
        self.metadata(&format!("{machine}.metadata"));
        let versions = [(json!("1.11.3"), json!("v1.11.3")), (json!("v1.36.3"), json!("v1.36.3"))];
        let place = ("NodeClass", "/spec/provisioning/kubelet/version");
        self.field(&format!("{machine}.versions.kubelet"), place, &versions, &[json!("latest"), json!(1)]);
        let mut placed = 0;
        for at in 0..self.choose(4) {
            let path = [steps(machine), vec!["taints".to_owned(), at.to_string()]].concat();
            let field = |field: &str| [path.clone(), vec![field.to_owned()]].concat();
            let good = json!({"key": format!("example.com/{at}"), "value": "x", "effect": "NoSchedule"});
            let bad = [
                json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}),
                json!({"key": "kube-node.io/uninitialized", "effect": "NoExecute"}),
                json!({"key": "a"}),
                json!({"effect": "NoSchedule"}),
                json!({"key": "a", "value": 1, "effect": "NoSchedule"}),
                json!("a"),
            ];
            match self.choose(bad.len() + 3) {
                choice if choice < bad.len() => self.add(&path, bad[choice].clone(), &Fate::Lost),
                choice => {
                    for (name, value) in good.as_object().unwrap() {
                        let pointer = format!("/spec/template/taints/{placed}/{name}");
                        self.add(
                            &field(name),
                            value.clone(),
                            &Fate::Placed("NodeSet", pointer, value.clone()),
                        );
                    }
                    if choice == bad.len() {
                        self.add(&field("timeAdded"), json!("2019-05-29T10:00:00Z"), &Fate::Lost);
                    }
                    placed += 1;
                }
            }
        }
    }

    fn config(&mut self, config: &str) {
        let path = |field: &str| steps(&format!("{config}.{field}")).join(".");
        let place = ("NodeClass", "/spec/capacity/cpu");
        let cores = [(json!(4), json!("4")), (json!("500m"), json!("500m"))];
        self.field(
            &path("numCores"),
            place,
            &cores,
            &[json!(0), json!("four"), json!(true), json!({"a": {}})],
        );
        let place = ("NodeClass", "/spec/capacity/memory");
        let memory = [(json!("16Gi"), json!("16Gi")), (json!(1_024), json!("1024"))];
        self.field(&path("memoryCapacity"), place, &memory, &[json!("16GB"), json!(-1)]);
        let durations = Self::same(&[json!("5s"), json!("1m30s"), json!("90s")]);
        let no_durations = [json!(30), json!("1d"), json!(true)];
        self.field(
            &path("deletionTimeout"),
            ("NodeClass", "/spec/deletionTimeout"),
            &durations,
            &no_durations,
        );
        let images = Self::same(&[json!("r:5000/kubemark:v1.36.3"), json!("gofed/kubemark@sha256:0")]);
        self.field(&path("image"), ("NodeClass", "/spec/kubemark/image"), &images, &[json!(7), json!(["a"])]);
        self.failures(&path);
    }

    /// The fault injection is placed as a whole, or not at all.
    fn failures(&mut self, path: &impl Fn(&str) -> String) {
        let [unhealthy, healthy] =
            [(); 2].map(|()| [None, Some(json!("5s")), Some(json!(5))][self.choose(3)].clone());
        let [periodically, after] = [(); 2].map(|()| {
            [None, Some(json!(true)), Some(json!(false)), Some(json!("true"))][self.choose(4)].clone()
        });
        let is_duration = |value: &Option<Value>| value.as_ref().is_none_or(Value::is_string);
        let is_flag = |value: &Option<Value>| value.as_ref().is_none_or(Value::is_boolean);
        let is_valid =
            is_duration(&unhealthy) && is_duration(&healthy) && is_flag(&periodically) && is_flag(&after);
        let is_true = |value: &Option<Value>| *value == Some(json!(true));
        let (is_periodic, is_after) = (is_true(&periodically), is_true(&after));
        let is_placed = is_valid && is_periodic != is_after && unhealthy.is_some();
        let is_idle = is_valid && !is_periodic && !is_after;
        for (field, value) in [
            ("unhealthyDuration", unhealthy),
            ("healthyDuration", healthy),
            ("turnUnhealthyPeriodically", periodically),
            ("turnUnhealthyAfter", after),
        ] {
            let Some(value) = value else { continue };
            let fate = match field {
                _ if value == json!(false) => Fate::Implied,
                "healthyDuration" if is_placed && is_after => Fate::Noted,
                _ if is_placed => Fate::Placed("NodeClass", format!("/spec/failures/{field}"), value.clone()),
                _ if is_idle => Fate::Noted,
                _ => Fate::Lost,
            };
            self.add(&steps(&path(field)), value, &fate);
        }
    }
}

/// An object with these choices, and with these fields of others in places of its own.
fn case(kind: &'static str, choices: Vec<usize>, planted: Vec<(usize, String, Value)>) -> Case {
    let case = Case { kind, value: json!({}), fates: Vec::new(), planted: planted.len() };
    let mut builder = Builder { case, choices };
    let is_config = kind == KINDS[0];
    let api_version = API[builder.choose(2)];
    let (machine, metadata) = match kind {
        "Machine" => ("spec", "metadata"),
        _ => ("spec.template.spec", "spec.template.metadata"),
    };
    let config = if is_config {
        String::new()
    } else {
        format!("{machine}.{}.value", ["providerSpec", "providerConfig"][builder.choose(2)])
    };
    builder.add(
        &steps("metadata.name"),
        json!("case"),
        &Fate::Placed("NodeClass", "/metadata/name".to_owned(), json!("case")),
    );
    builder.metadata("metadata");
    if !is_config {
        builder.add(&steps("kind"), json!(kind), &Fate::Implied);
        builder.add(&steps("apiVersion"), json!(api_version), &Fate::Implied);
        builder.add(&steps("status"), json!({"replicas": 3, "conditions": [{"type": "a"}]}), &Fate::LeftOut);
        builder.machine(machine, metadata);
    }
    if kind.len() > "Machine".len() && !is_config {
        builder.set();
    }
    builder.add(&steps(&format!("{config}.kind")), json!(KINDS[0]), &Fate::Implied);
    let version = json!("kubemarkproviderconfig.k8s.io/v1alpha1");
    builder.add(&steps(&format!("{config}.apiVersion")), version, &Fate::Implied);
    builder.config(&config);
    let mut parents = vec!["metadata".to_owned(), String::new(), config.clone()];
    if !is_config {
        parents.extend([
            "spec".to_owned(),
            machine.to_owned(),
            metadata.to_owned(),
            format!("{machine}.metadata"),
        ]);
    }
    for (at, (parent, key, value)) in planted.into_iter().enumerate() {
        let path = [steps(&parents[parent % parents.len()]), vec![format!("{key}{at}x")]].concat();
        builder.add(&path, value, &Fate::Lost);
    }
    builder.case
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
        Just(json!({})),
        Just(json!([])),
    ];
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 1..3).prop_map(Value::from),
            vec(("[a-z]{1,6}(/[a-z]{1,4})?", inner), 1..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn any_case() -> impl Strategy<Value = Case> {
    let planted = vec((0_usize..100, "[a-z]{3,12}", any_value()), 0..4);
    (select(KINDS.to_vec()), vec(0_usize..1_000, 120), planted)
        .prop_map(|(kind, choices, planted)| case(kind, choices, planted))
}

fn result(case: &Case) -> Converted {
    converted(None, "f.yaml", &case.value.to_string())
}

/// Expectations that a result does not meet.
fn violations(case: &Case, result: &Converted) -> Vec<String> {
    let mut all = Vec::new();
    leaves(&case.value, &[], &mut all);
    let expected: BTreeSet<&str> = case.fates.iter().map(|(path, _)| path.as_str()).collect();
    let mut found: Vec<String> = all.iter().map(|leaf| shown(leaf)).collect();
    found.retain(|leaf| !expected.contains(leaf.as_str()));
    let prefix = format!("{} case: not converted: ", case.kind);
    let named = result.lost.iter().filter_map(|line| line.strip_prefix(&prefix)?.split_once(": "));
    let named: Vec<&str> = named.map(|(path, _)| path).collect();
    let is_around = |around: &str, path: &str| {
        path.strip_prefix(around).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    for (path, fate) in &case.fates {
        let is_named = named.iter().any(|around| is_around(around, path));
        let is_met = match fate {
            Fate::Placed(kind, pointer, value) => {
                let object = result.objects.iter().find(|object| object["kind"] == *kind);
                !is_named && object.and_then(|object| object.pointer(pointer)) == Some(value)
            }
            Fate::Lost => is_named,
            Fate::LeftOut => !is_named && result.left_out.iter().any(|around| is_around(around, path)),
            Fate::Noted => {
                let note = format!("{} case: note: {path} has no effect ", case.kind);
                !is_named && result.notes.iter().any(|line| line.starts_with(&note))
            }
            Fate::Implied => !is_named,
        };
        if !is_met {
            found.push(format!("{path}: {fate:?}"));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn every_leaf_has_its_place_or_is_named(case in any_case()) {
        let result = result(&case);
        let violations = violations(&case, &result);
        prop_assert!(violations.is_empty(), "{violations:#?}\n{:#}\n{result:#?}", case.value);
        prop_assert_eq!(result.objects.len(), if case.kind == KINDS[0] { 1 } else { 2 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The property can fail: a result that lost a line, or a value, does not have it.
    #[test]
    fn what_vanishes_is_noticed(case in any_case(), at in any::<prop::sample::Index>()) {
        let whole = result(&case);
        if whole.lost.is_empty() {
            prop_assert_eq!(case.planted, 0, "a planted field is always named");
        } else {
            let mut lost = result(&case);
            lost.lost.remove(at.index(whole.lost.len()));
            prop_assert!(!violations(&case, &lost).is_empty(), "{:?}", whole.lost);
        }
        let placed: Vec<_> = case.fates.iter().filter_map(|(_, fate)| match fate {
            Fate::Placed(kind, pointer, _) => Some((*kind, pointer)),
            _ => None,
        }).collect();
        let (kind, pointer) = placed[at.index(placed.len())];
        let mut lost = result(&case);
        let object = lost.objects.iter_mut().find(|object| object["kind"] == kind);
        *object.and_then(|object| object.pointer_mut(pointer)).unwrap() = Value::Null;
        prop_assert!(!violations(&case, &lost).is_empty(), "{pointer}");
    }
}
