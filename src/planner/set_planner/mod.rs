//! Set planner: the Nodes of a NodeSet to create and to delete, under one budget.
//!
//! One decision covers scaling, rollout, repair, expiry and deletions by hand, so that together they never exceed the
//! budget. Input: the desired state, the Nodes, pending creations, the time. Output: a [`SetPlan`]. Invariants:
//!
//! - No creation leads to more than `replicas + surge` machines, those of leaving Nodes included.
//! - No available Node is deleted while at most `replicas - unavailable` Nodes are available. Unavailable
//!   Nodes go more freely, but never in favour of new Nodes that are not available either.
//! - The budget is relative to the current replicas: a scale-down never waits for the budget, nor does a Node
//!   marked as a victim of a scale-down.
//! - A Node deleted by hand keeps serving its pods until it gets a drain permit.
//! - A victim named by a scale request goes, and no other Node goes in its place. A Node that
//!   cluster-autoscaler is draining still counts as a replica, but not as available, and nothing replaces it.

mod plan;
mod spending;

use std::{cmp::Reverse, time::Duration};

use jiff::Timestamp;
use kube_node_api::{ReplacementOrder, ScaleDownOrder, StartFailures};

use super::{
    budget::Budget,
    disruption::{self, DisruptionReason, DisruptionRules, Finding, ObservedCondition},
    rollout::{self, ObservedRollout, ProgressDeadline},
};

pub use plan::{Counts, Deletion, SetPlan, SetWait};
use spending::Spending;

/// Maximum number of Nodes created in one reconciliation: keeps reconciliations short, so that a set of
/// thousands reacts to a change of its replicas while it grows.
pub const CREATE_BATCH: usize = 500;

/// Progress of a Node's deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionStage {
    /// Not deleted.
    #[default]
    Staying,
    /// Deleted, and the drain has not started: the Node still serves its pods.
    PendingDrain,
    /// The drain has started.
    Draining,
}

/// One Node of the set, as the planner sees it.
#[derive(Clone, Debug, Default)]
pub struct NodeState<'a> {
    /// Name of the Node.
    pub name: &'a str,
    /// Revision of the Node.
    pub revision: &'a str,
    /// Creation time.
    pub created: Timestamp,
    /// Progress of the Node's deletion.
    pub stage: DeletionStage,
    /// Last transition of the Ready condition to True; None if Ready is not True.
    pub ready_since: Option<Timestamp>,
    /// True if the Node is initialized: it was Ready once and has no startup taint left.
    pub started: bool,
    /// True if a kubelet has posted a status.
    pub has_kubelet: bool,
    /// True if an admin (`delete-first`) or cluster-autoscaler marked the Node to go first.
    pub marked: bool,
    /// True if a scale request named the Node as a victim.
    pub victim: bool,
    /// True while cluster-autoscaler drains the Node, to remove it together with its replica.
    pub autoscaler_drains: bool,
    /// True if the Node is never repaired.
    pub skip_remediation: bool,
    /// Number of pods that a drain would evict.
    pub pods: usize,
    /// True if the API server recently refused the Node's deletion or, if leaving, its drain: other Nodes go first.
    pub deletion_refused: bool,
    /// Conditions that the set's unhealthy conditions refer to.
    pub conditions: Vec<ObservedCondition<'a>>,
    /// Reason and message of an obstacle to the Node's machine or drain.
    pub trouble: Option<(&'a str, &'a str)>,
}

impl NodeState<'_> {
    /// Returns true if the Node is Ready and schedulable.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.started && self.ready_since.is_some()
    }

    /// Time until the Node counts as available; zero if it does, None if it is not Ready or is being drained.
    #[must_use]
    pub fn available_in(&self, min_ready: Duration, now: Timestamp) -> Option<Duration> {
        if !self.started || self.autoscaler_drains || self.stage == DeletionStage::Draining {
            return None;
        }
        let passed = Duration::try_from(now.duration_since(self.ready_since?)).unwrap_or_default();
        Some(min_ready.saturating_sub(passed))
    }
}

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
    /// Back-off of the class, after Nodes of other sets failed to start.
    pub class_back_off: Duration,
    /// Permission to create Nodes, from the API server's last responses.
    pub creation: Creation,
    /// Nodes that the class may still have; None if the class has no limit.
    pub class_room: Option<ClassRoom>,
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

