//! Templates on existing Nodes: the desired metadata and taints of a Node, and the change that leads there.
//!
//! The keys that came from a template are recorded on the Node (`kube-node.io/applied-template`). A key that
//! leaves the template leaves the Node; keys of others stay. Server-side apply would keep this record in
//! managedFields, at twice the cost of every later write, and cannot share the list of taints.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::core::v1::Taint;
use kube_node_api::{NodeTemplate, label_map::LabelMap, names::ANNOTATION_APPLIED, taints};
use serde::{Deserialize, Serialize};

/// Merged templates of class and set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredTemplate {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Taints, at most one for each key and effect.
    pub taints: Vec<Taint>,
    /// Taints set only at creation.
    pub startup_taints: Vec<Taint>,
}

/// Keys of a Node that came from a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Applied {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    labels: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    annotations: BTreeSet<String>,
    /// `key:effect`
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    taints: BTreeSet<String>,
    /// Startup taints that the Node was created with, in the same form. One that the template loses goes: whoever was to
    /// remove it may never come.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    startup_taints: BTreeSet<String>,
}

impl Applied {
    /// Text of the record; None if it is empty.
    fn text(&self) -> Option<String> {
        // Sets of strings always have a JSON form.
        (*self != Self::default()).then(|| serde_json::to_string(self).ok())?
    }
}

/// Metadata and taints of a Node.
#[derive(Clone, Copy, Debug)]
pub struct CurrentTemplate<'a> {
    /// Labels.
    pub labels: &'a LabelMap,
    /// Annotations.
    pub annotations: &'a LabelMap,
    /// Taints.
    pub taints: &'a [Taint],
}

/// Changes to write to a Node; a key with `None` is removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeChange {
    /// Labels.
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations, including the record.
    pub annotations: BTreeMap<String, Option<String>>,
    /// The whole list of taints, if it changes.
    pub taints: Option<Vec<Taint>>,
}

impl DesiredTemplate {
    /// Merges the templates of class and set; the set wins for each key.
    pub fn merge(class: Option<&NodeTemplate>, set: Option<&NodeTemplate>) -> Self {
        let mut desired = Self::default();
        for template in [class, set].into_iter().flatten() {
            desired.labels.extend(template.labels.clone());
            desired.annotations.extend(template.annotations.clone());
            // Reserved taints are left out: their owners would remove them again and again.
            let lasting = template.taints.iter().filter(|taint| !taints::is_reserved(&taint.key));
            lasting.for_each(|taint| put(&mut desired.taints, taint));
        }
        desired.startup_taints = merged_startup_taints(class, set);
        // A template cannot know the Node's own name.
        desired.labels.remove("kubernetes.io/hostname");
        desired
    }

    /// Record for a Node that is created with all of this; None if there is nothing to record.
    pub fn record(&self) -> Option<String> {
        self.applied().text()
    }

    fn applied(&self) -> Applied {
        Applied {
            labels: self.labels.keys().cloned().collect(),
            annotations: self.annotations.keys().cloned().collect(),
            taints: self.taints.iter().map(id).collect(),
            startup_taints: self.startup_taints.iter().map(id).collect(),
        }
    }

    /// A copy with an additional annotation, unless a template has the key already.
    pub fn annotated(&self, key: &str, value: &str) -> Self {
        let mut desired = self.clone();
        desired.annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        desired
    }

    /// Change that brings the Node to the desired state; None if the Node has it.
    pub fn change(&self, current: CurrentTemplate<'_>) -> Option<NodeChange> {
        TemplateChanges::new(self).of(current)
    }
}

/// Changes that bring many Nodes to one template. Records are parsed once each: the Nodes of a set have few different ones.
#[derive(Debug)]
pub struct TemplateChanges<'a> {
    desired: &'a DesiredTemplate,
    all: Applied,
    /// By their text; empty for none.
    records: HashMap<String, Record>,
}

/// The record of a Node, and the one that the Node is to have.
#[derive(Debug)]
struct Record {
    applied: Applied,
    wanted: Option<String>,
}

impl<'a> TemplateChanges<'a> {
    /// Changes to this template.
    pub fn new(desired: &'a DesiredTemplate) -> Self {
        Self { desired, all: desired.applied(), records: HashMap::new() }
    }

