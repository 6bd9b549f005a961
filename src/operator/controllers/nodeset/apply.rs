//! Brings a NodeSet's Nodes to what it asks for: adopts, releases, changes in place, creates, deletes.
//!
//! Input: what was observed, and the plan. Output: [`Applied`], with a problem for everything that did not succeed.
//! Invariants: no step and no Node is left out because another one failed. Many writes are sent at once, but bounded; one
//! reconciliation sends at most a batch of each kind, so that the next one, which knows more, comes soon.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::Resource;
use kube_node_api::{NodeSet, names};
use kube_node_cache::NodeView;
use kube_node_planner::{
    refusals::{self, Write},
    set::Problem,
    set_planner::Plan,
    template::{Change, Current},
};
use serde_json::{Value, json};
use tracing::info;

use super::{
    NodeSetController, autoscaling,
    observe::{Blueprint, Observed},
};
use crate::controllers::{
    ApiError,
    api::{self, Seen},
};

/// Writes under way at once for one set: more than keep a control plane busy, at some milliseconds each, and each with a
/// connection of its own.
pub(super) const WRITES_AT_ONCE: usize = 32;
/// Most Nodes that one reconciliation deletes or changes.
pub(super) const BATCH: usize = 500;
/// Most writes of one kind that one reconciliation sends again after they failed: thousands of Nodes that the API server
/// refuses cost it no more than this each second.
const RETRIES: usize = 32;

/// What a reconciliation has done.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// What did not succeed, the most important first; failed writes of Nodes come in besides, from the controller's
    /// record of them.
    pub(super) problems: Vec<Problem>,
    /// Whether a further reconciliation has more to do at once.
    pub(super) more: bool,
    /// Whether something failed that the next reconciliation tries again.
    pub(super) failed: bool,
    /// Nodes whose deletion was sent because they did not start.
    pub(super) given_up: usize,
}

impl Applied {
    /// Records a failed call that the next reconciliation repeats. A conflict is none: the watch is about to show why.
    pub(super) fn failed(&mut self, reason: &'static str, error: &ApiError) {
        if !error.is_conflict() {
            self.problems.push(Problem::of_set(reason, error.chain()));
        }
        self.failed = true;
    }
}

impl NodeSetController {
    pub(super) async fn apply(&self, set: &NodeSet, observed: &Observed, plan: &Plan<'_>) -> Applied {
        let mut applied = Applied::default();
        let has_finalizer = match self.add_finalizer(set).await {
            Ok(()) => true,
            Err(error) => {
                applied.failed("FinalizerNotSet", &error);
                false
            }
        };
        self.change_owners(set, observed).await;
        if let Err(error) = self.forget_victims(set, observed).await {
            applied.failed("RecordNotWritten", &error);
        }
        match &observed.blueprint {
            Ok(blueprint) => {
                let kept = autoscaling::keeps_off(set, plan);
                self.propagate(blueprint, observed, kept, &mut applied).await;
            }
            Err(problem) => {
                applied.problems.push(problem.clone());
                applied.failed |= observed.retry_blueprint;
            }
        }
        self.grant_turns(observed, plan);
        // A set without its finalizer could go before its Nodes do.
        if has_finalizer {
            self.make(set, observed, plan, &mut applied).await;
        }
        self.delete(observed, plan, &mut applied).await;
        applied
    }

