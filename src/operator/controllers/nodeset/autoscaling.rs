//! What a set that cluster-autoscaler scales needs besides: Nodes named to go are taken off the record once they go, and
//! while a rollout works, cluster-autoscaler is kept off its Nodes.

use std::collections::{BTreeSet, HashSet};

use kube_node_api::{NodeSet, names};
use kube_node_cache::NodeView;
use kube_node_planner::{
    autoscaling::record,
    set_planner::{Plan, Wait},
    template::{Desired, is_foreign_annotation},
};
use serde_json::json;

use super::{NodeSetController, apply::seen_set, observe::Observed};
use crate::controllers::{ApiError, api};

impl NodeSetController {
    /// Takes those off the record of Nodes to go that go, or are gone. The rest of the record is left to those who write
    /// it.
    pub(super) async fn forget_victims(&self, set: &NodeSet, observed: &Observed) -> Result<(), ApiError> {
        let staying: HashSet<&str> =
            observed.nodes().filter(|node| node.deleted_at.is_none()).map(|node| &*node.uid).collect();
        let stays = |uid: &&String| staying.contains(uid.as_str());
        let left: BTreeSet<String> = observed.victims.iter().filter(stays).cloned().collect();
        if left.len() == observed.victims.len() {
            return Ok(());
        }
        let annotations = json!({ names::ANNOTATION_VICTIMS: record(&left) });
        let change = json!({ "metadata": { "annotations": annotations } });
        match api::patch::<NodeSet>(&self.context.client, seen_set(set), change, "change the record").await {
            // The set changed meanwhile: its event brings the next reconciliation.
            Err(error) if error.is_conflict() => Ok(()),
            other => other,
        }
    }
}

/// Whether cluster-autoscaler is to leave the Nodes alone: while a rollout works, it would take the room that the rollout
/// made for its own, and those that are emptied for unneeded ones.
pub(super) fn keeps_off(set: &NodeSet, plan: &Plan<'_>) -> bool {
    let rolls = plan.rollout.as_ref().is_some_and(|rollout| rollout.halt_time.is_none());
    set.spec.autoscaling.is_some()
        && set.spec.paused != Some(true)
        && rolls
        && !plan.waits.iter().any(|wait| matches!(wait, Wait::OnDelete { .. }))
}

/// The template with the mark that keeps cluster-autoscaler off. The record of what came from templates says that it is
/// ours, so it leaves when it is not asked for any more.
pub(super) fn marked(template: &Desired) -> Desired {
    template.annotated(names::ANNOTATION_SCALE_DOWN_DISABLED, "true")
}

/// Whether somebody else has written that mark onto the Node: it stays then.
pub(super) fn is_marked_by_others(node: &NodeView) -> bool {
    is_foreign_annotation(&node.annotations, names::ANNOTATION_SCALE_DOWN_DISABLED)
}
