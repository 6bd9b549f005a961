//! Applies a plan to the Nodes of a NodeSet: adopts, releases, changes in place, creates, deletes.
//!
//! Input: observed state and plan. Output: [`Applied`], with a problem for everything that failed.
//!
//! Invariants: no step and no Node is skipped because another one failed, and none waits for a slow one. Writes are
//! concurrent but bounded; one reconciliation starts at most a [`Batch`] of each kind, so that the next one, with newer
//! state, comes soon, and nothing is started that was decided long before.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube_ext::{call::ApiError, environment};
use kube_node_api::{names, taints::is_initialized};
use kube_node_cache::NodeView;
use kube_node_planner::{
    failed_writes::{self, Write},
    set_planner::SetPlan,
    set_wait::SetWait,
    template::{NodeChange, TemplateChanges},
};
use serde_json::{Value, json};
use tokio::join;
use tracing::info;

use super::{
    NodeSetController, autoscaling,
    observe::{NoBlueprint, Observed},
};
use crate::{api, batch::Batch, current_template};

/// Maximum number of Nodes that one reconciliation deletes or changes.
pub(super) const BATCH: usize = 500;
/// Maximum number of failed writes of one kind that one reconciliation repeats: thousands of Nodes that the
/// API server refuses cost it no more than this each second.
const RETRIES: usize = 32;
/// Requeue delay after a failed write that the next reconciliation may repeat.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Time after which a deletion is tried again that was refused as a conflict, if no watch has shown another state of its Node
/// by then. It is longer than watches usually lag: a second made rollouts too slow in the simulation.
const AFTER_CONFLICT: Duration = Duration::from_secs(10);

/// Result of applying a plan.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Failures, the most important first. Failed writes of Nodes are added from the controller's record of them.
    pub(super) problems: Vec<SetWait>,
    /// True if there is more to do at once.
    pub(super) more: bool,
    /// True if something failed that the next reconciliation repeats.
    pub(super) failed: bool,
    /// True if a deletion was refused as a conflict. The watch shows the other state of the Node, if there is one.
    pub(super) conflict: bool,
    /// Revision of Nodes whose deletion was sent because they did not start, if it is one that new Nodes get.
    pub(super) given_up: Option<String>,
}

impl Applied {
    /// Adds what came of another step.
    pub(super) fn add(&mut self, step: Self) {
        let Self { problems, more, failed, conflict, given_up } = step;
        self.problems.extend(problems);
        self.more |= more;
        self.failed |= failed;
        self.conflict |= conflict;
        self.given_up = self.given_up.take().or(given_up);
    }

    /// Records a failed call that the next reconciliation repeats. A conflict is no problem: the watch will
    /// show its cause.
    pub(super) fn failed(&mut self, reason: &'static str, error: &ApiError) {
        if !error.is_conflict() {
            self.problems.push(SetWait::of_set(reason, error.chain()));
        }
        self.failed = true;
    }

    /// Time until a write is due again: a failed one, due in `failed`, or one that was refused as a conflict.
    pub(super) fn retry_in(&self, failed: Option<Duration>) -> Option<Duration> {
        let failed = failed.map(|left| left.max(RETRY));
        failed.into_iter().chain(self.conflict.then_some(AFTER_CONFLICT)).min()
    }
}