    async fn add_finalizer(&self, set: &NodeSet) -> Result<(), ApiError> {
        let mut finalizers = set.metadata.finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|finalizer| finalizer == names::FINALIZER_NODES) {
            return Ok(());
        }
        finalizers.push(names::FINALIZER_NODES.to_owned());
        let change = json!({ "metadata": { "finalizers": finalizers } });
        api::patch::<NodeSet>(&self.context.client, seen_set(set), change, "set the finalizer").await
    }

    /// Takes the set's owner reference off the Nodes to release, and puts it onto those to adopt.
    async fn change_owners(&self, set: &NodeSet, observed: &Observed) {
        let mut patches = Vec::new();
        for node in &observed.to_release {
            let mut owners = node.owners.clone();
            owners.retain(|owner| owner.uid != observed.uid);
            patches.push((Arc::clone(node), owned_by(&owners)));
        }
        for node in &observed.to_adopt {
            let Some(owner) = set.controller_owner_ref(&()) else { continue };
            let mut owners = node.owners.clone();
            owners.push(owner);
            patches.push((Arc::clone(node), owned_by(&owners)));
        }
        if !patches.is_empty() {
            info!(count = patches.len(), "adopting and releasing Nodes by their label");
        }
        self.patch_nodes(&observed.name, Write::Adopt, "change the owner", patches).await;
    }

    /// Labels, annotations and taints of the templates onto Nodes that live.
    async fn propagate(&self, blueprint: &Blueprint, observed: &Observed, kept: bool, applied: &mut Applied) {
        let marked = kept.then(|| autoscaling::marked(&blueprint.template));
        let patches = observed
            .members
            .iter()
            .filter(|node| node.deleted_at.is_none())
            .filter_map(|node| {
                let current =
                    Current { labels: &node.labels, annotations: &node.annotations, taints: &node.taints };
                let marked = marked.as_ref().filter(|_| !autoscaling::is_marked_by_others(node));
                let template = marked.unwrap_or(&blueprint.template);
                Some((Arc::clone(node), patch(template.change(current)?)))
            })
            .collect();
        applied.more |= self.patch_nodes(&observed.name, Write::Update, "change the template", patches).await;
    }

    /// Sends each patch to its Node: a batch of new ones, and some of those that failed before and whose back-off is over.
    /// Returns whether new ones are left.
    async fn patch_nodes(
        &self,
        set: &str,
        write: Write,
        what: &str,
        changes: Vec<(Arc<NodeView>, Value)>,
    ) -> bool {
        let now = Timestamp::now();
        let (mut fresh, mut due) = (Vec::new(), Vec::new());
        self.refusals(set, |refusals| {
            let wanted: HashSet<&str> = changes.iter().map(|(node, _)| &*node.name).collect();
            refusals.keep(write, |node| wanted.contains(node));
            for (node, patch) in changes {
                let intent = refusals::intent(&(&node.uid, &patch));
                match refusals.retry_in(write, &node.name, intent, now) {
                    None => fresh.push((node, patch, intent)),
                    Some(Duration::ZERO) => due.push((node, patch, intent)),
                    // Its back-off is not over.
                    Some(_) => {}
                }
            }
        });
        let more = fresh.len() > BATCH;
        let batch = fresh.into_iter().take(BATCH).chain(due.into_iter().take(RETRIES));
        stream::iter(batch)
            .for_each_concurrent(WRITES_AT_ONCE, |(node, patch, intent)| async move {
                let answer = api::patch::<Node>(&self.context.client, seen_node(&node), patch, what).await;
                let now = Timestamp::now();
                self.refusals(set, |refusals| match answer {
                    // The Node changed or went meanwhile: the watch brings the next reconciliation.
                    Err(error) if error.is_conflict() || error.is_not_found() => {}
                    Err(error) => refusals.failed(write, &node.name, intent, error.chain(), now),
                    Ok(()) => refusals.succeeded(write, &node.name, now),
                });
            })
            .await;
        more
    }

    /// Lets the drains begin that were decided on, before the deletions are asked for: the NodeController is quick.
    fn grant_turns(&self, observed: &Observed, plan: &Plan<'_>) {
        let names =
            plan.drain_permits.iter().copied().chain(plan.delete.iter().map(|deletion| deletion.name));
        let nodes = names.filter_map(|name| self.context.nodes.get(name));
        let drain_permits = nodes.map(|node| (Arc::clone(&node.uid), Arc::clone(&node.name)));
        self.context.drain_permits.set(&observed.name, drain_permits);
    }
}

fn owned_by(owners: &[OwnerReference]) -> Value {
    json!({ "metadata": { "ownerReferences": owners } })
}

/// The merge patch of a change of the template.
fn patch(change: Change) -> Value {
    let mut patch = json!({ "metadata": {} });
    if !change.labels.is_empty() {
        patch["metadata"]["labels"] = json!(change.labels);
    }
    if !change.annotations.is_empty() {
        patch["metadata"]["annotations"] = json!(change.annotations);
    }
    if let Some(taints) = change.taints {
        patch["spec"] = json!({ "taints": taints });
    }
    patch
}

pub(super) fn seen_node(node: &NodeView) -> Seen<'_> {
    Seen { name: &node.name, uid: &node.uid, resource_version: &node.resource_version }
}

pub(super) fn seen_set(set: &NodeSet) -> Seen<'_> {
    seen_meta(&set.metadata)
}

pub(super) fn seen_meta(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Seen<'_> {
    Seen {
        name: metadata.name.as_deref().unwrap_or_default(),
        uid: metadata.uid.as_deref().unwrap_or_default(),
        resource_version: metadata.resource_version.as_deref().unwrap_or_default(),
    }
}

/// How long to wait when a write failed that the next reconciliation may repeat.
pub(super) const RETRY: Duration = Duration::from_secs(1);
