//! Set planner: the Nodes of a NodeSet to create and to delete, under one budget.
//!
//! One decision covers scaling, rollout, repair, expiry and deletions by hand, so that together they never exceed the
//! budget. Input: the desired state, the Nodes, pending creations, the time. Output: a [`SetPlan`]. Invariants:
//!
//! - No creation leads to more than `replicas + surge` machines, those of leaving Nodes included.
//! - New Nodes never outnumber the replicas, as the pods of a Deployment's new `ReplicaSet`: one that does not start holds
//!   up the last outdated Node until the Node is repaired.
//! - No available Node is deleted while at most `replicas - unavailable` Nodes are available. Unavailable
//!   Nodes go more freely, but never in favour of new Nodes that are not available either.
//! - The budget is relative to the current replicas: a scale-down never waits for the budget, nor does a Node
//!   marked as a victim of a scale-down.
//! - A Node deleted by hand keeps serving its pods until it gets a drain permit.
//! - A victim named by a scale request goes, and no other Node goes in its place. A Node that
//!   cluster-autoscaler is draining still counts as a replica, but not as available, and nothing replaces it.

mod creation;
mod plan;
mod spending;

use std::{cmp::Reverse, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_node_api::{ReplacementOrder, RolloutStatus, ScaleDownOrder, StartFailures};

use super::{
    budget::Budget,
    disruption::{self, DisruptionReason, DisruptionRules, Finding},
    rollout::{self, ObservedRollout, ProgressDeadline},
};

pub use super::node_state::{DeletionStage, NodeState};
pub use creation::{CREATE_BATCH, ClassRoom, Creation, CreationLimits, WorkingRevision};
pub use plan::{Counts, Deletion, SetPlan};
use spending::Spending;

/// Handling of Nodes of an old revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutMode {
    /// Outdated Nodes are replaced, except `keep` of them.
    Rolling {
        /// Number of Nodes that keep the old revision.
        keep: usize,
    },
    /// Outdated Nodes are replaced only when somebody deletes them.
    OnDelete,
    /// Outdated Nodes stay until the rollout is resumed, because somebody paused it or it halted itself. New
    /// Nodes get the revision that works.
    Held,
}

/// Desired state of the set.
#[derive(Clone, Debug)]
pub struct DesiredState<'a> {
    /// `spec.replicas`.
    pub replicas: usize,
    /// Budget of the set.
    pub budget: Budget,
    /// Time that a Node must be Ready to count as available.
    pub min_ready: Duration,
    /// Order of victims in a scale-down.
    pub order: ScaleDownOrder,
    /// Order of creation and deletion when a single Node is replaced.
    pub replacement: ReplacementOrder,
    /// Rules for the replacement of Nodes.
    pub rules: DisruptionRules<'a>,
    /// Handling of Nodes of an old revision.
    pub pace: RolloutMode,
    /// State of the progress deadline.
    pub clock: ProgressDeadline<'a>,
    /// Number of unhealthy Nodes above which no Node is repaired.
    pub max_unhealthy: usize,
    /// Maximum number of concurrent repairs.
    pub max_repairs: usize,
    /// Nodes of the set that failed to start.
    pub start_failures: Option<&'a StartFailures>,
    /// Limits for new Nodes of the newest revision.
    pub newest: CreationLimits,
    /// The revision that works, if it is not the newest; new Nodes have it while the rollout is held, and in the place of
    /// Nodes of the partition.
    pub working: Option<WorkingRevision<'a>>,
    /// Nodes that the class may still have; None if the class has no limit.
    pub class_room: Option<ClassRoom>,
    /// True if the revision is unknown because the API server did not answer: the set may be in the middle of a rollout.
    pub revision_unanswered: bool,
    /// True if cluster-autoscaler names the Nodes that go.
    pub is_node_group: bool,
}

/// A Node with the planner's findings.
struct Candidate<'m, 'a> {
    node: &'m NodeState<'a>,
    available: bool,
    /// True if the Node's revision is not the set's, or the Node is older than the last restart.
    outdated: bool,
    finding: Finding,
    /// Reason to replace the Node now, within the budget.
    replaced: Option<DisruptionReason>,
    /// True if the Node would be replaced now for its revision or its age, and cannot be deleted.
    is_held_up: bool,
    deleted: bool,
}