/// A Node with the planner's findings.
struct Known<'m, 'a> {
    member: &'m NodeState<'a>,
    available: bool,
    /// True if the Node's revision is not the set's, or the Node is older than the last restart.
    outdated: bool,
    finding: Finding,
    /// Reason to replace the Node now, within the budget.
    replaced: Option<DisruptionReason>,
    deleted: bool,
}

impl Known<'_, '_> {
    fn stays(&self) -> bool {
        self.member.stage == DeletionStage::Staying && !self.deleted
    }

    /// Returns true if the Node is not available, and was initialized or has to be replaced.
    fn is_broken(&self) -> bool {
        !self.available && !self.member.autoscaler_drains && (self.member.started || self.replaced.is_some())
    }
}

/// Plans one reconciliation of a set with the Nodes `members` and `expected` pending creations.
#[must_use]
pub fn decide<'a>(
    wanted: &DesiredState<'_>,
    members: &[NodeState<'a>],
    expected: usize,
    now: Timestamp,
) -> SetPlan<'a> {
    let mut plan = SetPlan::default();
    let mut known: Vec<Known<'_, 'a>> =
        members.iter().map(|member| Known::of(member, wanted, now, &mut plan)).collect();
    // One order for all victims, so that two reconciliations of the same state choose the same Nodes.
    known.sort_by_cached_key(|known| victim_key(known, wanted.order));
    plan.counts = count(&known);
    plan.ask_again = known.len() + expected <= wanted.replicas + wanted.budget.surge;
    let failures = wanted.start_failures.filter(|failures| still_counts(failures, wanted, &known)).cloned();
    let pace = pace(wanted, &known, failures.is_some(), now, &mut plan);
    select(wanted, pace, &mut known, &mut plan);
    let mut spending = Spending::new(wanted, &known);
    spending.delete_marked(wanted, &mut known, expected, &mut plan);
    spending.grant_drain_permits(wanted, &known, &mut plan);
    let own_back_off = failures.as_ref().map_or(Duration::ZERO, |failures| rollout::back_off(failures, now));
    create(wanted, pace, &known, expected, own_back_off.max(wanted.class_back_off), &mut plan);
    spending.delete(wanted, &mut known, &mut plan);
    spending.retry_refused(&known, &mut plan);
    plan.start_failures = failures;
    spending::wait(&spending, &mut plan);
    debug_assert_eq!(plan.check(wanted, members, expected, now), Ok(()));
    plan
}

impl<'m, 'a> Known<'m, 'a> {
    fn of(
        member: &'m NodeState<'a>,
        wanted: &DesiredState<'_>,
        now: Timestamp,
        plan: &mut SetPlan<'_>,
    ) -> Self {
        let available_in = member.available_in(wanted.min_ready, now);
        let finding = match member.stage {
            DeletionStage::Staying if !member.autoscaler_drains && !member.victim => {
                disruption::examine(member, &wanted.rules, now)
            }
            DeletionStage::Staying | DeletionStage::PendingDrain | DeletionStage::Draining => {
                Finding::default()
            }
        };
        plan.requeue_in(available_in.filter(|left| !left.is_zero()));
        plan.requeue_in(finding.changes_in);
        Self {
            member,
            available: available_in.is_some_and(|left| left.is_zero()),
            outdated: disruption::is_stale(member, &wanted.rules),
            finding,
            replaced: None,
            deleted: false,
        }
    }
}

/// Returns true if the failures still count: same revision, and no Node created since has become available.
fn still_counts(failures: &StartFailures, wanted: &DesiredState<'_>, known: &[Known<'_, '_>]) -> bool {
    wanted.rules.revision.is_none_or(|revision| revision == failures.revision)
        && !known.iter().any(|known| known.available && known.member.created > failures.last_time.0)
}

