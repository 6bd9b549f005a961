//! Deletes the victims of a plan, each only in the state that was seen.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use kube_ext::call::ApiError;
use kube_node_api::names;
use kube_node_cache::NodeView;
use kube_node_planner::{
    disruption::DisruptionReason,
    failed_writes::{self, Write},
    set_planner::SetPlan,
};
use tokio::time::Instant;
use tracing::info;

use super::{
    NodeSetController,
    apply::{Applied, BATCH},
    observe::Observed,
};
use crate::{api, batch::Batch};

impl Applied {
    /// Notes that a Node did not start. Of two revisions the newest counts, and one that no new Node gets says nothing.
    fn give_up(&mut self, observed: &Observed, revision: &str) {
        let is_newest = observed.revision() == Some(revision);
        if is_newest || observed.working_revision() == Some(revision) && self.given_up.is_none() {
            self.given_up = Some(revision.to_owned());
        }
    }
}

impl NodeSetController {
    /// Deletes the victims of a plan, and repeats deletions without a response.
    pub(super) async fn delete(&self, observed: &Observed, plan: &SetPlan<'_>, at_once: usize) -> Applied {
        let mut applied = Applied::default();
        applied.more |= plan.delete.len() > BATCH;
        let planned = plan.delete.iter().take(BATCH).map(|deletion| (deletion.name, deletion.cause));
        // The cache may be ahead of the plan by now: the version has to be that of the state that was decided on.
        let seen: HashMap<&str, &Arc<NodeView>> = observed.nodes().map(|node| (&*node.name, node)).collect();
        let unanswered = observed.expectations.unanswered().filter_map(|(name, version)| {
            seen.get(name).filter(|node| *node.resource_version == *version).map(|_| (name, None))
        });
        let nodes: Vec<_> = unanswered
            .chain(planned)
            .filter_map(|(name, cause)| Some((Arc::clone(seen.get(name)?), cause)))
            .collect();
        let mut batch = Batch::new(observed.at, nodes);
        let mut results = stream::iter(&mut batch)
            .map(|(node, cause)| async move { (self.delete_one(&observed.name, &node).await, node, cause) })
            .buffer_unordered(at_once);
        while let Some((result, node, cause)) = results.next().await {
            // The watch shows what has changed the Node; something else, such as a webhook, may answer so too.
            let is_conflict = result.as_ref().is_err_and(ApiError::is_conflict);
            applied.conflict |= is_conflict;
            applied.more |= is_conflict && self.await_change(&node);
            // A deletion without a response may have taken effect; it is repeated without a cause.
            let is_lost = result.as_ref().is_err_and(|error| !error.is_final() && !error.is_conflict());
            if cause == Some(DisruptionReason::FailedToStart) && (result.is_ok() || is_lost) {
                applied.give_up(observed, node.label(names::LABEL_REVISION).unwrap_or_default());
            }
            // The next plan passes over a Node whose deletion was refused, and may choose another one. A repetition that is
            // refused changes no plan.
            applied.more |= cause.is_some() && result.as_ref().is_err_and(ApiError::is_final);
            if let Some(cause) = cause.filter(|_| result.is_ok()) {
                info!(node = &*node.name, cause = <&str>::from(cause), "replaced");
                self.context.metrics.node_replaced(cause);
            }
        }
        drop(results);
        applied.more |= batch.left().next().is_some();
        applied.add(self.retry_refused(observed, plan, at_once).await);
        applied
    }

    /// Asks whether the deletions that were refused would be accepted by now. Only then does the plan count on them
    /// again: otherwise it would replace the Node, and give up the replacement, as often as its deletion is tried.
    async fn retry_refused(&self, observed: &Observed, plan: &SetPlan<'_>, at_once: usize) -> Applied {
        let mut applied = Applied::default();
        let is_wanted = |name: &str| {
            plan.retry_deletions.contains(&name)
                || plan.delete.iter().any(|deletion| deletion.name == name)
                || observed.expectations.unanswered().any(|(unanswered, _)| unanswered == name)
        };
        self.failed_writes(&observed.name, |failures| {
            failures.keep(Write::Delete, |name| {
                is_wanted(name) && self.context.nodes.get(name).is_some_and(|node| node.deleted_at.is_none())
            });
        });
        let refused = self.refused_deletions(&observed.name, observed.nodes());
        let is_due = |node: &&Arc<NodeView>| refused.get(&node.name).is_some_and(Duration::is_zero);
        let due: Vec<_> = observed.nodes().filter(is_due).take(BATCH).map(Arc::clone).collect();
        let mut batch = Batch::new(Instant::now(), due);
        let mut answers = stream::iter(&mut batch)
            .map(|node| async move { (api::delete(&self.node_api, &api::metadata(&node), true).await, node) })
            .buffer_unordered(at_once);
        while let Some((answer, node)) = answers.next().await {
            applied.more |= answer.is_ok();
            let intent = failed_writes::intent(&node.uid);
            self.record(&observed.name, Write::Delete, &node.name, intent, answer.as_ref().copied());
        }
        drop(answers);
        applied.more |= batch.left().next().is_some();
        applied
    }

    /// Deletes one Node in the state that was seen. A failure is recorded unless it is a conflict: the next
    /// reconciliation sees the changed Node, and may choose another victim.
    pub(super) async fn delete_one(&self, set: &str, node: &Arc<NodeView>) -> Result<(), ApiError> {
        let is_repeated =
            self.expectations(set, |expectations| expectations.deleting(&node.name, &node.resource_version));
        let result = api::delete(&self.node_api, &api::metadata(node), false).await;
        // The watch may have shown the deletion already.
        let now = self.context.nodes.get(&node.name);
        let changed = now.as_ref().is_none_or(|now| now.resource_version != node.resource_version);
        self.expectations(set, |expectations| match &result {
            Ok(()) if now.is_none_or(|now| now.deleted_at.is_some()) => expectations.gone(&node.name),
            Ok(()) => expectations.deleted(&node.name),
            // In another state, it has no effect any more: its precondition is the state that was seen. A refusal of a repeated
            // deletion says nothing of the one before, which may have taken effect.
            Err(error) if changed || error.is_final() && !is_repeated => expectations.not_deleted(&node.name),
            // The deletion may have taken effect; the watch will show it.
            Err(_) => {}
        });
        // The Node was gone already.
        if result.as_ref().is_err_and(ApiError::is_not_found) {
            return Ok(());
        }
        let intent = failed_writes::intent(&node.uid);
        self.record(set, Write::Delete, &node.name, intent, result.as_ref().copied());
        self.context.metrics.node_deleted(result.as_ref().copied().map_err(ApiError::reason));
        result
    }
}
