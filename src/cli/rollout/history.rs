//! `kube-node rollout history`: numbered revisions of a NodeSet's class, with the number of the NodeSet's
//! Nodes at each.
//!
//! Revisions belong to the class: NodeSets with `classOverrides` have their revisions in the same list.

use std::{collections::BTreeMap, fmt};

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Node};
use kube::{Api, Client, ResourceExt, api::ListParams, core::PartialObjectMeta};
use kube_ext::objects::list;
use kube_node_api::{
    NodeSet,
    names::{LABEL_NODECLASS, LABEL_NODESET, LABEL_REVISION},
};

use super::{Namespace, Set, access::read_set, change::subject};
use crate::{set_status::name, table::Table, text};

/// Arguments of `rollout history`.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    set: Set,
    #[command(flatten)]
    namespace: Namespace,
    /// Print the machine of this revision as YAML; a name or a number
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
}

impl Show {
    /// Returns the text to print.
    pub(super) async fn run(self, client: &Client) -> anyhow::Result<String> {
        let set = read_set(client, &self.set.name).await?;
        let history = History::read(client, &set, &self.namespace.namespace).await?;
        match self.revision {
            None => Ok(history.table(&set, Timestamp::now())),
            Some(revision) => history.find(&revision)?.yaml(&history.class),
        }
    }
}

/// Revisions of a class from the view of one NodeSet.
#[derive(Debug)]
pub(super) struct History {
    /// Name of the class.
    pub(super) class: String,
    /// Namespace of the revisions.
    namespace: String,
    /// Sorted by number; revisions that only Nodes name come first.
    entries: Vec<Entry>,
    /// Number of the NodeSet's Nodes with another class.
    of_other_classes: usize,
}

/// One revision.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Name, for example `v1-9f86d08188`.
    pub(super) name: String,
    /// Number and content; `None` if only Nodes or the NodeSet still name the revision.
    object: Option<ControllerRevision>,
    /// Number of the NodeSet's Nodes at this revision.
    nodes: usize,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(number) => write!(f, "{number} ({})", self.name),
            None => write!(f, "{} (gone)", self.name),
        }
    }
}

impl Entry {
    /// Number of the revision; higher is newer.
    fn number(&self) -> Option<i64> {
        self.object.as_ref().map(|object| object.revision)
    }

    /// The machine as YAML, after a comment line that names the revision.
    fn yaml(&self, class: &str) -> anyhow::Result<String> {
        let machine = self.object.as_ref().and_then(|object| object.data.as_ref());
        let yaml = serde_norway::to_string(&machine).context("the machine cannot be written as YAML")?;
        Ok(format!("# NodeClass {class}, revision {self}\n{}", yaml.trim_end()))
    }
}

impl History {
    /// Reads the revisions from the cluster.
    pub(super) async fn read(client: &Client, set: &NodeSet, namespace: &str) -> anyhow::Result<Self> {
        let (class, name) = (&set.spec.node_class_name, name(set));
        let api = Api::<ControllerRevision>::namespaced(client.clone(), namespace);
        let of_class = ListParams::default().labels(&format!("{LABEL_NODECLASS}={class}"));
        let what = format!("the revisions of NodeClass {class} in namespace {namespace}");
        let revisions = list(&api, &what, &of_class).await?;
        let api = Api::<PartialObjectMeta<Node>>::all(client.clone());
        let of_set = ListParams::default().labels(&format!("{LABEL_NODESET}={name}"));
        let nodes = list(&api, &format!("the Nodes of NodeSet {name}"), &of_set).await?;
        Ok(Self::new(set, namespace, revisions, &nodes))
    }

    /// Combines the revisions of the NodeSet's class with the Nodes of the NodeSet.
    fn new(
        set: &NodeSet,
        namespace: &str,
        revisions: Vec<ControllerRevision>,
        nodes: &[PartialObjectMeta<Node>],
    ) -> Self {
        let class = set.spec.node_class_name.clone();
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        let entry = |name: &str| Entry { name: name.to_owned(), object: None, nodes: 0 };
        for object in revisions {
            let full_name = object.name_any();
            let Some(name) = full_name.strip_prefix(&format!("{class}-")) else { continue };
            entries.insert(name.to_owned(), Entry { object: Some(object), ..entry(name) });
        }
        let mut of_other_classes = 0;
        for labels in nodes.iter().map(ResourceExt::labels) {
            match labels.get(LABEL_REVISION) {
                Some(name) if labels.get(LABEL_NODECLASS) == Some(&class) => {
                    entries.entry(name.clone()).or_insert_with(|| entry(name)).nodes += 1;
                }
                _ => of_other_classes += 1,
            }
        }
        if let Some(pinned) = &set.spec.revision {
            entries.entry(pinned.clone()).or_insert_with(|| entry(pinned));
        }
        let mut entries: Vec<Entry> = entries.into_values().collect();
        entries.sort_by_key(Entry::number);
        Self { class, namespace: namespace.to_owned(), entries, of_other_classes }
    }

