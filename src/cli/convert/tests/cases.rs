//! Generated objects, with what has to become of each of their leaves.
//!
//! The expectations are written down here once more, apart from the rules.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::Map;

use super::*;

/// What has to become of a leaf.
#[derive(Clone, Debug)]
pub(super) enum Fate {
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
pub(super) struct Case {
    pub(super) kind: &'static str,
    pub(super) value: Value,
    /// Expectations by path, as messages print it.
    pub(super) fates: Vec<(String, Fate)>,
    /// Number of fields that no rule knows.
    pub(super) planted: usize,
}

pub(super) const KINDS: [&str; 4] =
    ["KubemarkMachineProviderConfig", "Machine", "MachineSet", "MachineDeployment"];
const API: [&str; 2] = ["cluster.k8s.io/v1alpha1", "machine.openshift.io/v1beta1"];

/// Writes a value into a document; `-` appends to a list.
pub(super) fn insert(document: &mut Value, steps: &[String], value: Value) {
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
pub(super) fn shown(steps: &[String]) -> String {
    let mut text = String::new();
    for step in steps {
        if step.bytes().all(|byte| byte.is_ascii_digit()) || step.contains(['.', '/', '!']) {
            text.extend(["[", step, "]"]);
        } else {
            text += if text.is_empty() { "" } else { "." };
            text += step;
        }
    }
    text
}

/// Paths of all leaves.
pub(super) fn leaves(value: &Value, steps: &[String], found: &mut Vec<Vec<String>>) {
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

pub(super) fn steps(path: &str) -> Vec<String> {
    path.split('.').filter(|step| !step.is_empty()).map(str::to_owned).collect()
}

/// An object under construction; the choices say what each field has.
pub(super) struct Builder {
    pub(super) case: Case,
    choices: Vec<usize>,
}

impl Builder {
    /// One of so many alternatives.
    pub(super) fn choose(&mut self, alternatives: usize) -> usize {
        self.choices.pop().unwrap_or(0) % alternatives
    }

    pub(super) fn add(&mut self, path: &[String], value: Value, fate: &Fate) {
        let mut found = Vec::new();
        leaves(&value, path, &mut found);
        insert(&mut self.case.value, path, value);
        self.case.fates.extend(found.iter().map(|leaf| (shown(leaf), fate.clone())));
    }

    /// A field that is absent, has one of these values, or one that has no place. Returns a value that has one.
    pub(super) fn field(
        &mut self,
        path: &str,
        place: (&'static str, &str),
        good: &[(Value, Value)],
        bad: &[Value],
    ) -> Option<Value> {
        let at = self.choose(good.len() + bad.len() + 1);
        match (good.get(at), at.checked_sub(good.len()).and_then(|at| bad.get(at))) {
            (Some((value, expected)), _) => {
                let fate = Fate::Placed(place.0, place.1.to_owned(), expected.clone());
                self.add(&steps(path), value.clone(), &fate);
            }
            (None, Some(value)) => self.add(&steps(path), value.clone(), &Fate::Lost),
            (None, None) => {}
        }
        good.get(at).map(|(value, _)| value.clone())
    }

    /// Labels or annotations, some of which have no place.
    pub(super) fn texts(&mut self, parent: &str, place: &str, prefix: &str, bad: &[(&str, Value)]) {
        for key in [format!("{prefix}a"), format!("example.com/{prefix}b"), format!("{prefix}c.d")] {
            if self.choose(2) == 0 {
                let pointer = format!("{place}/{}", key.replace('/', "~1"));
                let path = [steps(parent), vec![key]].concat();
                self.add(&path, json!("x"), &Fate::Placed("NodeSet", pointer, json!("x")));
            }
        }
        let of_labels = ("d", json!("has space"));
        let bad = [
            bad,
            &[("-", json!("x")), ("!e", json!("x"))],
            &vec![of_labels; usize::from(parent.ends_with("labels"))],
        ];
        let bad = bad.concat();
        let at = self.choose(bad.len() + 1);
        if let Some((key, value)) = bad.get(at) {
            self.add(&[steps(parent), vec![(*key).to_owned()]].concat(), value.clone(), &Fate::Lost);
        }
    }

    pub(super) fn metadata(&mut self, path: &str) {
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

    pub(super) fn same(values: &[Value]) -> Vec<(Value, Value)> {
        values.iter().map(|value| (value.clone(), value.clone())).collect()
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

pub(super) fn any_case() -> impl Strategy<Value = Case> {
    let planted = vec((0_usize..100, "[a-z]{3,12}", any_value()), 0..4);
    (select(KINDS.to_vec()), vec(0_usize..1_000, 160), planted)
        .prop_map(|(kind, choices, planted)| case(kind, choices, planted))
}