impl Candidate<'_, '_> {
    fn stays(&self) -> bool {
        self.node.stage == DeletionStage::Staying && !self.deleted
    }

    /// Returns true if the Node stays as one of the replicas.
    fn is_kept(&self) -> bool {
        self.stays() && self.replaced.is_none() && !self.is_stuck()
    }

    /// Returns true if the Node should go, cannot, and is no replica: that of a victim is gone already, and an outdated Node
    /// that is not available serves nobody.
    fn is_stuck(&self) -> bool {
        let is_due = || self.finding.is_due() && !self.available;
        self.stays() && self.node.is_undeletable() && (self.node.victim || is_due())
    }

    /// Returns true if the Node is outdated, and its replacement is the set's task.
    fn is_stale(&self) -> bool {
        self.stays() && self.outdated && !self.node.autoscaler_drains
    }

    /// Returns true if the Node is not available, and was initialized or has to be replaced.
    fn is_broken(&self) -> bool {
        !self.available && !self.node.autoscaler_drains && (self.node.initialized || self.replaced.is_some())
    }
}

/// One reconciliation of a set.
struct Planner<'w, 'm, 'a> {
    desired: &'w DesiredState<'w>,
    /// Nodes of the set, first victim first.
    nodes: Vec<Candidate<'m, 'a>>,
    /// Number of pending creations.
    expected: usize,
    plan: SetPlan<'a>,
    now: Timestamp,
}

/// Plans one reconciliation of a set with the Nodes `members` and `expected` pending creations.
pub fn decide<'a>(
    desired: &DesiredState<'_>,
    members: &[NodeState<'a>],
    expected: usize,
    now: Timestamp,
) -> SetPlan<'a> {
    let mut planner = Planner { desired, nodes: Vec::new(), expected, plan: SetPlan::default(), now };
    planner.examine(members);
    let failures = desired.start_failures.filter(|failures| planner.still_counts(failures)).cloned();
    // The leader before this one may have had a clock that was ahead.
    let failures = failures.map(|own| StartFailures { last_time: Time(own.last_time.0.min(now)), ..own });
    let failing = failures.as_ref().is_some_and(|failures| desired.is_of_newest(failures));
    let mode = planner.mode(failing);
    planner.select(mode);
    let mut spending = Spending::new(desired, &planner.nodes);
    spending.delete_marked(&mut planner);
    spending.grant_drain_permits(&mut planner);
    planner.create(mode, failures.as_ref());
    spending.delete(&mut planner);
    spending.retry_refused(&mut planner);
    let moves = planner.moves();
    let mut plan = planner.plan;
    plan.moves = moves;
    plan.start_failures = failures;
    spending.report(&mut plan);
    plan
}