    /// Change that brings the Node to the desired state; None if the Node has it.
    pub fn of(&mut self, current: CurrentTemplate<'_>) -> Option<NodeChange> {
        let Self { desired, all, records } = self;
        let text = current.annotations.get(ANNOTATION_APPLIED);
        let key = text.unwrap_or_default();
        if !records.contains_key(key) {
            records.insert(key.to_owned(), Record::of(current.annotations, all));
        }
        let Record { applied, wanted } = records.get(key)?;
        let mut change = NodeChange {
            labels: difference(current.labels, &desired.labels, &applied.labels),
            annotations: difference(current.annotations, &desired.annotations, &applied.annotations),
            taints: desired.taints(current.taints, all, applied),
        };
        if text != wanted.as_deref() {
            change.annotations.insert(ANNOTATION_APPLIED.to_owned(), wanted.clone());
        }
        (change != NodeChange::default()).then_some(change)
    }
}

impl Record {
    fn of(annotations: &LabelMap, all: &Applied) -> Self {
        let applied = record(annotations);
        let mut wanted = all.clone();
        wanted.startup_taints.retain(|taint| applied.startup_taints.contains(taint));
        Self { applied, wanted: wanted.text() }
    }
}

impl DesiredTemplate {
    fn taints(&self, current: &[Taint], all: &Applied, applied: &Applied) -> Option<Vec<Taint>> {
        let Applied { taints: wanted, startup_taints: starting, .. } = all;
        let leaves = |id: &String| {
            applied.taints.contains(id) || applied.startup_taints.contains(id) && !starting.contains(id)
        };
        let stays = |taint: &&Taint| wanted.contains(&id(taint)) || !leaves(&id(taint));
        let mut taints: Vec<Taint> = current.iter().filter(stays).cloned().collect();
        let is_there =
            |taint: &&Taint| current.iter().any(|own| same(own, taint) && value(own) == value(taint));
        for taint in self.taints.iter().filter(|taint| !is_there(taint)) {
            put(&mut taints, taint);
        }
        (taints != current).then_some(taints)
    }
}

/// Reserved taints of a template that was stored before the schema refused them; its Nodes do not get them.
pub fn reserved_taints(template: &NodeTemplate) -> Vec<&str> {
    let lasting = template.taints.iter().filter(|taint| taints::is_reserved(&taint.key));
    let startup = template.startup_taints.iter().filter(|taint| taints::is_reserved_at_birth(&taint.key));
    lasting.chain(startup).map(|taint| taint.key.as_str()).collect()
}

/// Startup taints of both templates; the set wins for each key and effect.
pub(super) fn merged_startup_taints(class: Option<&NodeTemplate>, set: Option<&NodeTemplate>) -> Vec<Taint> {
    let mut merged = Vec::new();
    let both = [class, set].into_iter().flatten().flat_map(|template| &template.startup_taints);
    let allowed = both.filter(|taint| !taints::is_reserved_at_birth(&taint.key));
    allowed.for_each(|taint| put(&mut merged, taint));
    merged
}

/// Record of a Node. An unreadable one counts as empty: nothing is removed that might belong to others.
fn record(annotations: &LabelMap) -> Applied {
    let text = annotations.get(ANNOTATION_APPLIED);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Startup taints that a Node was created with, as far as its record can be read.
pub(super) fn recorded_startup_taints(annotations: &LabelMap) -> Vec<Taint> {
    let taint = |id: &String| {
        let (key, effect) = id.rsplit_once(':')?;
        Some(Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() })
    };
    record(annotations).startup_taints.iter().filter_map(taint).collect()
}

/// Returns true if a Node has the annotation and no template set it.
pub fn is_foreign_annotation(annotations: &LabelMap, key: &str) -> bool {
    annotations.contains_key(key) && !record(annotations).annotations.contains(key)
}

/// Keys to set and to remove; unrecorded keys are not removed.
fn difference(
    current: &LabelMap,
    desired: &BTreeMap<String, String>,
    applied: &BTreeSet<String>,
) -> BTreeMap<String, Option<String>> {
    let set = desired.iter().filter(|(key, value)| current.get(key) != Some(value.as_str()));
    let set = set.map(|(key, value)| (key.clone(), Some(value.clone())));
    let unset = applied.iter().filter(|key| !desired.contains_key(*key) && current.contains_key(key));
    set.chain(unset.map(|key| (key.clone(), None))).collect()
}

/// Returns true if key and effect match: the API server treats such taints as one.
pub(super) fn same(a: &Taint, b: &Taint) -> bool {
    a.key == b.key && a.effect == b.effect
}

