//! Status of a NodeSet: its fields, its conditions, and an event where somebody has to act.
//!
//! Invariant: the next status is based on the one that this process wrote last, since the watch lags behind.
//! A status overwritten by another writer is written again.

use std::{sync::Arc, time::Duration};

use kube::{Api, Resource, api::Patch, core::PartialObjectMeta, runtime::events::EventType};
use kube_ext::{call::call, environment, work_queue::Action};
use kube_node_api::{NodeSet, NodeSetStatus, names};
use kube_node_cache::{CachedNodeSet, NodeView, Written};
use kube_node_planner::{
    conditions::{self, ConditionUpdate},
    set::{self, Report},
    set_planner::{Counts, NodeState, SetPlan},
    set_wait::{GRAVE, SetWait},
};
use serde_json::json;

use super::{
    NodeSetController, Result,
    apply::{Applied, RETRY},
    desired::Settings,
    observe::{Observed, member},
};
use crate::api::{self, patch_params};

/// A status that this process wrote.
#[derive(Debug)]
pub(super) struct LastWrite {
    /// UID of the set.
    uid: Option<String>,
    /// Resource version of the write.
    version: Written,
    /// The status as it was sent.
    sent: NodeSetStatus,
    /// The status as the API server stored it: times have whole seconds, and an older CRD drops fields. None if the write
    /// was refused or had no response.
    stored: Option<NodeSetStatus>,
}

