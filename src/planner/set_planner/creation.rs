//! Creations during one reconciliation: how many Nodes, and of which revision.
//!
//! Input: the missing Nodes, and what limits new Nodes of each revision. Invariant: a revision whose Nodes do not start, or
//! are refused by the API server, delays no Node of the other one.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::{ReplacementOrder, StartFailures};

use super::{DesiredState, Planner, RolloutMode};
use crate::rollout;

/// Maximum number of Nodes created in one reconciliation: keeps reconciliations short, so that a set of
/// thousands reacts to a change of its replicas while it grows.
pub const CREATE_BATCH: usize = 500;

/// Limits for new Nodes of one revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreationLimits {
    /// Permission from the API server's last responses.
    pub creation: Creation,
    /// Back-off after Nodes of this revision failed to start in other sets of the class.
    pub class_back_off: Duration,
}

/// The revision that works, which most Nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkingRevision<'a> {
    /// Name of the revision.
    pub revision: &'a str,
    /// Limits for its new Nodes.
    pub limits: CreationLimits,
}

/// Permission to create Nodes, from the API server's last responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Creation {
    /// All missing Nodes may be created.
    #[default]
    Allowed,
    /// One Node may be created, to test whether the API server accepts it now.
    Probed,
    /// No Node may be created for a while: the API server refused the last one.
    Refused {
        /// Time until the next attempt.
        retry_in: Duration,
    },
}

/// Remainder of `NodeClass.spec.limits.nodes`, counted over all Nodes of the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassRoom {
    /// Number of Nodes that may still be created.
    pub left: usize,
    /// `NodeClass.spec.limits.nodes`.
    pub limit: usize,
}

/// New Nodes of one revision.
struct Part {
    count: usize,
    creation: Creation,
    back_off: Duration,
}

impl DesiredState<'_> {
    /// Returns true if Nodes of the newest revision failed to start, or if nobody knows that revision.
    pub(super) fn is_of_newest(&self, failures: &StartFailures) -> bool {
        !self.is_of_working(failures)
            && self.rules.revision.is_none_or(|revision| revision == failures.revision)
    }

    /// Returns true if Nodes of the working revision failed to start.
    pub(super) fn is_of_working(&self, failures: &StartFailures) -> bool {
        self.working.is_some_and(|working| working.revision == failures.revision)
    }

    /// `count` new Nodes, of which `of_working` have the working revision.
    fn parts(
        &self,
        (count, of_working): (usize, usize),
        failures: Option<&StartFailures>,
        now: Timestamp,
    ) -> [Part; 2] {
        let part = |count, limits: CreationLimits, failed: Option<&StartFailures>| {
            let own = failed.map_or(Duration::ZERO, |failures| rollout::back_off(failures, now));
            Part { count, creation: limits.creation, back_off: own.max(limits.class_back_off) }
        };
        let of_newest = failures.filter(|failures| self.is_of_newest(failures));
        // Without another working revision, all new Nodes have the newest one.
        let working = match self.working {
            Some(working) => {
                part(of_working, working.limits, failures.filter(|failures| self.is_of_working(failures)))
            }
            None => part(of_working, self.newest, of_newest),
        };
        [working, part(count - of_working, self.newest, of_newest)]
    }
}

impl Planner<'_, '_, '_> {
    /// Plans creations, up to the maximum number of machines.
    pub(super) fn create(&mut self, mode: RolloutMode, failures: Option<&StartFailures>) {
        let Self { desired, nodes, expected, plan, now } = self;
        let missing =
            desired.replicas.saturating_sub(nodes.iter().filter(|own| own.is_kept()).count() + *expected);
        plan.missing = missing;
        if missing == 0 {
            return;
        }
        // `spec.strategy.replacement` applies to single Nodes; a rollout may always surge.
        let by_rollout = nodes.iter().any(|own| own.replaced.is_some_and(|cause| !cause.is_repair()));
        let surge = match desired.replacement {
            ReplacementOrder::DeleteFirst if !by_rollout => 0,
            _ => desired.budget.surge,
        };
        let most = desired.replicas.saturating_add(surge);
        let by_budget = missing.min(most.saturating_sub(nodes.len() + *expected));
        plan.missing_current = match mode {
            RolloutMode::Held => missing,
            // Nodes that are missing among those that keep the old revision; pending creations may already have it.
            RolloutMode::Rolling { keep } => {
                let older = nodes.iter().filter(|own| own.is_kept() && own.outdated).count();
                keep.min(desired.replicas).saturating_sub(older + *expected).min(missing)
            }
            RolloutMode::OnDelete => 0,
        };
        let mut parts = desired.parts((by_budget, plan.missing_current.min(by_budget)), failures, *now);
        let mut delayed = 0;
        for part in parts.iter_mut().filter(|part| part.count > 0 && !part.back_off.is_zero()) {
            delayed += std::mem::take(&mut part.count);
            plan.requeue_in(Some(part.back_off));
        }
        if delayed > 0 {
            let text = "missing, and the last ones did not start: the next are made after a while";
            plan.wait("BackOff", delayed, text);
        }
        let mut room = desired.class_room.map_or(usize::MAX, |class| class.left);
        for part in &mut parts {
            part.count = part.count.min(room);
            room -= part.count;
        }
        let to_create: usize = parts.iter().map(|part| part.count).sum();
        let beyond = by_budget - delayed - to_create;
        if let Some(ClassRoom { limit, .. }) = desired.class_room.filter(|_| beyond > 0) {
            let text = format!(
                "missing, and the NodeClass may have {limit} nodes at most (spec.limits.nodes): have the limit raised, or other nodes of the class removed"
            );
            plan.wait("ClassLimit", beyond, text);
        }
        let stuck = nodes.iter().filter(|own| own.is_stuck()).count();
        let leaving = plan.counts.leaving + stuck;
        if by_budget < missing && leaving > 0 {
            let text = format!(
                "missing, and there may be {most} machines at most: of those, {leaving} must leave first"
            );
            plan.wait("MachinesLeaving", missing - by_budget, text);
        }
        let mut batch = CREATE_BATCH;
        let [current, newest] = parts.map(|part| {
            let most = match part.creation {
                Creation::Allowed => batch,
                Creation::Probed => batch.min(1),
                Creation::Refused { retry_in } => {
                    plan.requeue_in((part.count > 0).then_some(retry_in));
                    0
                }
            };
            let created = part.count.min(most);
            batch -= created;
            plan.more |= part.creation == Creation::Allowed && created < part.count;
            created
        });
        plan.create = current + newest;
        plan.create_current = current;
    }
}