impl<'m, 'a> Planner<'_, 'm, 'a> {
    /// [`SetPlan::moves`], once all else is decided.
    fn moves(&self) -> bool {
        let Self { nodes, expected, plan, .. } = self;
        let is_moving = |own: &Candidate<'_, '_>| match own.node.stage {
            DeletionStage::Staying => own.deleted || !own.available,
            // Without a permit the Node waits for the budget, which a Node that cannot be deleted may have.
            DeletionStage::PendingDrain => plan.drain_permits.contains(&own.node.name),
            DeletionStage::Draining => true,
        };
        plan.create + expected > 0
            || nodes.iter().any(|own| is_moving(own) && !own.node.is_undeletable())
            || plan.waits.iter().any(|wait| wait.reason == "BackOff")
    }

    fn examine(&mut self, members: &'m [NodeState<'a>]) {
        let Self { desired, nodes, plan, now, .. } = self;
        for node in members {
            let available_in = node.available_in(desired.min_ready, *now);
            let is_free = !node.autoscaler_drains && !node.victim;
            let finding = match node.stage {
                DeletionStage::Staying if !is_free => Finding::default(),
                DeletionStage::Staying => disruption::examine(node, &desired.rules, *now),
                // Its repair may be under way, and nothing else is decided about it.
                _ => disruption::examine(node, &desired.rules, *now).of_leaving(),
            };
            plan.requeue_in(available_in.filter(|left| !left.is_zero()));
            plan.requeue_in(finding.changes_in);
            plan.requeue_in(Some(node.degrades_in(*now)).filter(|left| !left.is_zero()));
            nodes.push(Candidate {
                node,
                available: available_in.is_some_and(|left| left.is_zero()),
                outdated: disruption::is_stale(node, &desired.rules),
                finding,
                replaced: None,
                is_held_up: false,
                deleted: false,
            });
        }
        // One order for all victims, so that two reconciliations of the same state choose the same Nodes.
        nodes.sort_by_cached_key(|candidate| victim_key(candidate, desired.order));
        plan.counts = count(nodes);
        plan.ask_again = nodes.len() + self.expected <= desired.replicas + desired.budget.surge;
    }

    /// Returns true if the failures still count: of a revision that new Nodes get, of which no Node created since has become
    /// available.
    fn still_counts(&self, failures: &StartFailures) -> bool {
        let is_wanted = self.desired.is_of_newest(failures) || self.desired.is_of_working(failures);
        let has_started = |own: &Candidate<'_, '_>| {
            own.available && own.node.created > failures.last_time.0 && own.node.revision == failures.revision
        };
        is_wanted && !self.nodes.iter().any(has_started)
    }

    /// Rollout mode after the progress deadline was checked.
    fn mode(&mut self, failing: bool) -> RolloutMode {
        let Self { desired, nodes, plan, now, .. } = self;
        let Some(revision) = desired.rules.revision else {
            // The class cannot be used now: the deadline does not advance, and a halted rollout stays halted.
            plan.rollout = desired.clock.old.cloned();
            stop_waiting(&mut plan.rollout);
            let halted = plan.rollout.as_ref().is_some_and(|rollout| rollout.halt_time.is_some());
            return if halted { RolloutMode::Held } else { desired.pace };
        };
        let keep = match desired.pace {
            RolloutMode::Rolling { keep } => keep,
            RolloutMode::Held | RolloutMode::OnDelete => 0,
        };
        if plan.counts.outdated <= keep {
            return desired.pace;
        }
        if desired.pace == RolloutMode::OnDelete {
            // No Node is replaced; a rollout in progress keeps its state, halted or not.
            plan.rollout = desired.clock.old.filter(|old| old.revision == revision).cloned();
            stop_waiting(&mut plan.rollout);
            return RolloutMode::OnDelete;
        }
        let old = desired.clock.old.filter(|old| old.revision == revision);
        let best = old.map_or(0, |old| usize::try_from(old.available).unwrap_or(0));
        let never = plan.counts.updated.saturating_sub(best.max(plan.counts.updated_available));
        let awaited = nodes.iter().filter(|own| own.stays() && !own.outdated && !own.available);
        let awaited = awaited.map(|own| own.node.awaited()).collect();
        let observed = ObservedRollout {
            revision,
            outdated: plan.counts.outdated,
            available: plan.counts.updated_available,
            awaited_since: rollout::awaited_since(awaited, never),
            failing,
            paused: desired.pace == RolloutMode::Held,
        };
        let (status, left) = rollout::tick(&desired.clock, &observed, *now);
        let halted = status.halt_time.is_some();
        plan.rollout = Some(status);
        if desired.pace != RolloutMode::Held {
            plan.requeue_in(left);
        }
        if halted { RolloutMode::Held } else { desired.pace }
    }

    /// Selects the Nodes to replace now, before any budget.
    fn select(&mut self, mode: RolloutMode) {
        let Self { desired, nodes, plan, .. } = self;
        let DesiredState { replicas, max_unhealthy, max_repairs, .. } = **desired;
        let leaving = || nodes.iter().filter(|own| !own.stays());
        let is_unhealthy = |own: &&Candidate<'_, '_>| own.finding.unhealthy.is_some();
        let unhealthy = plan.counts.unhealthy + leaving().filter(is_unhealthy).count();
        let under_way = leaving().filter(|own| is_unhealthy(own) || !own.node.is_ready()).count();
        let mut repairs = max_repairs.saturating_sub(under_way);
        if unhealthy > max_unhealthy && plan.counts.unhealthy > 0 {
            let text = format!(
                "unhealthy, more than maxUnhealthy ({max_unhealthy}): none is replaced until somebody has looked"
            );
            plan.wait("TooManySick", unhealthy, text);
            repairs = 0;
        }
        let stale = nodes.iter().filter(|own| own.is_stale()).count();
        let mut rolling = match mode {
            RolloutMode::Rolling { keep } => stale.saturating_sub(keep),
            RolloutMode::OnDelete | RolloutMode::Held => 0,
        };
        let mut waiting = 0;
        for own in nodes.iter_mut().filter(|own| own.stays()) {
            let Finding { unhealthy, stale, expired, .. } = own.finding;
            let repaired = unhealthy.filter(|_| take(&mut repairs));
            // A Node that the rollout leaves alone may be due all the same.
            let expired = (expired && mode != RolloutMode::Held).then_some(DisruptionReason::Expired);
            let is_deletable = !own.node.is_undeletable();
            own.is_held_up = !is_deletable && (stale.is_some() && rolling > 0 || expired.is_some());
            let due = stale.filter(|_| is_deletable && take(&mut rolling));
            let due = due.or(expired.filter(|_| is_deletable));
            waiting += usize::from(unhealthy.is_some() && repaired.or(due).is_none());
            own.replaced = repaired.or(due);
        }
        if waiting > 0 && unhealthy <= max_unhealthy {
            let text = format!("unhealthy and not repaired yet: at most {max_repairs} may be at once");
            plan.wait("RepairLimit", waiting, text);
        }
        // The refusal of the API server is reported by its own wait.
        let is_kept =
            |own: &&Candidate<'_, '_>| own.is_stale() && own.is_kept() && !own.node.is_undeletable();
        let outdated = nodes.iter().filter(is_kept).count();
        if outdated == 0 {
            return;
        }
        let (reason, text) = match mode {
            RolloutMode::Held if desired.pace == mode => ("Paused", " while the set is paused".to_owned()),
            RolloutMode::Held => (
                "ProgressDeadlineExceeded",
                ": the rollout halted itself because no new node became available in time; correct the class, undo, or resume it".to_owned(),
            ),
            RolloutMode::Rolling { keep } if keep > replicas => (
                "Partition",
                format!(" by strategy.rollingUpdate.partition, which is {keep} of {replicas}: write fewer than {replicas} to have one rolled"),
            ),
            RolloutMode::Rolling { .. } => ("Partition", " by strategy.rollingUpdate.partition".to_owned()),
            RolloutMode::OnDelete => ("OnDelete", " until somebody deletes them".to_owned()),
        };
        plan.wait_of(reason, outdated, ["keeps", "keep"], format!("an older revision{text}"));
    }
}

