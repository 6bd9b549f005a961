//! The ledger of a document: every leaf gets a place in the output, or is named. No I/O.
//!
//! Inputs: the leaves of a document, and the rules that place them. Outputs: the leaves that no rule has placed, each with a
//! reason or the advice for its path; notes; the paths that are left out on purpose.
//!
//! Invariant: all leaves are open at first. A leaf is closed only by a method that writes it into the output, compares it with
//! a known value, or records its path; and where a rule reads it, if it is null, an empty text, or an object or list of the
//! expected type without content. An open leaf is reported at the end, so a field without a rule cannot vanish.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::{Value, json};

/// Leaves of a document: scalars, and objects and lists without content.
pub(super) type Leaves = BTreeMap<Path, Value>;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Key(String),
    Item(usize),
}

/// Place of a value in a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path(Vec<Step>);

impl Path {
    /// The path with further keys, which dots separate.
    pub(super) fn at(&self, keys: &str) -> Self {
        keys.split('.').fold(self.clone(), |path, key| path.key(key))
    }

    pub(super) fn key(&self, key: &str) -> Self {
        self.step(Step::Key(key.to_owned()))
    }

    pub(super) fn item(&self, at: usize) -> Self {
        self.step(Step::Item(at))
    }

    /// The keys, the outermost first.
    pub(super) fn keys(&self) -> Vec<&str> {
        let keys = self.0.iter().filter_map(|step| match step {
            Step::Key(key) => Some(key.as_str()),
            Step::Item(_) => None,
        });
        keys.collect()
    }

    fn step(&self, step: Step) -> Self {
        Self(self.0.iter().cloned().chain([step]).collect())
    }

    /// The first steps of the path.
    fn up_to(&self, length: usize) -> Self {
        Self(self.0.iter().take(length).cloned().collect())
    }

    /// The steps below another path, or `None` outside of it.
    fn below(&self, other: &Self) -> Option<&[Step]> {
        self.0.strip_prefix(other.0.as_slice())
    }

    /// The path from another one on.
    pub(super) fn relative(&self, other: &Self) -> Option<Self> {
        self.below(other).map(|rest| Self(rest.to_vec()))
    }

    /// The path with another beginning.
    pub(super) fn moved(&self, from: &Self, to: &Self) -> Option<Self> {
        self.below(from).map(|rest| Self([&to.0, rest].concat()))
    }
}

/// Prints a path as API servers do: `spec.taints[0].key`, `metadata.labels[example.com/zone]`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            let dot = if at == 0 { "" } else { "." };
            match step {
                Step::Item(item) => write!(f, "[{item}]")?,
                Step::Key(key) if is_plain(key) => write!(f, "{dot}{key}")?,
                Step::Key(key) => write!(f, "[{key}]")?,
            }
        }
        Ok(())
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// The value for the output, or the reason why a value has no place there.
pub(super) type Outcome = Result<Value, String>;

/// The ledger of one document.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    open: Leaves,
    /// Reasons why leaves stay open, by their path or that of an object or list around them.
    reasons: BTreeMap<Path, String>,
    notes: Vec<String>,
    left_out: BTreeSet<Path>,
}

/// A ledger that is closed.
#[derive(Debug, Default)]
pub(super) struct Closed {
    /// Paths without a place in the output. Those without a reason are paths of leaves.
    pub(super) lost: BTreeMap<Path, Option<String>>,
    pub(super) notes: Vec<String>,
    pub(super) left_out: BTreeSet<Path>,
}

impl Ledger {
    pub(super) fn new(leaves: Leaves) -> Self {
        Self { open: leaves, ..Self::default() }
    }

    /// Writes a leaf to its place. A null or empty text counts as absent, as in the API of Kubernetes.
    pub(super) fn place(
        &mut self,
        from: &Path,
        object: &mut Value,
        to: &str,
        read: impl Fn(&Value) -> Outcome,
    ) {
        self.enter(from);
        if self.open.get(from).is_some_and(is_unset) {
            self.open.remove(from);
        }
        if let Some(value) = self.check(from, read) {
            self.place_together(std::slice::from_ref(from), object, &Path::default().at(to), value);
        }
    }

    /// Writes one value, made of several leaves, to its place.
    pub(super) fn place_together(&mut self, from: &[Path], object: &mut Value, to: &Path, value: Value) {
        match put(object, to, value) {
            Ok(()) => from.iter().for_each(|path| drop(self.open.remove(path))),
            Err(reason) => from.iter().for_each(|path| self.refuse(path, &reason)),
        }
    }

