//! Parameters of the admission policies: names of Nodes that are not hollow, and names that NodeSets have taken.
//!
//! Input: the caches of Nodes and NodeSets. Output: two annotations of the operator's ServiceAccount, an
//! object that kube-apiserver keeps in memory anyway. Each name stands between spaces, so that a policy finds
//! it by one search.
//!
//! Invariant: the name of a NodeSet stays after the NodeSet is gone, since certificates of its machines
//! outlive it. The next leader reads the names back.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, api::Patch};
use kube_ext::{
    call::{ApiError, call},
    log_once::LogOnce,
};
use kube_node_api::names;
use kube_node_cache::NodeView;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Context, api::patch_params};

/// Time between two comparisons of the annotations with the caches.
const INTERVAL: Duration = Duration::from_secs(2);
/// Comparisons after which unchanged annotations are written again: somebody may have removed them.
const REWRITE_AFTER: u32 = 150;
/// Longest annotation with names of Nodes, in bytes. All annotations of an object may have 256 KiB together.
const NODES_MAX: usize = 192 << 10;
/// Longest annotation with names of NodeSets, in bytes.
const NODESETS_MAX: usize = 32 << 10;
/// Provider whose Nodes the shared identity of the hollow kubelets serves.
const HOLLOW: &str = "hollow";

/// Keeps the parameters up to date.
pub struct PolicyParameters {
    account: Api<ServiceAccount>,
    context: Arc<Context>,
}

/// Content of the annotations, as far as this process knows.
#[derive(Debug)]
struct Written {
    nodesets: Vec<String>,
    nodes: String,
    /// Comparisons since the last write.
    age: u32,
}

impl PolicyParameters {
    /// Parameters from the caches of `context`, for the policies of the chart, on the account in the operator's
    /// `namespace`.
    pub fn new(context: Arc<Context>, namespace: &str) -> Self {
        Self { account: Api::namespaced(context.client.clone(), namespace), context }
    }

    /// Runs until `stop`. Both caches must be in sync: a Node that is not listed yet would lose its protection.
    pub async fn run(self, stop: CancellationToken) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut written, mut failure) = (None, LogOnce::default());
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let Err(error) = self.reconcile(&mut written).await else {
                failure.ended();
                continue;
            };
            // A write without a response may have taken effect.
            written = None;
            let error = error.chain();
            if failure.is_new(&error) {
                warn!(error, "the admission policies do not learn of new Nodes and NodeSets");
            }
        }
    }

    async fn reconcile(&self, written: &mut Option<Written>) -> Result<(), ApiError> {
        let before = if let Some(written) = written.take() { written } else { self.read().await? };
        let sets: BTreeSet<String> =
            self.context.sets.all().iter().map(|set| set.name().to_owned()).collect();
        let nodesets = remember(before.nodesets.clone(), &sets);
        let (nodes, left_out) = not_hollow(&self.context.nodes.all());
        if nodes == before.nodes && nodesets == before.nodesets && before.age < REWRITE_AFTER {
            *written = Some(Written { age: before.age + 1, ..before });
            return Ok(());
        }
        if left_out > 0 {
            let effect = "these are not protected from the hollow identity";
            warn!(left_out, "too many Nodes that are not hollow: {effect}");
        }
        let change = json!({ "metadata": { "annotations": {
            (names::ANNOTATION_NODESETS): between_spaces(&nodesets),
            (names::ANNOTATION_NODES_NOT_HOLLOW): nodes,
        } } });
        let (account, params) = (names::OPERATOR_SERVICE_ACCOUNT, patch_params());
        let change = Patch::Merge(change);
        let write = self.account.patch_metadata(account, &params, &change);
        call(format!("annotate ServiceAccount {account}"), write).await?;
        *written = Some(Written { nodesets, nodes, age: 0 });
        Ok(())
    }

    async fn read(&self) -> Result<Written, ApiError> {
        let account = names::OPERATOR_SERVICE_ACCOUNT;
        let read = self.account.get_metadata(account);
        let read = call(format!("read ServiceAccount {account}"), read).await?;
        let mut annotations = read.metadata.annotations.unwrap_or_default();
        let nodesets = annotations.remove(names::ANNOTATION_NODESETS).unwrap_or_default();
        Ok(Written {
            nodesets: nodesets.split_whitespace().map(str::to_owned).collect(),
            nodes: annotations.remove(names::ANNOTATION_NODES_NOT_HOLLOW).unwrap_or_default(),
            age: 0,
        })
    }
}

