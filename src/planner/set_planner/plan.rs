//! Plan of one reconciliation of a set, with its waits.

use std::{fmt::Display, time::Duration};

use kube_node_api::{RolloutStatus, StartFailures};

use super::DesiredState;
use crate::{
    disruption::DisruptionReason,
    set_wait::{SetWait, nodes},
};

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
    /// Of the missing Nodes, number that are to get the revision that works.
    pub missing_current: usize,
    /// True if Nodes come or go, or will after a back-off. A rollout that waits for others alone, such as for a Node that
    /// cannot be deleted, does not move.
    pub moves: bool,
    /// True if more Nodes are to be created by an immediate further reconciliation.
    pub more: bool,
    /// Nodes to delete, first victim first; they may start draining.
    pub delete: Vec<Deletion<'a>>,
    /// Nodes whose deletion was refused, and is still wanted.
    pub retry_deletions: Vec<&'a str>,
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
    pub(super) fn wait(&mut self, reason: &'static str, count: usize, text: impl Display) {
        self.wait_of(reason, count, ["is", "are"], text);
    }

    /// The same with another verb, for one Node and for several.
    pub(super) fn wait_of(
        &mut self,
        reason: &'static str,
        count: usize,
        [one, many]: [&str; 2],
        text: impl Display,
    ) {
        self.waits.push(SetWait::new(reason, count, format!("{} {text}", nodes(count, one, many))));
    }

    /// Makes the time after which the plan may change this one, if that is earlier.
    pub fn requeue_in(&mut self, soon: Option<Duration>) {
        self.requeue_after = self.requeue_after.into_iter().chain(soon).min();
    }

    /// Number of new Nodes above the replicas that stay although no Node is replaced now: a rollout that is
    /// held, or whose class cannot be used or read, keeps its surge.
    pub(super) fn retained_surge(&self, desired: &DesiredState<'_>) -> usize {
        let held = self.waits.iter().any(|wait| matches!(wait.reason, "Paused" | "ProgressDeadlineExceeded"));
        let stopped =
            desired.rules.revision.is_none() && (self.rollout.is_some() || desired.revision_unanswered);
        if held || stopped { desired.budget.surge.min(self.counts.updated) } else { 0 }
    }
}