impl NodeSetController {
    /// Writes the status of a reconciled set and returns the action.
    pub(super) async fn write_status(
        &self,
        own: &CachedNodeSet,
        observed: &Observed,
        settings: &Settings,
        members: &[NodeState<'_>],
        plan: &SetPlan<'_>,
        mut applied: Applied,
    ) -> Result<Action> {
        let (refused, retry_in) = self.failed_writes(own.name(), |failures| {
            (failures.problems(), failures.next_retry_in(environment::now()))
        });
        applied.problems.extend(refused);
        let (set, old) = (&observed.set, &observed.status);
        let mut update_revision = observed.revision();
        if let (Some(before), Some(now)) = (old.update_revision.as_deref(), update_revision)
            && before != now
        {
            // Until this has succeeded, the status keeps the previous revision, so that it is repeated.
            if let Err(error) = self.context.revisions.raise(&set.spec.node_class_name, now).await {
                applied.problems.push(SetWait::of_set("RevisionNotRaised", error.chain()));
                applied.failed = true;
                update_revision = Some(before);
            }
        }
        let report = Report {
            replicas: usize::try_from(set.spec.replicas).unwrap_or(0),
            generation: set.metadata.generation,
            class_generation: observed.class_generation,
            restarted_at: settings.restarted_at,
            update_revision,
            selector: format!("{}={}", names::LABEL_NODESET, own.name()),
            paused: set.spec.paused == Some(true),
            creating: self.expectations(own.name(), |expectations| expectations.pending_creations()),
            members,
            plan,
            given_up: applied.given_up.as_deref(),
            problems: &applied.problems,
            old,
        };
        self.write(own, &report).await?;
        // The time of a retry is exact. That of a condition has whole seconds, and may be up to 1 s later
        // than it says.
        let left = plan.requeue_after.map(|left| left + RETRY);
        let left = left.into_iter().chain(applied.retry_in(retry_in)).min();
        Ok(match left {
            _ if applied.failed => Action::Failed,
            _ if applied.more => Action::RequeueAfter(Duration::ZERO),
            Some(left) => Action::RequeueAfter(left.min(Duration::from_hours(1))),
            None => Action::AwaitChange,
        })
    }

    /// Writes the status of a leaving set.
    pub(super) async fn write_leaving_status(
        &self,
        own: &CachedNodeSet,
        nodes: &[Arc<NodeView>],
        applied: &Applied,
    ) -> Result<()> {
        let members: Vec<NodeState<'_>> =
            nodes.iter().map(|node| member(node, &[], &[], |condition| condition.since)).collect();
        let counts = Counts { leaving: members.len(), ..Counts::default() };
        let unprotected = members.iter().filter(|member| member.unprotected).count();
        let waits = SetWait::of_unprotected(unprotected).into_iter().collect();
        let plan = SetPlan { counts, waits, ..SetPlan::default() };
        let set = own.object.as_ref();
        let old = set.map_or_else(|_| NodeSetStatus::default(), |set| self.last_status(set));
        let report = Report {
            replicas: 0,
            generation: own.metadata.generation,
            class_generation: None,
            restarted_at: None,
            update_revision: None,
            selector: format!("{}={}", names::LABEL_NODESET, own.name()),
            paused: false,
            creating: 0,
            members: &members,
            plan: &plan,
            given_up: None,
            problems: &applied.problems,
            old: &old,
        };
        self.write(own, &report).await
    }

    async fn write(&self, own: &CachedNodeSet, report: &Report<'_>) -> Result<()> {
        for SetWait { reason, message, .. } in report.problems {
            self.context.events.warn(&own.object_ref(&()), reason, "Reconcile", message.clone());
        }
        let status = set::status(report, environment::now());
        if status == *report.old && !self.status_was_overwritten(own) {
            return Ok(());
        }
        self.record_events(own, report.old, &status);
        let precondition = api::same_generation(&own.metadata);
        let written = match api::replace_status(&self.api, own.name(), precondition, &status).await {
            // The spec has changed: the watch is about to show it, and the set is reconciled again.
            Err(error) if error.is_failed_test() => return Ok(()),
            other => other,
        };
        // A write without a response may have taken effect. So the next status is based on this one, and written in any case.
        let stored = written.as_ref().ok();
        let version = stored.and_then(|set| set.metadata.resource_version.as_deref());
        let last = LastWrite {
            uid: own.metadata.uid.clone(),
            version: self.context.sets.written(version.unwrap_or_default()),
            sent: status,
            stored: stored.and_then(|set| set.status.clone()),
        };
        self.written.lock().insert(own.name().to_owned(), last);
        match written {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns true if the status that the watch shows differs from the one that this process wrote last, or if nobody
    /// knows whether that one was written.
    pub(super) fn status_was_overwritten(&self, own: &CachedNodeSet) -> bool {
        let Ok(set) = &own.object else { return false };
        let written = self.written.lock();
        let Some(last) = written.get(own.name()).filter(|last| last.uid == own.metadata.uid) else {
            return false;
        };
        let shown = own.metadata.resource_version.as_deref().unwrap_or_default();
        last.stored.is_none() || !self.context.sets.is_stale(shown, last.version) && set.status != last.stored
    }

    /// Records the events of a rollout (started, complete, abandoned) and of each new wait that degrades the set.
    fn record_events(&self, own: &CachedNodeSet, old: &NodeSetStatus, new: &NodeSetStatus) {
        let on = own.object_ref(&());
        let events = &self.context.events;
        let revision =
            |status: &NodeSetStatus| status.rollout.as_ref().map(|rollout| rollout.revision.clone());
        let rollout = match (revision(old), revision(new)) {
            (before, Some(now)) if before.as_ref() != Some(&now) => {
                Some(("RolloutStarted", format!("rolling the nodes to revision {now}")))
            }
            (Some(before), None) if new.update_revision.as_ref() != Some(&before) => {
                Some(("RolloutAbandoned", format!("the nodes are not rolled to revision {before} any more")))
            }
            (Some(before), None) => Some(("RolloutComplete", format!("all nodes have revision {before}"))),
            _ => None,
        };
        if let Some((reason, note)) = rollout {
            events.occurred(&on, EventType::Normal, reason, "Rollout", note);
        }
        for reason in GRAVE {
            let find = |status: &NodeSetStatus| {
                status.waits.iter().find(|wait| wait.reason == reason).map(|wait| wait.message.clone())
            };
            if let (None, Some(message)) = (find(old), find(new)) {
                if reason == "ProgressDeadlineExceeded" {
                    events.occurred(&on, EventType::Warning, reason, "Rollout", message);
                } else {
                    events.warn(&on, reason, "Reconcile", message);
                }
            }
        }
    }

    /// The status that this process wrote last, else the one that the watch shows.
    pub(super) fn last_status(&self, set: &NodeSet) -> NodeSetStatus {
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let written = self.written.lock();
        match written.get(name) {
            Some(last) if last.uid == set.metadata.uid => last.sent.clone(),
            _ => set.status.clone().unwrap_or_default(),
        }
    }

    /// Reports a set that cannot be read. The set and its Nodes are left as they are.
    pub(super) async fn unreadable(&self, own: &CachedNodeSet) -> Result<Action> {
        let Err(error) = &own.object else { return Ok(Action::AwaitChange) };
        let message = format!("the object does not fit its definition, so nothing is done for it: {error}");
        if !self.context.events.warn(&own.object_ref(&()), "Unreadable", "Reconcile", message.clone()) {
            return Ok(Action::AwaitChange);
        }
        let update = |r#type, status| ConditionUpdate::new(r#type, status, "Unreadable", message.as_str());
        let updates = vec![update("Degraded", true), update("Ready", false)];
        let conditions = conditions::set(&[], updates, own.metadata.generation, environment::now());
        // The unreadable part may be in the rest of the status, which is left alone.
        let status = json!({ "conditions": conditions });
        let api = Api::<PartialObjectMeta<NodeSet>>::all(self.context.client.clone());
        let (params, change) = (patch_params(), Patch::Merge(json!({ "status": status })));
        let write = api.patch_status(own.name(), &params, &change);
        match call(format!("write the status of NodeSet {}", own.name()), write).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::AwaitChange),
        }
    }
}
