//! Says how a NodeSet stands: status, conditions, and an event where somebody has to act.

use std::{sync::PoisonError, time::Duration};

use jiff::Timestamp;

use super::{
    Error, NodeSetController,
    apply::{Applied, RETRY},
    observe::{Observed, member},
};
use crate::{
    api::{NodeSet, NodeSetStatus, names},
    cache::{NodeView, Own},
    controllers::{api, reference_to},
    core::{
        conditions::{self, Says},
        set::{self, Problem, Report},
        turnover::{Counts, Member, Plan},
    },
    runtime::work_queue::Action,
};

/// What a look has seen and decided.
pub(super) struct Seen<'a> {
    pub(super) observed: &'a Observed,
    pub(super) members: &'a [Member<'a>],
    pub(super) plan: &'a Plan<'a>,
    pub(super) old: &'a NodeSetStatus,
}

impl NodeSetController {
    /// Writes the status of a set that was worked on, and says when to look again.
    pub(super) async fn status(
        &self,
        own: &Own<NodeSet>,
        set: &NodeSet,
        seen: Seen<'_>,
        applied: &Applied,
    ) -> Result<Action, Error> {
        let report = Report {
            replicas: usize::try_from(set.spec.replicas).unwrap_or(0),
            generation: set.metadata.generation,
            update_revision: seen
                .observed
                .blueprint
                .as_ref()
                .ok()
                .map(|blueprint| blueprint.revision.as_str()),
            selector: selector(&seen.observed.name),
            paused: set.spec.paused == Some(true),
            creating: self.expectations(own.name(), |expectations| expectations.pending_creations()),
            members: seen.members,
            plan: seen.plan,
            problem: applied.problem.as_ref(),
            old: seen.old,
        };
        let (before, now) = (seen.old.update_revision.as_deref(), report.update_revision);
        if let (Some(before), Some(now)) = (before, now)
            && before != now
        {
            self.context.revisions.raise(&set.spec.node_class_name, now).await?;
        }
        self.write(own, &report).await?;
        Ok(match seen.plan.look_again {
            _ if applied.failed => Action::Failed,
            _ if applied.more => Action::RequeueAfter(Duration::ZERO),
            // A condition's time is whole seconds, so the moment may be up to one later than it says.
            Some(left) => Action::RequeueAfter(left.min(Duration::from_hours(1)) + RETRY),
            None => Action::AwaitChange,
        })
    }

    /// Writes the status of a set that leaves.
    pub(super) async fn leaving_status(&self, own: &Own<NodeSet>, nodes: &[&NodeView]) -> Result<(), Error> {
        let members: Vec<Member<'_>> = nodes.iter().map(|node| member(node, &[], &[])).collect();
        let counts = Counts { leaving: members.len(), ..Counts::default() };
        let plan = Plan { counts, ..Plan::default() };
        let old = self.last_status(own);
        let report = Report {
            replicas: 0,
            generation: own.metadata.generation,
            update_revision: None,
            selector: selector(own.name()),
            paused: false,
            creating: 0,
            members: &members,
            plan: &plan,
            problem: None,
            old: &old,
        };
        self.write(own, &report).await
    }

    async fn write(&self, own: &Own<NodeSet>, report: &Report<'_>) -> Result<(), Error> {
        if let Some(Problem { reason, message }) = report.problem {
            self.context.events.warn(&reference_to(own), reason, "Reconcile", message.clone());
        }
        let status = set::stand(report, Timestamp::now());
        if status == *report.old {
            return Ok(());
        }
        self.say_what_changed(own, report.old, &status);
        match api::replace_status::<NodeSet>(&self.context.client, own.name(), None, &status).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(own.name().to_owned(), (own.metadata.uid.clone(), status));
        Ok(())
    }

    /// Events of a rollout: begun, done, halted; and what has begun to degrade the set.
    fn say_what_changed(&self, own: &Own<NodeSet>, old: &NodeSetStatus, new: &NodeSetStatus) {
        let on = reference_to(own);
        let events = &self.context.events;
        let revision =
            |status: &NodeSetStatus| status.rollout.as_ref().map(|rollout| rollout.revision.clone());
        match (revision(old), revision(new)) {
            (before, Some(now)) if before.as_ref() != Some(&now) => {
                let note = format!("rolling the nodes to revision {now}");
                events.normal(&on, "RolloutStarted", "Rollout", note);
            }
            (Some(before), None) => {
                events.normal(&on, "RolloutComplete", "Rollout", format!("all nodes have revision {before}"));
            }
            _ => {}
        }
        let grave = ["ProgressDeadlineExceeded", "TooManySick", "BackOff"];
        for wait in new.waits.iter().filter(|wait| grave.contains(&wait.reason.as_str())) {
            if let Some(reason) = grave.into_iter().find(|reason| *reason == wait.reason)
                && !old.waits.iter().any(|old| old.reason == reason)
            {
                events.warn(&on, reason, "Reconcile", wait.message.clone());
            }
        }
    }

    /// The status as this process wrote it last, else as the watch shows it.
    pub(super) fn last_status(&self, own: &Own<NodeSet>) -> NodeSetStatus {
        own.object.as_ref().map_or_else(|_| NodeSetStatus::default(), |set| self.last_status_of(set))
    }

    pub(super) fn last_status_of(&self, set: &NodeSet) -> NodeSetStatus {
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match written.get(name) {
            Some((uid, status)) if *uid == set.metadata.uid => status.clone(),
            _ => set.status.clone().unwrap_or_default(),
        }
    }

    /// Says of a set that nobody can read what is wrong with it. It is left as it is, its Nodes too.
    pub(super) async fn unreadable(&self, own: &Own<NodeSet>) -> Result<Action, Error> {
        let Err(error) = &own.object else { return Ok(Action::AwaitChange) };
        let message = format!("the object does not fit its definition, so nothing is done for it: {error}");
        if !self.context.events.warn(&reference_to(own), "Unreadable", "Reconcile", message.clone()) {
            return Ok(Action::AwaitChange);
        }
        let says = Says { r#type: "Degraded", status: true, reason: "Unreadable", message };
        let status = NodeSetStatus {
            conditions: conditions::set(&[], vec![says], own.metadata.generation, Timestamp::now()),
            ..NodeSetStatus::default()
        };
        // The rest of its status may be what cannot be read: it is left alone.
        let conditions = serde_json::json!({ "conditions": status.conditions });
        match api::patch_status::<NodeSet>(&self.context.client, own.name(), &conditions).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::AwaitChange),
        }
    }
}

fn selector(set: &str) -> String {
    format!("{}={set}", names::LABEL_NODESET)
}