/// Adds the names in `current` to those known. When there are too many, the oldest name without a NodeSet is
/// forgotten.
fn remember(mut known: Vec<String>, current: &BTreeSet<String>) -> Vec<String> {
    let new: Vec<String> = current.iter().filter(|name| !known.contains(name)).cloned().collect();
    known.extend(new);
    let mut length: usize = known.iter().map(|name| name.len() + 1).sum();
    known.retain(|name| {
        let stays = length < NODESETS_MAX || current.contains(name);
        length -= if stays { 0 } else { name.len() + 1 };
        stays
    });
    known
}

/// Annotation with the Nodes that the shared hollow identity does not serve, and the number of names that did
/// not fit.
fn not_hollow(nodes: &[Arc<NodeView>]) -> (String, usize) {
    let mut names: Vec<&str> = nodes.iter().filter(|node| !is_hollow(node)).map(|node| &*node.name).collect();
    names.sort_unstable();
    let mut length = 1;
    let fitting = names.iter().take_while(|name| {
        length += name.len() + 1;
        length <= NODES_MAX
    });
    let count = fitting.count();
    (between_spaces(&names[..count]), names.len() - count)
}

/// Returns true also for a Node of a class without a provider label: a Node created by hand gets that label soon.
fn is_hollow(node: &NodeView) -> bool {
    let provider = node.label(names::LABEL_NODE_CONTROLLER);
    provider.map_or(node.class().is_some(), |provider| provider == HOLLOW)
}

fn between_spaces(names: &[impl AsRef<str>]) -> String {
    let text: String = names.iter().flat_map(|name| [" ", name.as_ref()]).collect();
    if text.is_empty() { text } else { text + " " }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, labels: &[(&str, &str)]) -> Arc<NodeView> {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Arc::new(NodeView { name: name.into(), labels, ..NodeView::default() })
    }

    fn set_of(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn nodes_that_the_shared_identity_does_not_serve_are_named() {
        let nodes = [
            node("real", &[]),
            node("of-kubemark", &[(names::LABEL_NODE_CONTROLLER, "kubemark"), (names::LABEL_NODECLASS, "a")]),
            node("of-hollow", &[(names::LABEL_NODE_CONTROLLER, "hollow"), (names::LABEL_NODECLASS, "a")]),
            node("written-by-hand", &[(names::LABEL_NODECLASS, "a")]),
        ];
        assert_eq!(not_hollow(&nodes), (" of-kubemark real ".to_owned(), 0));
        assert_eq!(not_hollow(&nodes[2..]), (String::new(), 0));
    }

    #[test]
    fn names_that_do_not_fit_are_counted() {
        let nodes: Vec<_> = (0..4_000).map(|at| node(&format!("{at:0>60}"), &[])).collect();
        let (text, left_out) = not_hollow(&nodes);
        assert!(text.len() <= NODES_MAX && text.len() + 62 > NODES_MAX, "{}", text.len());
        assert_eq!(text.split_whitespace().count() + left_out, 4_000);
    }

    #[test]
    fn the_name_of_a_nodeset_outlives_it() {
        let known = remember(Vec::new(), &set_of(&["a", "b"]));
        assert_eq!(remember(known, &set_of(&["c"])), ["a", "b", "c"]);
    }

    #[test]
    fn the_oldest_names_without_a_nodeset_are_forgotten_first() {
        let known: Vec<String> = (0..1_000).map(|at| format!("{at:0>40}")).collect();
        let oldest = known[0].clone();
        let current = set_of(&[&oldest, "new"]);
        let after = remember(known.clone(), &current);
        assert!(between_spaces(&after).len() <= NODESETS_MAX);
        assert!(after.contains(&oldest) && after.contains(&"new".to_owned()));
        assert!(!after.contains(&known[1]) && after.contains(&known[999]));
    }

    #[test]
    fn each_name_stands_between_spaces() {
        assert_eq!(between_spaces(&["a", "b"]), " a b ");
        assert_eq!(between_spaces(&[""; 0]), "");
    }
}
