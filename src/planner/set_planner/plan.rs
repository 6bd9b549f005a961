//! Plan of one reconciliation of a set, and what the set waits for then.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::{ReplacementOrder, RolloutStatus, StartFailures};

use super::{DesiredState, NodeState, Stage};
use crate::disruption::DisruptionReason;

/// A Node to delete, and why; None where the set shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion<'a> {
    /// Its name.
    pub name: &'a str,
    /// Why.
    pub cause: Option<DisruptionReason>,
}

/// What the set waits for, as far as its own decision goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Outdated Nodes stay because the rollout is held.
    Held {
        /// How many.
        outdated: usize,
    },
    /// Outdated Nodes stay until somebody deletes them.
    OnDelete {
        /// How many.
        outdated: usize,
    },
    /// Outdated Nodes stay on purpose.
    Partition {
        /// How many.
        outdated: usize,
        /// How many were asked for.
        keep: usize,
    },
    /// Nobody is repaired: so many are sick that the fault is not theirs.
    TooManySick {
        /// How many.
        sick: usize,
        /// How many may be.
        most: usize,
    },
    /// Sick Nodes wait for other repairs to end.
    RepairLimit {
        /// How many wait.
        waiting: usize,
        /// How many may be under way.
        most: usize,
    },
    /// No Node is made, because the last ones did not start.
    BackOff {
        /// How many are missing.
        missing: usize,
        /// For how long.
        left: Duration,
    },
    /// Nodes are missing, and as many machines as may be are there: some have to go first.
    Room {
        /// How many are missing.
        missing: usize,
        /// Machines that are leaving.
        leaving: usize,
        /// Most machines.
        most: usize,
    },
    /// Nodes are missing, and their class has as many as it may have.
    ClassLimit {
        /// How many are missing.
        missing: usize,
        /// `NodeClass.spec.limits.nodes`.
        limit: usize,
    },
    /// Nodes have to go, and too few are available.
    Budget {
        /// How many wait.
        waiting: usize,
        /// Nodes that are available.
        available: usize,
        /// How many have to be.
        least: usize,
    },
    /// Nodes are not available yet.
    Unavailable {
        /// How many.
        nodes: usize,
    },
    /// Nodes are being drained and deleted.
    Leaving {
        /// How many.
        nodes: usize,
    },
}

/// How many Nodes are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nodes that stay.
    pub staying: usize,
    /// Of these, Ready and open to pods.
    pub ready: usize,
    /// Of these, for long enough.
    pub available: usize,
    /// Nodes that stay and have the set's revision.
    pub updated: usize,
    /// Of these, available.
    pub updated_available: usize,
    /// Nodes of another revision, those that leave included.
    pub outdated: usize,
    /// Nodes that stay and have to be replaced, now or when their turn comes.
    pub to_replace: usize,
    /// Nodes that are sick.
    pub sick: usize,
    /// Nodes that leave.
    pub leaving: usize,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan<'a> {
    /// How many Nodes to create.
    pub create: usize,
    /// How many of these are to have the revision that works, not the newest.
    pub create_current: usize,
    /// Whether creations whose outcome is not known may be asked for again. Where there are too many machines already
    /// they are looked up instead: one that never came must not come now.
    pub ask_again: bool,
    /// How many Nodes are missing, whether they may be created now or not.
    pub missing: usize,
    /// True if more are to be created at once by a further reconciliation.
    pub more: bool,
    /// Nodes to delete, the first victim first; their drain may begin.
    pub delete: Vec<Deletion<'a>>,
    /// Nodes that leave already and whose drain may begin.
    pub drain_permits: Vec<&'a str>,
    /// How many are what.
    pub counts: Counts,
    /// The rollout's clock; None while no Node is to be rolled.
    pub rollout: Option<RolloutStatus>,
    /// Nodes of the set that did not start, those aside that this plan gives up.
    pub start_failures: Option<StartFailures>,
    /// What it waits for then, the most important first.
    pub waits: Vec<Wait>,
    /// When time alone may change the plan.
    pub requeue_after: Option<Duration>,
}

impl Plan<'_> {
    pub(super) fn look_again_in(&mut self, soon: Option<Duration>) {
        self.requeue_after = self.requeue_after.into_iter().chain(soon).min();
    }

    /// New Nodes above the replicas that stay although nothing is rolled now: a rollout that is held, or whose class cannot
    /// be used, keeps what it has.
    pub(super) fn kept_surge(&self, wanted: &DesiredState<'_>) -> usize {
        let held = self.waits.iter().any(|wait| matches!(wait, Wait::Held { .. }));
        let stopped = wanted.rules.revision.is_none() && self.rollout.is_some();
        if held || stopped { wanted.budget.surge.min(self.counts.updated) } else { 0 }
    }

    /// Whether the plan keeps to what this module promises; tests and debug builds ask.
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
        let must_go = |m: &&NodeState<'_>| m.named && m.stage == Stage::Staying && !m.deletion_refused;
        for member in members.iter().filter(must_go) {
            if names.binary_search(&member.name).is_err() {
                return Err(format!("{} was named to go, and stays", member.name));
            }
        }
        let mut lost = 0;
        for member in members.iter().filter(|member| names.binary_search(&member.name).is_ok()) {
            let deleted = self.delete.iter().any(|d| d.name == member.name);
            if deleted && member.stage != Stage::Staying {
                return Err(format!("{} leaves already", member.name));
            }
            if deleted && member.deletion_refused {
                return Err(format!("the deletion of {} was refused a moment ago", member.name));
            }
            lost += usize::from(available(member) && !member.marked && !member.named);
        }
        let claimed =
            members.iter().filter(|member| member.claimed && member.stage == Stage::Staying).count();
        let replicas = wanted.replicas.saturating_sub(claimed);
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