/// Value of a taint; an empty value equals none, as in the API server.
fn value(taint: &Taint) -> Option<&str> {
    taint.value.as_deref().filter(|value| !value.is_empty())
}

fn id(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

/// Replaces the taint of the same key and effect, or appends the taint.
fn put(taints: &mut Vec<Taint>, taint: &Taint) {
    match taints.iter_mut().find(|own| same(own, taint)) {
        Some(own) => own.clone_from(taint),
        None => taints.push(taint.clone()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, prelude::*, sample::select};

    use super::*;

    fn taint(key: &str, value: &str) -> Taint {
        Taint {
            key: key.to_owned(),
            value: Some(value.to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        }
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[derive(Clone, Debug, Default, PartialEq)]
    struct Node {
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        taints: Vec<Taint>,
    }

    impl Node {
        fn change(&self, desired: &DesiredTemplate) -> Option<NodeChange> {
            let [labels, annotations] =
                [&self.labels, &self.annotations].map(|all| all.clone().into_iter().collect::<LabelMap>());
            desired.change(CurrentTemplate {
                labels: &labels,
                annotations: &annotations,
                taints: &self.taints,
            })
        }

        fn apply(&mut self, change: NodeChange) {
            for (map, changes) in
                [(&mut self.labels, change.labels), (&mut self.annotations, change.annotations)]
            {
                for (key, value) in changes {
                    match value {
                        Some(value) => map.insert(key, value),
                        None => map.remove(&key),
                    };
                }
            }
            if let Some(mut taints) = change.taints {
                // The API server returns an empty value as none.
                for taint in &mut taints {
                    taint.value = value(taint).map(str::to_owned);
                }
                self.taints = taints;
            }
        }

        fn bring_to(&mut self, desired: &DesiredTemplate) {
            if let Some(change) = self.change(desired) {
                self.apply(change);
            }
        }
    }

    #[test]
    fn the_set_wins_key_by_key() {
        let class = NodeTemplate {
            labels: labels(&[("a", "class"), ("b", "class")]),
            taints: vec![taint("t", "class"), taint("u", "class")],
            ..NodeTemplate::default()
        };
        let set = NodeTemplate {
            labels: labels(&[("a", "set")]),
            taints: vec![taint("t", "set")],
            ..NodeTemplate::default()
        };
        let desired = DesiredTemplate::merge(Some(&class), Some(&set));
        assert_eq!(desired.labels, labels(&[("a", "set"), ("b", "class")]));
        assert_eq!(desired.taints, [taint("t", "set"), taint("u", "class")]);
    }

    #[test]
    fn what_leaves_the_template_leaves_the_node_and_nothing_else_does() {
        let mut node =
            Node { labels: labels(&[("user", "x")]), taints: vec![taint("user", "x")], ..Node::default() };
        let full = DesiredTemplate {
            labels: labels(&[("ours", "1")]),
            annotations: labels(&[("note", "1")]),
            taints: vec![taint("ours", "1")],
            ..DesiredTemplate::default()
        };
        node.bring_to(&full);
        assert_eq!(node.labels, labels(&[("ours", "1"), ("user", "x")]));
        assert_eq!(node.taints, [taint("user", "x"), taint("ours", "1")]);
        node.bring_to(&DesiredTemplate::default());
        assert_eq!(node.labels, labels(&[("user", "x")]));
        assert_eq!(node.taints, [taint("user", "x")]);
        assert!(node.annotations.is_empty(), "{:?}", node.annotations);
    }

    #[test]
    fn a_startup_taint_that_leaves_the_template_leaves_the_nodes_that_were_created_with_it() {
        let starting = |keys: &[&str]| DesiredTemplate {
            startup_taints: keys.iter().map(|key| taint(key, "")).collect(),
            ..DesiredTemplate::default()
        };
        let record = starting(&["cni", "gpu"]).record().unwrap();
        let mut node = Node {
            annotations: labels(&[(ANNOTATION_APPLIED, record.as_str())]),
            taints: vec![taint("cni", ""), taint("gpu", "")],
            ..Node::default()
        };
        assert_eq!(node.change(&starting(&["cni", "gpu"])), None);
        // A later one is none of this Node, and whoever sets it keeps it.
        node.bring_to(&starting(&["gpu", "later"]));
        assert_eq!(node.taints, [taint("gpu", "")].map(|taint| Taint { value: None, ..taint }));
        node.taints.push(taint("later", "x"));
        node.bring_to(&DesiredTemplate::default());
        assert_eq!(node.taints, [taint("later", "x")]);
        assert!(node.annotations.is_empty(), "{:?}", node.annotations);
    }

    #[test]
    fn a_broken_record_takes_nothing_away() {
        let mut node = Node {
            labels: labels(&[("a", "x")]),
            annotations: labels(&[(ANNOTATION_APPLIED, "{")]),
            ..Node::default()
        };
        node.bring_to(&DesiredTemplate::default());
        assert_eq!(node.labels, labels(&[("a", "x")]));
        assert!(node.annotations.is_empty());
    }

    #[test]
    fn when_a_taint_was_added_is_no_difference() {
        let mut node = Node::default();
        let desired = DesiredTemplate { taints: vec![taint("t", "1")], ..DesiredTemplate::default() };
        node.bring_to(&desired);
        node.taints[0].time_added =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(node.change(&desired), None);
    }

    #[test]
    fn an_empty_value_is_none() {
        let mut node = Node::default();
        let desired = DesiredTemplate { taints: vec![taint("t", "")], ..DesiredTemplate::default() };
        node.bring_to(&desired);
        assert_eq!((node.taints[0].value.as_deref(), node.change(&desired)), (None, None));
        node.taints[0].value = Some("x".to_owned());
        node.bring_to(&desired);
        assert_eq!((node.taints[0].value.as_deref(), node.change(&desired)), (None, None));
    }

    /// The schema refuses reserved taints, but an object may have been stored before it did.
    #[test]
    fn reserved_taints_are_left_to_whose_they_are() {
        let keys = ["node.kubernetes.io/not-ready", "kube-node.io/uninitialized", taints::HOLLOW, "own"];
        let all: Vec<Taint> =
            keys.iter().chain(&[taints::CLOUD_UNINITIALIZED]).map(|key| taint(key, "")).collect();
        let template = NodeTemplate { taints: all.clone(), startup_taints: all, ..NodeTemplate::default() };
        let desired = DesiredTemplate::merge(Some(&template), None);
        let keys = |taints: &[Taint]| taints.iter().map(|taint| taint.key.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&desired.taints), [taints::HOLLOW, "own"]);
        assert_eq!(keys(&desired.startup_taints), [taints::HOLLOW, "own", taints::CLOUD_UNINITIALIZED]);
        let [not_ready, ours] = ["node.kubernetes.io/not-ready", "kube-node.io/uninitialized"];
        assert_eq!(
            reserved_taints(&template),
            [not_ready, ours, taints::CLOUD_UNINITIALIZED, not_ready, ours]
        );
        assert_eq!(reserved_taints(&NodeTemplate::default()), [""; 0]);
    }

    fn small_map() -> impl Strategy<Value = BTreeMap<String, String>> {
        btree_map(select(vec!["a", "b", "c"]).prop_map(str::to_owned), "[xy]", 0..4)
    }

    fn desired() -> impl Strategy<Value = DesiredTemplate> {
        let taints = btree_map(select(vec!["a", "b", "c"]).prop_map(str::to_owned), "[xy]?", 0..4);
        (small_map(), small_map(), taints).prop_map(|(labels, annotations, taints)| DesiredTemplate {
            labels,
            annotations,
            taints: taints.iter().map(|(key, value)| taint(key, value)).collect(),
            ..DesiredTemplate::default()
        })
    }

    proptest! {
        /// From any template to any other: the Node gets all keys, a second reconciliation changes nothing,
        /// and a user's own keys stay unchanged.
        #[test]
        fn templates_come_and_go(first in desired(), second in desired()) {
            let user = Node {
                labels: labels(&[("user", "x")]),
                annotations: labels(&[("user", "x")]),
                taints: vec![taint("user", "x")],
            };
            let mut node = user.clone();
            for desired in [&first, &second] {
                node.bring_to(desired);
                prop_assert_eq!(node.change(desired), None);
                for (key, value) in &desired.labels {
                    prop_assert_eq!(node.labels.get(key), Some(value));
                }
                for taint in &desired.taints {
                    prop_assert!(node.taints.iter().any(|own| same(own, taint) && value(own) == value(taint)));
                }
            }
            node.bring_to(&DesiredTemplate::default());
            prop_assert_eq!(node, user);
        }
    }
}