impl NodeSetController {
    pub(super) async fn apply(&self, observed: &Observed, plan: &SetPlan<'_>) -> Applied {
        self.grant_drain_permits(observed, plan);
        let mut applied = Applied::default();
        let unanswered = observed.blueprint.as_ref().is_err_and(|none| none.unanswered);
        if let Err(NoBlueprint { problem, retry, .. }) = &observed.blueprint {
            applied.problems.push(problem.clone());
            applied.failed |= retry;
            if !unanswered {
                self.failed_writes(&observed.name, |failures| failures.keep(Write::Create, |_| false));
            }
        }
        let owners = owners_to_change(observed);
        // Nodes are neither created nor changed by a template now. They may be again in a moment if the API server did not
        // answer.
        let templates = if unanswered { Vec::new() } else { templates_to_change(observed, plan) };
        let kinds = [
            !owners.is_empty(),
            !templates.is_empty(),
            plan.create > plan.create_current,
            plan.create_current > 0,
            !plan.delete.is_empty(),
        ];
        let at_once = self.writes_at_once(kinds.into_iter().filter(|has_writes| *has_writes).count());
        let steps = join!(
            self.create_protected(observed, plan, at_once),
            self.forget_victims(observed),
            self.patch_nodes(observed, Write::Adopt, "change the owner", owners, at_once),
            self.patch_nodes(observed, Write::Update, "change the template", templates, at_once),
            self.delete(observed, plan, at_once),
        );
        let (created, forgotten, adopted, changed, deleted) = steps;
        applied.add(created);
        if let Err(error) = forgotten {
            applied.failed("RecordNotWritten", &error);
        }
        applied.add(deleted);
        applied.more |= adopted || changed || plan.more && applied.problems.is_empty();
        applied
    }

    /// Creates missing Nodes once set and class have their finalizers: without them they could be deleted before the Nodes.
    async fn create_protected(&self, observed: &Observed, plan: &SetPlan<'_>, at_once: usize) -> Applied {
        let mut applied = Applied::default();
        let finalizers = [
            api::set_finalizer(&self.api, &observed.set.metadata, names::FINALIZER_NODES, true).await,
            self.protect_class(&observed.set.spec.node_class_name).await,
        ];
        let failed = finalizers.iter().filter_map(|set| set.as_ref().err());
        failed.for_each(|error| applied.failed("FinalizerNotSet", error));
        if finalizers.iter().all(Result::is_ok) {
            applied.add(self.create_missing(observed, plan, at_once).await);
        }
        applied
    }

    /// Adds the finalizer that keeps the class while it is in use, if the `NodeClassController`, which has many classes to
    /// look after, has not added it yet. Returns true if the class did not have it.
    async fn protect_class(&self, name: &str) -> Result<bool, ApiError> {
        // Without a class there is no blueprint, which is a wait of its own.
        let Some(class) = self.context.class(name) else { return Ok(false) };
        api::set_finalizer(&self.class_api, &class.metadata, names::FINALIZER_IN_USE, true).await
    }

    /// Sends each patch to its Node: a batch of new ones, and some that failed before and whose back-off is
    /// over. Returns true if some are to be sent at once.
    async fn patch_nodes(
        &self,
        observed: &Observed,
        write: Write,
        what: &str,
        changes: Vec<(Arc<NodeView>, Value)>,
        at_once: usize,
    ) -> bool {
        let (set, now) = (&observed.name, environment::now());
        let (mut fresh, mut due) = (Vec::new(), Vec::new());
        self.failed_writes(set, |failures| {
            let wanted: HashSet<&str> = changes.iter().map(|(node, _)| &*node.name).collect();
            failures.keep(write, |node| wanted.contains(node));
            for (node, patch) in changes {
                let intent = failed_writes::intent(&(&node.uid, &patch));
                match failures.retry_in(write, &node.name, intent, now) {
                    None => fresh.push((node, patch, intent)),
                    Some(Duration::ZERO) => due.push((node, patch, intent)),
                    // Still in back-off.
                    Some(_) => {}
                }
            }
        });
        let more = AtomicBool::new(fresh.len() > BATCH);
        let more = &more;
        let patches = fresh.into_iter().take(BATCH).chain(due.into_iter().take(RETRIES));
        let mut batch = Batch::new(observed.at, patches);
        stream::iter(&mut batch)
            .for_each_concurrent(at_once, |(node, patch, intent)| async move {
                let result = api::patch(&self.node_api, &api::metadata(&node), patch, what).await;
                if result.as_ref().is_err_and(ApiError::is_conflict) && self.await_change(&node) {
                    more.store(true, Ordering::Relaxed);
                }
                self.record(set, write, &node.name, intent, result.as_ref().copied());
            })
            .await;
        more.load(Ordering::Relaxed) || batch.left().next().is_some()
    }

