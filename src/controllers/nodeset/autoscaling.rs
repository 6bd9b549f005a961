//! Sets that cluster-autoscaler scales: victims are removed from the record once they leave, and
//! cluster-autoscaler is kept off the Nodes during a rollout.

use std::collections::{BTreeSet, HashSet};

use kube_ext::call::ApiError;
use kube_node_api::{NodeSet, names};
use kube_node_cache::NodeView;
use kube_node_planner::{
    autoscaling::record,
    set_planner::SetPlan,
    template::{DesiredTemplate, is_foreign_annotation},
};
use serde_json::json;

use super::{NodeSetController, observe::Observed};
use crate::api;

impl NodeSetController {
    /// Removes Nodes that leave or are gone from the record of victims. The other entries are left to their writers.
    pub(super) async fn forget_victims(&self, observed: &Observed) -> Result<(), ApiError> {
        let staying: HashSet<&str> =
            observed.nodes().filter(|node| node.deleted_at.is_none()).map(|node| &*node.uid).collect();
        let stays = |uid: &&String| staying.contains(uid.as_str());
        let left: BTreeSet<String> = observed.victims.iter().filter(stays).cloned().collect();
        if left.len() == observed.victims.len() {
            return Ok(());
        }
        let annotations = json!({ names::ANNOTATION_VICTIMS: record(&left) });
        let change = json!({ "metadata": { "annotations": annotations } });
        api::patch(&self.api, &observed.set.metadata, change, "change the record").await
    }
}

/// Returns true if cluster-autoscaler must leave the Nodes alone. During a rollout it would use the room that
/// the rollout made, and take the Nodes being emptied for unneeded ones. A rollout that does not move makes no room, and may
/// wait for ever.
pub(super) fn must_stay_off(set: &NodeSet, plan: &SetPlan<'_>) -> bool {
    let rolls = plan.rollout.as_ref().is_some_and(|rollout| rollout.halt_time.is_none());
    set.spec.autoscaling.is_some()
        && set.spec.paused != Some(true)
        && rolls
        && plan.moves
        && !plan.waits.iter().any(|wait| wait.reason == "OnDelete")
}

/// The template with the annotation that keeps cluster-autoscaler off. The record of applied template keys
/// lists the annotation, so it is removed when it is no longer wanted.
pub(super) fn marked(template: &DesiredTemplate) -> DesiredTemplate {
    template.annotated(names::ANNOTATION_SCALE_DOWN_DISABLED, "true")
}

/// Returns true if a third party set that annotation on the Node: it stays then.
pub(super) fn is_marked_by_others(node: &NodeView) -> bool {
    is_foreign_annotation(&node.annotations, names::ANNOTATION_SCALE_DOWN_DISABLED)
}
