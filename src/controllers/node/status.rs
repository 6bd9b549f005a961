//! Status of a Node: its wait reason in a metric, obstacles in conditions, and one event when somebody has to act.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{PartialObjectMeta, Patch},
};
use kube_ext::{
    call::{ApiError, call},
    environment,
};
use kube_node_api::names::{CONDITION_DRAINED, CONDITION_MACHINE, GROUP, LABEL_REVISION};
use kube_node_cache::{ConditionView, NodeView};
use kube_node_planner::{conditions::ConditionUpdate, wait::NodeWait};
use parking_lot::Mutex;
use serde_json::json;

use super::{NodeController, Result, observe::Observed};
use crate::{
    api::patch_params,
    provider::{Existing, Stage, Trouble},
    reference_to_node,
};

/// Reported state of each Node that waits, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportedWaits(Arc<Mutex<HashMap<Arc<str>, ReportedWait>>>);

#[derive(Debug)]
struct ReportedWait {
    /// UID of the Node: a name may be used again.
    uid: Arc<str>,
    /// Wait reason, counted in the metric.
    reason: &'static str,
    /// Last written condition `kube-node.io/Drained`: the watch may lag behind.
    drained: Option<ConditionUpdate>,
    /// Reasons that have had their event.
    events: HashSet<&'static str>,
}

impl ReportedWaits {
    /// Records the wait reason of a Node; None: the Node does not wait.
    pub(super) fn set(&self, node: &NodeView, reason: Option<&'static str>) {
        let Some(reason) = reason else { return self.forget(&node.name) };
        if self.with(node, |wait| wait.reason = reason).is_none() {
            let uid = Arc::clone(&node.uid);
            let new = ReportedWait { uid, reason, drained: None, events: HashSet::new() };
            self.0.lock().insert(Arc::clone(&node.name), new);
        }
    }

    /// Returns true if a wait of the Node is recorded.
    pub(super) fn has(&self, node: &NodeView) -> bool {
        self.with(node, |_| ()).is_some()
    }

    /// Drops a Node that no longer waits.
    pub(super) fn forget(&self, node: &str) {
        self.0.lock().remove(node);
    }

    /// Reason of each Node that waits.
    pub(crate) fn reasons(&self) -> Vec<&'static str> {
        self.0.lock().values().map(|wait| wait.reason).collect()
    }

    fn with<T>(&self, node: &NodeView, with: impl FnOnce(&mut ReportedWait) -> T) -> Option<T> {
        self.0.lock().get_mut(&node.name).filter(|wait| wait.uid == node.uid).map(with)
    }
}