    /// Grants the planned drain permits. It comes before the deletions are sent: the NodeController is quick.
    fn grant_drain_permits(&self, observed: &Observed, plan: &SetPlan<'_>) {
        let names =
            plan.drain_permits.iter().copied().chain(plan.delete.iter().map(|deletion| deletion.name));
        let nodes = names.filter_map(|name| self.context.nodes.get(name));
        let drain_permits = nodes.map(|node| (Arc::clone(&node.uid), Arc::clone(&node.name)));
        self.context.drain_permits.replace(&observed.name, drain_permits);
    }
}

/// Patches that remove the set's owner reference from the Nodes to release, and add it to those to adopt.
fn owners_to_change(observed: &Observed) -> Vec<(Arc<NodeView>, Value)> {
    let own = observed.set.controller_owner_ref(&());
    let owned_by = |node: &NodeView, owner: Option<OwnerReference>| {
        let others = node.owners.iter().filter(|other| other.uid != observed.uid).cloned();
        json!({ "metadata": { "ownerReferences": others.chain(owner).collect::<Vec<_>>() } })
    };
    let released = observed.to_release.iter().map(|node| (Arc::clone(node), owned_by(node, None)));
    let adopted = observed.to_adopt.iter().map(|node| (Arc::clone(node), owned_by(node, own.clone())));
    let patches: Vec<_> = released.chain(adopted).collect();
    if !patches.is_empty() {
        info!(count = patches.len(), "adopting and releasing Nodes by their label");
    }
    patches
}

/// Patches of labels, annotations and taints of the templates for Nodes that stay; during a rollout, with the
/// annotation that keeps cluster-autoscaler off. They record in the same write that a Node's startup taints are gone.
fn templates_to_change(observed: &Observed, plan: &SetPlan<'_>) -> Vec<(Arc<NodeView>, Value)> {
    let template = observed.blueprint.as_ref().ok().map(|blueprint| &blueprint.template);
    let must_stay_off = autoscaling::must_stay_off(&observed.set, plan);
    let marked = template.filter(|_| must_stay_off).map(autoscaling::marked);
    let mut unmarked = template.map(TemplateChanges::new);
    let mut marked = marked.as_ref().map(TemplateChanges::new);
    let patch = |node: &Arc<NodeView>| {
        let marked = marked.as_mut().filter(|_| !autoscaling::is_marked_by_others(node));
        let change = marked.or(unmarked.as_mut()).and_then(|changes| changes.of(current_template(node)));
        let taints = change.as_ref().and_then(|change| change.taints.as_ref()).unwrap_or(&node.taints);
        let started = node.startup_record().filter(|record| is_initialized(Some(record), taints));
        let started = started.map(|_| (names::ANNOTATION_STARTUP_TAINTS.to_owned(), None));
        if change.is_none() && started.is_none() {
            return None;
        }
        let NodeChange { labels, mut annotations, taints } = change.unwrap_or_default();
        annotations.extend(started);
        let mut patch = json!({ "metadata": { "labels": labels, "annotations": annotations } });
        if let Some(taints) = taints {
            patch["spec"] = json!({ "taints": taints });
        }
        Some((Arc::clone(node), patch))
    };
    // A patch would change the state in which a Node is to be deleted.
    let leaving: HashSet<&str> = plan.delete.iter().map(|deletion| deletion.name).collect();
    let stays = |node: &&Arc<NodeView>| node.deleted_at.is_none() && !leaving.contains(&*node.name);
    observed.members.iter().filter(stays).filter_map(patch).collect()
}