/// A rollout that is not evaluated waits for no Nodes: its deadline does not run.
fn stop_waiting(rollout: &mut Option<RolloutStatus>) {
    if let Some(rollout) = rollout {
        rollout.waiting_time = None;
    }
}

/// Sort key of victims: named, marked, not available, then the set's order; ties by pods, the younger, the name.
fn victim_key<'a>(
    candidate: &Candidate<'_, 'a>,
    order: ScaleDownOrder,
) -> (u8, bool, bool, i64, usize, Reverse<i64>, &'a str) {
    let node = candidate.node;
    let created = node.created.as_second();
    let by_order = match order {
        ScaleDownOrder::LeastPods => i64::try_from(node.pods).unwrap_or(i64::MAX),
        ScaleDownOrder::Newest => created.saturating_neg(),
        ScaleDownOrder::Oldest => created,
    };
    let willed = if node.victim { 0 } else { 1 + u8::from(!node.marked) };
    (willed, candidate.available, node.is_ready(), by_order, node.pods, Reverse(created), node.name)
}

fn count(nodes: &[Candidate<'_, '_>]) -> Counts {
    let mut counts = Counts::default();
    for own in nodes {
        counts.outdated += usize::from(own.outdated);
        if !own.stays() {
            counts.leaving += 1;
            continue;
        }
        counts.staying += 1;
        counts.ready += usize::from(own.node.is_ready());
        counts.available += usize::from(own.available);
        counts.updated += usize::from(!own.outdated);
        counts.updated_available += usize::from(!own.outdated && own.available);
        counts.unhealthy += usize::from(own.finding.unhealthy.is_some());
        counts.to_replace += usize::from(own.finding.is_wanted());
    }
    counts
}

fn take(left: &mut usize) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}

#[cfg(test)]
mod tests;