impl NodeController {
    /// Reports the wait reason of a leaving Node. Each reason has one event in the life of a Node.
    pub(super) async fn report_wait(&self, node: &NodeView, wait: &NodeWait) -> Result<()> {
        let shown = node.condition(CONDITION_DRAINED).filter(|condition| &*condition.status == "False");
        let last = self.waits.with(node, |wait| wait.drained.clone()).flatten();
        let in_the_way = last.as_ref().map_or(shown.is_some(), |last| !last.status);
        let lasts = environment::now().duration_since(self.drain_began(node));
        let lasts = Duration::try_from(lasts).unwrap_or_default();
        let Some(update) = wait.drained(in_the_way, lasts) else { return Ok(()) };
        if last.as_ref() == Some(&update) {
            return Ok(());
        }
        // If the Node already shows this reason, the previous process recorded the event.
        let is_shown = shown.is_some_and(|shown| &*shown.reason == update.reason);
        let is_first = || self.waits.with(node, |wait| wait.events.insert(update.reason)) == Some(true);
        if wait.needs_somebody() && is_first() && !is_shown {
            self.warn(node, "DrainBlocked", update.message.clone());
        }
        let ConditionUpdate { r#type, status, reason, message } = &update;
        set_condition(&self.api, node, r#type, *status, reason, message).await?;
        self.waits.with(node, |wait| wait.drained = Some(update));
        Ok(())
    }

    /// Reports an obstacle of the machine, and its end. `accepted`: no write of the Node was refused just now.
    pub(super) async fn report_machine(&self, observed: &Observed, accepted: bool) -> Result<()> {
        let node = &observed.node;
        if let Some(back_off) = &observed.back_off {
            return self.report_obstacle(node, NodeWait::MachineBackOff.reason(), &back_off.message).await;
        }
        let condition = node.condition(CONDITION_MACHINE);
        match &observed.existing {
            Some(Existing { trouble: Some(Trouble { reason, message }), .. }) => {
                self.report_obstacle(node, reason, message).await
            }
            Some(Existing { stage: Stage::Up, last_end: Some(Trouble { reason, message }), .. }) => {
                if condition.is_none_or(|shown| shown.message.as_deref() != Some(message)) {
                    self.warn(node, reason, message.clone());
                }
                Ok(set_condition(&self.api, node, CONDITION_MACHINE, true, "Restarted", message).await?)
            }
            _ if !observed.unknown_fields().is_empty() => {
                let (revision, fields) =
                    (node.label(LABEL_REVISION).unwrap_or_default(), observed.unknown_fields());
                let message = format!(
                    "its revision {revision} has fields that this release does not know, and its machine is made without them ({}): run the release that wrote the revision, or change the class, which makes a revision of this release",
                    fields.join(", ")
                );
                self.report_obstacle(node, "RevisionNotHonoured", &message).await
            }
            existing => {
                let is_up = existing.as_ref().is_some_and(|machine| machine.stage == Stage::Up);
                // A refusal is over once a write is accepted, whatever the machine does.
                let is_over = |shown: &ConditionView| {
                    if is_refusal(shown) { accepted } else { is_up && &*shown.status == "False" }
                };
                if !condition.is_some_and(is_over) {
                    return Ok(());
                }
                let message = "nothing stands in its way";
                Ok(set_condition(&self.api, node, CONDITION_MACHINE, true, "Running", message).await?)
            }
        }
    }

    /// Reports an obstacle of the machine.
    pub(super) async fn report_obstacle(&self, node: &NodeView, reason: &str, message: &str) -> Result<()> {
        self.warn(node, reason, message.to_owned());
        Ok(set_condition(&self.api, node, CONDITION_MACHINE, false, reason, message).await?)
    }

    pub(super) fn warn(&self, node: &NodeView, reason: &str, text: String) {
        self.context.events.warn(&reference_to_node(node), reason, "Reconcile", text);
    }
}

/// Writes a condition onto a Node, unless the Node shows it already.
pub async fn set_condition(
    api: &Api<PartialObjectMeta<Node>>,
    node: &NodeView,
    r#type: &str,
    status: bool,
    reason: &str,
    message: &str,
) -> Result<(), ApiError> {
    let status = if status { "True" } else { "False" };
    let old = node.condition(r#type).filter(|old| &*old.status == status);
    if old.is_some_and(|old| &*old.reason == reason && old.message.as_deref() == Some(message)) {
        return Ok(());
    }
    let now = environment::now();
    let since = old.and_then(|old| old.since).unwrap_or(now);
    let condition = NodeCondition {
        type_: r#type.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(since)),
    };
    // A strategic merge patch merges conditions by type, so a kubelet's are not touched.
    let patch = json!({ "metadata": { "uid": &*node.uid }, "status": { "conditions": [condition] } });
    let action = format!("write a condition of Node {}", node.name);
    let patch = Patch::Strategic(patch);
    call(action, api.patch_status(&node.name, &patch_params(), &patch)).await.map(drop)
}

/// Returns true if two states of a Node differ in the messages of conditions of kube-node, and in nothing else but their
/// version.
pub(super) fn differ_only_in_messages(old: &NodeView, new: &NodeView) -> bool {
    let is_reworded = |(old, new): (&ConditionView, &ConditionView)| {
        old.r#type.starts_with(GROUP) && old.r#type == new.r#type && old.message != new.message
    };
    // Few events get past this line: each event of a Node is compared here, and a Node is large to clone.
    if !old.conditions.iter().zip(&new.conditions).any(is_reworded) {
        return false;
    }
    let mut same = NodeView { resource_version: old.resource_version.clone(), ..new.clone() };
    for (old, same) in old.conditions.iter().zip(&mut same.conditions) {
        if is_reworded((old, same)) {
            same.message.clone_from(&old.message);
        }
    }
    same == *old
}

/// Returns true if the condition reports a refused write of the Node, not the machine.
fn is_refusal(condition: &ConditionView) -> bool {
    &*condition.reason == NodeWait::REFUSED
}

#[cfg(test)]
mod tests {
    use kube_node_cache::intern;

    use super::*;

    fn node(version: &str, conditions: &[(&str, &str, &str)]) -> NodeView {
        let conditions = conditions.iter().map(|(r#type, reason, message)| ConditionView {
            r#type: intern(r#type),
            status: intern("False"),
            reason: intern(reason),
            since: None,
            message: Some(intern(message)),
        });
        NodeView {
            resource_version: version.to_owned(),
            conditions: conditions.collect(),
            ..NodeView::default()
        }
    }

    #[test]
    fn nodes_that_differ_in_a_reason_or_a_field_differ_not_only_in_messages() {
        let old = node("1", &[("Ready", "A", "a"), (CONDITION_DRAINED, "EvictionRefused", "request 1")]);
        let told = node("2", &[("Ready", "A", "a"), (CONDITION_DRAINED, "EvictionRefused", "request 2")]);
        assert!(differ_only_in_messages(&old, &told));
        for news in [
            node("2", &[("Ready", "A", "a"), (CONDITION_DRAINED, "EvictionRefused", "request 1")]),
            node("2", &[("Ready", "A", "a"), (CONDITION_DRAINED, "PodDisruptionBudget", "request 2")]),
            node("2", &[("Ready", "A", "b"), (CONDITION_DRAINED, "EvictionRefused", "request 1")]),
            node("2", &[("Ready", "B", "a"), (CONDITION_DRAINED, "EvictionRefused", "request 2")]),
            node("2", &[("Ready", "A", "a")]),
            NodeView { unschedulable: true, ..told.clone() },
        ] {
            assert!(!differ_only_in_messages(&old, &news), "{news:?}");
        }
    }
}