/// Rollout mode after the progress deadline was checked.
fn pace(
    wanted: &DesiredState<'_>,
    known: &[Known<'_, '_>],
    failing: bool,
    now: Timestamp,
    plan: &mut SetPlan<'_>,
) -> RolloutMode {
    let Some(revision) = wanted.rules.revision else {
        // The class cannot be used now: the deadline does not advance, and a halted rollout stays halted.
        plan.rollout = wanted.clock.old.cloned();
        let halted = plan.rollout.as_ref().is_some_and(|rollout| rollout.halt_time.is_some());
        return if halted { RolloutMode::Held } else { wanted.pace };
    };
    let keep = match wanted.pace {
        RolloutMode::Rolling { keep } => keep,
        RolloutMode::Held | RolloutMode::OnDelete => 0,
    };
    if plan.counts.outdated <= keep {
        return wanted.pace;
    }
    if wanted.pace == RolloutMode::OnDelete {
        // No Node is replaced; a rollout in progress keeps its state, halted or not.
        plan.rollout = wanted.clock.old.filter(|old| old.revision == revision).cloned();
        return RolloutMode::OnDelete;
    }
    let starting = known.iter().filter(|known| known.stays() && !known.outdated && !known.available);
    let seen = ObservedRollout {
        revision,
        outdated: plan.counts.outdated,
        available: plan.counts.updated_available,
        starting_since: starting.map(|known| known.member.created).min(),
        failing,
    };
    let (status, left) = rollout::tick(&wanted.clock, &seen, now);
    let halted = status.halt_time.is_some();
    plan.rollout = Some(status);
    if wanted.pace == RolloutMode::Held {
        return RolloutMode::Held;
    }
    plan.requeue_in(left);
    if halted { RolloutMode::Held } else { wanted.pace }
}

/// Sort key of victims: named, marked, not available, then the set's order; ties by pods, the younger, the name.
fn victim_key<'a>(
    known: &Known<'_, 'a>,
    order: ScaleDownOrder,
) -> (u8, bool, bool, i64, usize, Reverse<i64>, &'a str) {
    let member = known.member;
    let created = member.created.as_second();
    let by_order = match order {
        ScaleDownOrder::LeastPods => i64::try_from(member.pods).unwrap_or(i64::MAX),
        ScaleDownOrder::Newest => created.saturating_neg(),
        ScaleDownOrder::Oldest => created,
    };
    let willed = if member.victim { 0 } else { 1 + u8::from(!member.marked) };
    (willed, known.available, member.is_ready(), by_order, member.pods, Reverse(created), member.name)
}

fn count(known: &[Known<'_, '_>]) -> Counts {
    let mut counts = Counts::default();
    for known in known {
        counts.outdated += usize::from(known.outdated);
        if !known.stays() {
            counts.leaving += 1;
            continue;
        }
        counts.staying += 1;
        counts.ready += usize::from(known.member.is_ready());
        counts.available += usize::from(known.available);
        counts.updated += usize::from(!known.outdated);
        counts.updated_available += usize::from(!known.outdated && known.available);
        counts.unhealthy += usize::from(known.finding.unhealthy.is_some());
        counts.to_replace += usize::from(known.finding.unhealthy.or(known.finding.due).is_some());
    }
    counts
}