    /// Stored revisions, oldest first.
    pub(super) fn stored(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.object.is_some())
    }

    /// Finds a revision by name, with or without the class as prefix, or by number.
    pub(super) fn find(&self, text: &str) -> anyhow::Result<&Entry> {
        let short = text.strip_prefix(&format!("{}-", self.class)).unwrap_or(text);
        let number = text.parse().ok();
        let is_it = |entry: &&Entry| {
            entry.name == text || entry.name == short || (number.is_some() && entry.number() == number)
        };
        let unknown = || format!("there is no revision {text}: {}", self.there_are());
        self.stored().find(is_it).with_context(unknown)
    }

    /// The available revisions, as the end of a sentence.
    pub(super) fn there_are(&self) -> String {
        // Newest first.
        let stored: Vec<String> = self.stored().rev().map(Entry::to_string).collect();
        if stored.is_empty() {
            return format!(
                "namespace {} has none of NodeClass {}; another one can be named with --namespace",
                self.namespace, self.class
            );
        }
        format!("NodeClass {} has {}", self.class, text::names(&stored, text::NAMES_MAX))
    }

    fn table(&self, set: &NodeSet, now: Timestamp) -> String {
        let heading = format!("{}, revisions of NodeClass {}", subject(set), self.class);
        if self.entries.is_empty() {
            return format!("{heading}\nThere are none: {}", self.there_are());
        }
        let status = set.status.clone().unwrap_or_default();
        let mut table = Table::new(&["REVISION", "NAME", "AGE", "NODES", "NOTE"]);
        for entry in &self.entries {
            let is = |name: &Option<String>| name.as_ref() == Some(&entry.name);
            let notes = [
                ("current", is(&status.current_revision)),
                ("update", is(&status.update_revision)),
                ("pinned", is(&set.spec.revision)),
                ("gone", entry.object.is_none()),
            ];
            let notes: Vec<_> = notes.into_iter().filter(|(_, holds)| *holds).map(|(note, _)| note).collect();
            let created =
                entry.object.as_ref().and_then(|object| object.metadata.creation_timestamp.as_ref());
            table.row([
                entry.number().map_or_else(|| "-".to_owned(), |number| number.to_string()),
                entry.name.clone(),
                text::age_or_dash(created.map(|created| created.0), now),
                entry.nodes.to_string(),
                notes.join(", "),
            ]);
        }
        let others = match self.of_other_classes {
            0 => String::new(),
            count => format!("\nNodes of another class: {count}"),
        };
        format!("{heading}\n{}{others}", table.text(None))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::super::change::tests::{now, set};
    use super::*;

    /// A history from `(number, name)` pairs and the revision of each Node.
    pub(in crate::rollout) fn history(set: &NodeSet, revisions: &[(i64, &str)], nodes: &[&str]) -> History {
        let revisions = revisions.iter().map(|(number, name)| {
            serde_json::from_value(json!({
                "metadata": {"name": format!("medium-{name}"), "creationTimestamp": "2026-01-02T02:04:05Z"},
                "revision": number,
                "data": {"nodeController": "hollow", "capacity": {"cpu": "4"}},
            }))
            .unwrap()
        });
        let nodes = nodes.iter().map(|revision| {
            let class = if revision.is_empty() { "large" } else { "medium" };
            let labels = json!({LABEL_NODECLASS: class, LABEL_REVISION: revision});
            serde_json::from_value(json!({"metadata": {"labels": labels}})).unwrap()
        });
        History::new(set, "kube-node-system", revisions.collect(), &nodes.collect::<Vec<_>>())
    }

    #[test]
    fn the_table_says_who_has_what() {
        let set = set(&json!({
            "spec": {"revision": "v1-lost"},
            "status": {"currentRevision": "v1-aa", "updateRevision": "v1-bb"},
        }));
        let history =
            history(&set, &[(10, "v1-bb"), (9, "v1-aa")], &["v1-aa", "v1-aa", "v1-bb", "v1-cc", ""]);
        assert_eq!(
            history.table(&set, now()),
            "nodeset.kube-node.io/workers, revisions of NodeClass medium\n\
             REVISION   NAME      AGE   NODES   NOTE\n\
             -          v1-cc     -     1       gone\n\
             -          v1-lost   -     0       pinned, gone\n\
             9          v1-aa     60m   2       current\n\
             10         v1-bb     60m   1       update\n\
             Nodes of another class: 1"
        );
    }

    #[test]
    fn a_class_without_revisions_says_where_they_were_looked_for() {
        let set = set(&json!({}));
        let table = history(&set, &[], &[]).table(&set, now());
        assert!(table.contains("namespace kube-node-system has none of NodeClass medium"), "{table}");
    }

    #[test]
    fn a_revision_is_found_by_name_and_number() {
        let set = set(&json!({}));
        let history = history(&set, &[(1, "v1-aa"), (2, "v1-bb")], &["v1-cc"]);
        for text in ["2", "v1-bb", "medium-v1-bb"] {
            assert_eq!(history.find(text).unwrap().to_string(), "2 (v1-bb)", "{text}");
        }
        for text in ["3", "v1-cc", "", "latest"] {
            let said = history.find(text).unwrap_err().to_string();
            assert!(said.ends_with("NodeClass medium has 2 (v1-bb), 1 (v1-aa)"), "{said}");
        }
    }

    #[test]
    fn a_machine_is_printed_as_it_is_stored() {
        let set = set(&json!({}));
        let history = history(&set, &[(1, "v1-aa")], &[]);
        assert_eq!(
            history.find("1").unwrap().yaml("medium").unwrap(),
            "# NodeClass medium, revision 1 (v1-aa)\ncapacity:\n  cpu: '4'\nnodeController: hollow"
        );
    }
}