    /// Reads a value that stays open, unless it is refused already. A value that cannot be read is refused.
    pub(super) fn check(&mut self, path: &Path, read: impl Fn(&Value) -> Outcome) -> Option<Value> {
        let value = self.value(path).filter(|value| !value.is_null() && !self.is_refused(path))?;
        match read(&value) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.refuse(path, reason);
                None
            }
        }
    }

    /// Closes a leaf with a value that the output expresses already.
    pub(super) fn same(&mut self, path: &Path, value: &Value) -> bool {
        let is_same = self.open.get(path) == Some(value);
        if is_same {
            self.open.remove(path);
        }
        is_same
    }

    /// Closes the leaves below a path that another document has below its own.
    pub(super) fn same_below(&mut self, path: &Path, others: &Leaves, other: &Path) {
        self.open.retain(|leaf, value| {
            leaf.moved(path, other).is_none_or(|other| others.get(&other) != Some(value))
        });
    }

    /// Keeps a leaf, or all below an object or list, open for a reason. The first reason counts.
    pub(super) fn refuse(&mut self, path: &Path, reason: impl Into<String>) {
        self.reasons.entry(path.clone()).or_insert_with(|| reason.into());
    }

    /// Adds a path that the document does not have.
    pub(super) fn add(&mut self, path: Path, reason: String) {
        self.open.insert(path.clone(), Value::Null);
        self.reasons.insert(path, reason);
    }

    /// Returns true if a reason is recorded for this path.
    pub(super) fn is_refused(&self, path: &Path) -> bool {
        self.reasons.contains_key(path)
    }

    /// Closes a leaf that changes nothing, with a note that begins with its path.
    pub(super) fn without_effect(&mut self, path: &Path, why: &str) {
        if self.open.remove(path).is_some() {
            self.note(format!("{path} {why}"));
        }
    }

    /// Closes all leaves below a path, or the leaf there, and records the path.
    pub(super) fn leave_out(&mut self, path: &Path) {
        let below: Vec<Path> = self.below(path).map(|(leaf, _)| leaf.clone()).collect();
        if !below.is_empty() {
            for leaf in &below {
                self.open.remove(leaf);
            }
            self.left_out.insert(path.clone());
        }
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Enters the objects and lists around a path. One without content says nothing; one of another type is refused.
    fn enter(&mut self, path: &Path) {
        for (length, step) in path.0.iter().enumerate().skip(1) {
            let around = path.up_to(length);
            let (empty, advice) = match step {
                Step::Key(_) => (json!({}), "it has fields: write each as name: value"),
                Step::Item(_) => (json!([]), "it is a list: write each item after a hyphen"),
            };
            let Some((leaf, value)) = self.below(&around).next() else { continue };
            let is_entered =
                leaf.0.get(length).map(std::mem::discriminant) == Some(std::mem::discriminant(step));
            if *leaf == around && (value.is_null() || *value == empty) {
                self.open.remove(&around);
            } else if !is_entered {
                self.refuse(&around, advice);
            }
        }
    }

    /// Enters an object.
    pub(super) fn enter_object(&mut self, path: &Path) {
        self.enter(&path.key(""));
    }

    /// Open leaves below a path, or the leaf there: they follow each other.
    fn below(&self, path: &Path) -> impl Iterator<Item = (&Path, &Value)> {
        self.open.range(path..).take_while(move |(leaf, _)| leaf.below(path).is_some())
    }

    /// Open values right below an object, by their keys.
    pub(super) fn entries(&mut self, path: &Path) -> Vec<(String, Value)> {
        self.enter_object(path);
        let key = |(leaf, _): (&Path, &Value)| match leaf.below(path) {
            Some([Step::Key(key), ..]) => Some(key.clone()),
            _ => None,
        };
        let keys: BTreeSet<String> = self.below(path).filter_map(key).collect();
        keys.into_iter().filter_map(|key| self.value(&path.key(&key)).map(|value| (key, value))).collect()
    }

    /// Number of items of a list, up to the last one with an open leaf.
    pub(super) fn items(&mut self, path: &Path) -> usize {
        self.enter(&path.item(0));
        let item = |(leaf, _): (&Path, &Value)| match leaf.below(path) {
            Some([Step::Item(at), ..]) => Some(at + 1),
            _ => None,
        };
        self.below(path).filter_map(item).max().unwrap_or(0)
    }

    /// Open value at a path: a leaf, or an object or list of open leaves.
    pub(super) fn value(&self, path: &Path) -> Option<Value> {
        let mut value = self.below(path).next().map(|_| Value::Null)?;
        for (leaf, own) in self.below(path) {
            put(&mut value, &leaf.relative(path)?, own.clone()).ok()?;
        }
        Some(value)
    }

    /// All open leaves.
    pub(super) const fn open(&self) -> &Leaves {
        &self.open
    }

    /// Value of an open leaf.
    pub(super) fn get(&self, path: &Path) -> Option<&Value> {
        self.open.get(path)
    }

    /// Closes the ledger: all open leaves are lost, each under its path, or under that of the reason around it.
    pub(super) fn close(self) -> Closed {
        let Self { open, reasons, notes, left_out } = self;
        let lost = open.into_keys().map(|leaf| {
            let around = reasons.iter().filter(|(path, _)| leaf.below(path).is_some());
            match around.max_by_key(|(path, _)| path.0.len()) {
                Some((path, reason)) => (path.clone(), Some(reason.clone())),
                None => (leaf, None),
            }
        });
        Closed { lost: lost.collect(), notes, left_out }
    }
}