/// Selects the Nodes to replace now, before any budget.
fn select(wanted: &DesiredState<'_>, pace: RolloutMode, known: &mut [Known<'_, '_>], plan: &mut SetPlan<'_>) {
    let unhealthy = plan.counts.unhealthy;
    let under_way = known.iter().filter(|known| !known.stays() && !known.member.is_ready()).count();
    let mut repairs = wanted.max_repairs.saturating_sub(under_way);
    if unhealthy > wanted.max_unhealthy {
        plan.waits.push(SetWait::TooManyUnhealthy { unhealthy, most: wanted.max_unhealthy });
        repairs = 0;
    }
    let stale = |known: &Known<'_, '_>| known.stays() && known.outdated && !known.member.autoscaler_drains;
    let all_stale = known.iter().filter(|known| stale(known)).count();
    let mut rolling = match pace {
        RolloutMode::Rolling { keep } => all_stale.saturating_sub(keep),
        RolloutMode::OnDelete | RolloutMode::Held => 0,
    };
    let mut waiting = 0;
    for known in known.iter_mut().filter(|known| known.stays()) {
        let Finding { unhealthy, due, .. } = known.finding;
        let repaired = unhealthy.filter(|_| take(&mut repairs));
        let due = due.filter(|_| !known.member.deletion_refused).filter(|due| match due {
            DisruptionReason::Expired => pace != RolloutMode::Held,
            _ => take(&mut rolling),
        });
        waiting += usize::from(unhealthy.is_some() && repaired.or(due).is_none());
        known.replaced = repaired.or(due);
    }
    if waiting > 0 && unhealthy <= wanted.max_unhealthy {
        plan.waits.push(SetWait::RepairLimit { waiting, most: wanted.max_repairs });
    }
    // The refusal of the API server is reported by its own wait.
    let kept = |known: &&Known<'_, '_>| known.replaced.is_none() && !known.member.deletion_refused;
    let outdated = known.iter().filter(|known| stale(known)).filter(kept).count();
    if outdated > 0 {
        plan.waits.push(match pace {
            RolloutMode::Rolling { keep } => SetWait::Partition { outdated, keep },
            RolloutMode::OnDelete => SetWait::OnDelete { outdated },
            RolloutMode::Held => SetWait::Held { outdated },
        });
    }
}

fn take(left: &mut usize) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}

/// Plans creations, up to the maximum number of machines.
fn create(
    wanted: &DesiredState<'_>,
    pace: RolloutMode,
    known: &[Known<'_, '_>],
    expected: usize,
    back_off: Duration,
    plan: &mut SetPlan<'_>,
) {
    let good = known.iter().filter(|known| known.stays() && known.replaced.is_none()).count();
    let missing = wanted.replicas.saturating_sub(good + expected);
    plan.missing = missing;
    if missing == 0 {
        return;
    }
    // `spec.strategy.replacement` applies to single Nodes; a rollout may always surge.
    let by_rollout = known.iter().any(|known| known.replaced.is_some_and(|cause| !cause.is_repair()));
    let surge = match wanted.replacement {
        ReplacementOrder::DeleteFirst if !by_rollout => 0,
        _ => wanted.budget.surge,
    };
    let most = wanted.replicas.saturating_add(surge);
    let room = most.saturating_sub(known.len() + expected);
    let by_budget = missing.min(room);
    if by_budget > 0 && !back_off.is_zero() {
        plan.waits.push(SetWait::BackOff { missing, left: back_off });
        plan.requeue_in(Some(back_off));
        return;
    }
    let to_create = by_budget.min(wanted.class_room.map_or(usize::MAX, |class| class.left));
    if let Some(ClassRoom { limit, .. }) = wanted.class_room.filter(|_| to_create < by_budget) {
        plan.waits.push(SetWait::ClassLimit { missing: by_budget - to_create, limit });
    }
    let leaving = plan.counts.leaving;
    if by_budget < missing && leaving > 0 {
        plan.waits.push(SetWait::Room { missing: missing - by_budget, leaving, most });
    }
    let batch = match wanted.creation {
        Creation::Allowed => CREATE_BATCH,
        Creation::Probed => 1,
        Creation::Refused { retry_in } => {
            plan.requeue_in(Some(retry_in));
            0
        }
    };
    plan.create = to_create.min(batch);
    plan.more = to_create > plan.create && wanted.creation == Creation::Allowed;
    plan.create_current = match pace {
        RolloutMode::Held => plan.create,
        // Nodes that are missing among those that keep the old revision; pending creations may already have it.
        RolloutMode::Rolling { keep } => {
            let kept = known
                .iter()
                .filter(|known| known.stays() && known.replaced.is_none() && known.outdated)
                .count();
            keep.min(wanted.replicas).saturating_sub(kept + expected).min(plan.create)
        }
        RolloutMode::OnDelete => 0,
    };
}

#[cfg(test)]
mod tests;
