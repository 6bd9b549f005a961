//! Plan of one reconciliation of a set, with its waits.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::{ReplacementOrder, RolloutStatus, StartFailures};

use super::{DeletionStage, DesiredState, NodeState};
use crate::{disruption::DisruptionReason, set_wait::SetWait};

/// A Node to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion<'a> {
    /// Name of the Node.
    pub name: &'a str,
    /// Reason of the deletion; None if the set shrinks.
    pub cause: Option<DisruptionReason>,
}

/// Numbers of Nodes by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nodes that are not leaving.
    pub staying: usize,
    /// Of the staying Nodes, those Ready and schedulable.
    pub ready: usize,
    /// Of the staying Nodes, those available.
    pub available: usize,
    /// Of the staying Nodes, those of the set's revision.
    pub updated: usize,
    /// Of the updated Nodes, those available.
    pub updated_available: usize,
    /// Nodes of other revisions, leaving ones included.
    pub outdated: usize,
    /// Of the staying Nodes, those to replace now or later.
    pub to_replace: usize,
    /// Unhealthy Nodes.
    pub unhealthy: usize,
    /// Leaving Nodes.
    pub leaving: usize,
}

/// Result of one reconciliation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetPlan<'a> {
    /// Number of Nodes to create.
    pub create: usize,
    /// Of the Nodes to create, number that get the revision that works, not the newest.
    pub create_current: usize,
    /// True if creations with an unknown outcome may be sent again. With too many machines they are looked up
    /// instead: a creation that never took effect must not take effect now.
    pub ask_again: bool,
    /// Number of missing Nodes, creatable now or not.
    pub missing: usize,
    /// True if more Nodes are to be created by an immediate further reconciliation.
    pub more: bool,
    /// Nodes to delete, first victim first; they may start draining.
    pub delete: Vec<Deletion<'a>>,
    /// Leaving Nodes that may start draining.
    pub drain_permits: Vec<&'a str>,
    /// Numbers of Nodes by state.
    pub counts: Counts,
    /// Status of the rollout; None while no Node is to be replaced.
    pub rollout: Option<RolloutStatus>,
    /// Nodes of the set that failed to start, without those that this plan gives up.
    pub start_failures: Option<StartFailures>,
    /// Remaining waits, the most important first.
    pub waits: Vec<SetWait>,
    /// Time after which the plan may change without a watch event.
    pub requeue_after: Option<Duration>,
}

impl SetPlan<'_> {
    /// Adds a wait; its message is the number of Nodes and the text.
    pub(super) fn wait(&mut self, reason: &'static str, nodes: usize, text: &str) {
        self.waits.push(SetWait::new(reason, nodes, format!("{nodes} {text}")));
    }

    pub(super) fn requeue_in(&mut self, soon: Option<Duration>) {
        self.requeue_after = self.requeue_after.into_iter().chain(soon).min();
    }

    /// Number of new Nodes above the replicas that stay although no Node is replaced now: a rollout that is
    /// held, or whose class cannot be used, keeps its surge.
    pub(super) fn kept_surge(&self, wanted: &DesiredState<'_>) -> usize {
        let held = self.waits.iter().any(|wait| matches!(wait.reason, "Paused" | "ProgressDeadlineExceeded"));
        let stopped = wanted.rules.revision.is_none() && self.rollout.is_some();
        if held || stopped { wanted.budget.surge.min(self.counts.updated) } else { 0 }
    }

    /// Checks the invariants of this module; called by tests and debug builds.
    pub fn check(
        &self,
        wanted: &DesiredState<'_>,
        members: &[NodeState<'_>],
        expected: usize,
        now: Timestamp,
    ) -> Result<(), String> {
        let most = wanted.replicas + wanted.budget.surge;
        if self.create > 0 && members.len() + expected + self.create > most {
            return Err(format!(
                "{} more machines than {most} with {}",
                self.create,
                members.len() + expected
            ));
        }
        if let Some(class) = wanted.class_room.filter(|class| self.create > class.left) {
            return Err(format!("{} more Nodes of a class that may have {} more", self.create, class.left));
        }
        let available = |member: &NodeState<'_>| {
            member.available_in(wanted.min_ready, now).is_some_and(|left| left.is_zero())
        };
        let before = members.iter().filter(|member| available(member)).count();
        let mut names: Vec<&str> = self.delete.iter().map(|deletion| deletion.name).collect();
        names.extend(&self.drain_permits);
        names.sort_unstable();
        let distinct = names.len();
        names.dedup();
        if names.len() < distinct {
            return Err("a Node goes twice".to_owned());
        }
        let must_go =
            |m: &&NodeState<'_>| m.victim && m.stage == DeletionStage::Staying && !m.deletion_refused;
        for member in members.iter().filter(must_go) {
            if names.binary_search(&member.name).is_err() {
                return Err(format!("{} was named to go, and stays", member.name));
            }
        }
        let mut lost = 0;
        for member in members.iter().filter(|member| names.binary_search(&member.name).is_ok()) {
            let deleted = self.delete.iter().any(|d| d.name == member.name);
            if deleted && member.stage != DeletionStage::Staying {
                return Err(format!("{} leaves already", member.name));
            }
            if deleted && member.deletion_refused {
                return Err(format!("the deletion of {} was refused a moment ago", member.name));
            }
            lost += usize::from(available(member) && !member.marked && !member.victim);
        }
        let drained = members
            .iter()
            .filter(|member| member.autoscaler_drains && member.stage == DeletionStage::Staying)
            .count();
        let replicas = wanted.replicas.saturating_sub(drained);
        let least = match wanted.replacement {
            ReplacementOrder::SurgeFirst => wanted.budget.floor(replicas),
            ReplacementOrder::DeleteFirst => replicas.saturating_sub(wanted.budget.unavailable.max(1)),
        };
        if lost > 0 && before - lost < least {
            return Err(format!("{lost} of {before} available Nodes go, and {least} have to be"));
        }
        Ok(())
    }
}