fn is_unset(value: &Value) -> bool {
    value.is_null() || *value == ""
}

/// Writes a value to a place that is free or has the same value.
fn put(object: &mut Value, to: &Path, value: Value) -> Result<(), String> {
    let mut slot = object;
    for (length, step) in to.0.iter().enumerate() {
        if slot.is_null() {
            *slot = if matches!(step, Step::Key(_)) { json!({}) } else { json!([]) };
        }
        slot = match (step, slot) {
            (Step::Key(key), Value::Object(fields)) => fields.entry(key.clone()).or_insert(Value::Null),
            (Step::Item(at), Value::Array(items)) => {
                items.resize(items.len().max(at + 1), Value::Null);
                &mut items[*at]
            }
            (_, slot) => return Err(format!("{} is {slot} already", to.up_to(length))),
        };
    }
    if !slot.is_null() && *slot != value {
        return Err(format!("{to} is {slot} already"));
    }
    *slot = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(keys: &str) -> Path {
        Path::default().at(keys)
    }

    fn text(value: &Value) -> Outcome {
        if value.is_string() { Ok(value.clone()) } else { Err(format!("{value} is no text")) }
    }

    #[test]
    fn paths_read_as_api_servers_print_them() {
        let labels = path("metadata.labels");
        assert_eq!(labels.key("example.com/zone").to_string(), "metadata.labels[example.com/zone]");
        assert_eq!(path("spec.taints").item(0).at("key").to_string(), "spec.taints[0].key");
    }

    #[test]
    fn an_open_leaf_is_lost_and_a_placed_one_is_not() {
        let leaves = [(path("a"), json!("x")), (path("b"), json!(1)), (path("c.d"), json!(null))];
        let mut ledger = Ledger::new(leaves.into());
        let mut object = json!({});
        ledger.place(&path("a"), &mut object, "spec.a", text);
        ledger.place(&path("b"), &mut object, "spec.b", text);
        assert_eq!(object, json!({"spec": {"a": "x"}}));
        let lost = ledger.close().lost;
        assert_eq!(lost, [(path("b"), Some("1 is no text".to_owned())), (path("c.d"), None)].into());
    }

    #[test]
    fn two_values_of_one_place_are_not_merged() {
        let leaves = [(path("a"), json!("x")), (path("b"), json!("y")), (path("c"), json!("x"))];
        let mut ledger = Ledger::new(leaves.into());
        let mut object = json!({});
        for from in ["a", "b", "c"] {
            ledger.place(&path(from), &mut object, "spec.name", text);
        }
        assert_eq!(ledger.close().lost, [(path("b"), Some("spec.name is \"x\" already".to_owned()))].into());
    }

    #[test]
    fn a_key_of_a_user_is_no_step() {
        let mut ledger = Ledger::new([(path("a"), json!("x"))].into());
        let mut object = json!({"labels": {"!a": "y"}, "taints": ["z"]});
        for (place, value) in [(path("labels").key("-"), "x"), (path("labels").key("0"), "x")] {
            ledger.place_together(&[], &mut object, &place, json!(value));
        }
        ledger.place_together(&[], &mut object, &path("taints").item(1), json!("x"));
        assert_eq!(object, json!({"labels": {"!a": "y", "-": "x", "0": "x"}, "taints": ["z", "x"]}));
        ledger.place(&path("a"), &mut object, "taints.a", text);
        assert_eq!(
            ledger.close().lost,
            [(path("a"), Some("taints is [\"z\",\"x\"] already".to_owned()))].into()
        );
    }

    #[test]
    fn a_reason_covers_all_below_its_path() {
        let leaves = [(path("a.b"), json!(1)), (path("a.c"), json!(2)), (path("d"), json!(3))];
        let mut ledger = Ledger::new(leaves.into());
        ledger.refuse(&path("a"), "no place");
        ledger.leave_out(&path("d"));
        let closed = ledger.close();
        assert_eq!(closed.lost, [(path("a"), Some("no place".to_owned()))].into());
        assert_eq!(closed.left_out, [path("d")].into());
    }
}
