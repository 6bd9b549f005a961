//! Which Nodes of a set come and which go: one decision for scaling, rollout, repair, expiry and deletions by hand, so
//! that together they never spend more than the set's one budget.
//!
//! - Machines, those that are leaving included, are never made more than `replicas + surge`.
//! - A Node that is available is never taken away by us while no more than `replicas - unavailable` are. What is not
//!   available goes more freely, but never in favour of new Nodes that are not available either.
//! - The budget is relative to what is asked for now: a scale-down never waits for it. Nor does a Node that somebody
//!   marked as the victim of one.
//! - A Node that was deleted by hand keeps working until it gets its turn to be drained.
//! - A Node that an order named to go when it lowered the replicas goes, and no other one for it. One that
//!   cluster-autoscaler is emptying keeps its place among the replicas, but nobody counts on it and nothing replaces it.

mod plan;
mod spending;

use std::{cmp::Reverse, time::Duration};

use jiff::Timestamp;
use kube_node_api::{ReplacementOrder, ScaleDownOrder, StartFailures};

use super::{
    budget::Budget,
    disruption::{self, DisruptionReason, Finding, NodeSign, Rules},
    rollout::{self, Clock, Seen},
};

pub use plan::{Counts, Deletion, Plan, Wait};
use spending::Spending;

/// Most Nodes that one reconciliation creates: so none is long, and a set of thousands sees a change of its replicas in the
/// middle of its growth.
pub const CREATE_BATCH: usize = 500;

/// How far a Node has come on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It stays.
    #[default]
    Staying,
    /// Its deletion was asked for, and its drain has not begun: it still does its work.
    PendingDrain,
    /// Its drain has begun.
    Draining,
}

/// One Node of the set.
#[derive(Clone, Debug, Default)]
pub struct NodeState<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its revision.
    pub revision: &'a str,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it leaves.
    pub stage: Stage,
    /// Since when its Ready condition is True; None while it is not.
    pub ready_since: Option<Timestamp>,
    /// Whether it was initialised: Ready once, and no start-up taint left.
    pub started: bool,
    /// Whether a kubelet has posted a status.
    pub has_kubelet: bool,
    /// Whether an admin (`delete-first`) or cluster-autoscaler marked it as the next to go.
    pub marked: bool,
    /// Whether the set's replicas were lowered for this very Node.
    pub named: bool,
    /// Whether cluster-autoscaler is emptying it, to take it away with its replica.
    pub claimed: bool,
    /// Whether its sickness is to be ignored.
    pub skip_remediation: bool,
    /// Pods that a drain would move.
    pub pods: usize,
    /// Whether the API server refused its deletion lately, or, where it leaves already, its drain: others go before it.
    pub deletion_refused: bool,
    /// Conditions that the set's symptoms speak of.
    pub signs: Vec<NodeSign<'a>>,
    /// What stands in the way of its machine or its drain: reason and message.
    pub trouble: Option<(&'a str, &'a str)>,
}

impl NodeState<'_> {
    /// Whether it is Ready and the scheduler may use it.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.started && self.ready_since.is_some()
    }

    /// What is left until it counts as available: zero when it is, None while it is not Ready or is being emptied.
    #[must_use]
    pub fn available_in(&self, min_ready: Duration, now: Timestamp) -> Option<Duration> {
        if !self.started || self.claimed || self.stage == Stage::Draining {
            return None;
        }
        let passed = Duration::try_from(now.duration_since(self.ready_since?)).unwrap_or_default();
        Some(min_ready.saturating_sub(passed))
    }
}

/// Whether Nodes of an old revision are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutMode {
    /// Yes, but so many keep the old one.
    Rolling {
        /// How many.
        keep: usize,
    },
    /// Only those that somebody deletes.
    OnDelete,
    /// Not until it is resumed, because somebody paused it or it halted itself. What has to be made meanwhile gets the
    /// revision that works.
    Held,
}

/// What the set asks for.
#[derive(Clone, Debug)]
pub struct DesiredState<'a> {
    /// Replicas.
    pub replicas: usize,
    /// The budget.
    pub budget: Budget,
    /// How long a Node must be Ready to count as available.
    pub min_ready: Duration,
    /// Which Nodes go first when the set shrinks.
    pub order: ScaleDownOrder,
    /// Which comes first when a single Node is replaced.
    pub replacement: ReplacementOrder,
    /// When Nodes have to be replaced.
    pub rules: Rules<'a>,
    /// Whether Nodes of an old revision are.
    pub pace: RolloutMode,
    /// The rollout's clock.
    pub clock: Clock<'a>,
    /// While more are sick than this, none is repaired.
    pub max_sick: usize,
    /// Most repairs at once.
    pub max_repairs: usize,
    /// Nodes of the set that did not start.
    pub start_failures: Option<&'a StartFailures>,
    /// How long no Node is made because those of other sets of its class did not start.
    pub class_back_off: Duration,
    /// Whether the API server takes its Nodes as they are to be made now.
    pub creation: Creation,
    /// How many more Nodes its class may have; None where the class has no limit.
    pub class_room: Option<ClassRoom>,
}

/// Whether Nodes may be created, by the API server's last answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Creation {
    /// As many as are missing.
    #[default]
    Allowed,
    /// One, to see whether the API server takes it now.
    Probed,
    /// None for a while: the API server refused the last one.
    Refused {
        /// How long.
        retry_in: Duration,
    },
}

/// What `NodeClass.spec.limits.nodes` leaves, counted over all Nodes of the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassRoom {
    /// Nodes that may still be created.
    pub left: usize,
    /// The limit.
    pub limit: usize,
}

/// A Node and what was found out of it.
struct Known<'m, 'a> {
    member: &'m NodeState<'a>,
    available: bool,
    /// Whether its revision is not the set's, or it is older than the last restart.
    outdated: bool,
    finding: Finding,
    /// Why it is to be replaced now, as far as the budget lets it.
    replaced: Option<DisruptionReason>,
    deleted: bool,
}

impl Known<'_, '_> {
    fn stays(&self) -> bool {
        self.member.stage == Stage::Staying && !self.deleted
    }

    /// Whether it is not available although it once was, or has to be replaced.
    fn is_broken(&self) -> bool {
        !self.available && !self.member.claimed && (self.member.started || self.replaced.is_some())
    }
}

/// Decides for a set that has `members`, and `expected` more that were asked for and not shown yet.
#[must_use]
pub fn decide<'a>(
    wanted: &DesiredState<'_>,
    members: &[NodeState<'a>],
    expected: usize,
    now: Timestamp,
) -> Plan<'a> {
    let mut plan = Plan::default();
    let mut known: Vec<Known<'_, 'a>> =
        members.iter().map(|member| Known::of(member, wanted, now, &mut plan)).collect();
    // One order for everybody who goes, so that two reconciliations of one state choose the same.
    known.sort_by_cached_key(|known| victim_key(known, wanted.order));
    plan.counts = count(&known);
    plan.ask_again = known.len() + expected <= wanted.replicas + wanted.budget.surge;
    let failures = wanted.start_failures.filter(|failures| still_counts(failures, wanted, &known)).cloned();
    let pace = pace(wanted, &known, failures.is_some(), now, &mut plan);
    select(wanted, pace, &mut known, &mut plan);
    let mut spending = Spending::new(wanted, &known);
    spending.delete_marked(wanted, &mut known, expected, &mut plan);
    spending.grant_turns(wanted, &known, &mut plan);
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
    fn of(member: &'m NodeState<'a>, wanted: &DesiredState<'_>, now: Timestamp, plan: &mut Plan<'_>) -> Self {
        let available_in = member.available_in(wanted.min_ready, now);
        let finding = match member.stage {
            Stage::Staying if !member.claimed && !member.named => {
                disruption::examine(member, &wanted.rules, now)
            }
            Stage::Staying | Stage::PendingDrain | Stage::Draining => Finding::default(),
        };
        plan.look_again_in(available_in.filter(|left| !left.is_zero()));
        plan.look_again_in(finding.changes_in);
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

/// Whether failures still say something: not of another revision, nor once a younger Node has become available.
fn still_counts(failures: &StartFailures, wanted: &DesiredState<'_>, known: &[Known<'_, '_>]) -> bool {
    wanted.rules.revision.is_none_or(|revision| revision == failures.revision)
        && !known.iter().any(|known| known.available && known.member.created > failures.last_time.0)
}

/// Whether Nodes are rolled now: the clock may have stopped it.
fn pace(
    wanted: &DesiredState<'_>,
    known: &[Known<'_, '_>],
    failing: bool,
    now: Timestamp,
    plan: &mut Plan<'_>,
) -> RolloutMode {
    let Some(revision) = wanted.rules.revision else {
        // Nothing can be said of a class that cannot be used now: the clock stands still, and a halt stays one.
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
        // No Node is rolled; a rollout that had begun goes on, or stays halted, where it stood.
        plan.rollout = wanted.clock.old.filter(|old| old.revision == revision).cloned();
        return RolloutMode::OnDelete;
    }
    let starting = known.iter().filter(|known| known.stays() && !known.outdated && !known.available);
    let seen = Seen {
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
    plan.look_again_in(left);
    if halted { RolloutMode::Held } else { wanted.pace }
}

/// Sorts the first to go first: named, then marked, then not available, then by the set's order, ties by pods, the younger,
/// the name.
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
    let willed = if member.named { 0 } else { 1 + u8::from(!member.marked) };
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
        counts.sick += usize::from(known.finding.sick.is_some());
        counts.to_replace += usize::from(known.finding.sick.or(known.finding.due).is_some());
    }
    counts
}

/// Says which Nodes are to be replaced now, before any budget.
fn select(wanted: &DesiredState<'_>, pace: RolloutMode, known: &mut [Known<'_, '_>], plan: &mut Plan<'_>) {
    let sick = plan.counts.sick;
    let under_way = known.iter().filter(|known| !known.stays() && !known.member.is_ready()).count();
    let mut repairs = wanted.max_repairs.saturating_sub(under_way);
    if sick > wanted.max_sick {
        plan.waits.push(Wait::TooManySick { sick, most: wanted.max_sick });
        repairs = 0;
    }
    let stale = |known: &Known<'_, '_>| known.stays() && known.outdated && !known.member.claimed;
    let all_stale = known.iter().filter(|known| stale(known)).count();
    let mut rolling = match pace {
        RolloutMode::Rolling { keep } => all_stale.saturating_sub(keep),
        RolloutMode::OnDelete | RolloutMode::Held => 0,
    };
    let mut waiting = 0;
    for known in known.iter_mut().filter(|known| known.stays()) {
        let Finding { sick, due, .. } = known.finding;
        let repaired = sick.filter(|_| take(&mut repairs));
        let due = due.filter(|_| !known.member.deletion_refused).filter(|due| match due {
            DisruptionReason::Expired => pace != RolloutMode::Held,
            _ => take(&mut rolling),
        });
        waiting += usize::from(sick.is_some() && repaired.or(due).is_none());
        known.replaced = repaired.or(due);
    }
    if waiting > 0 && sick <= wanted.max_sick {
        plan.waits.push(Wait::RepairLimit { waiting, most: wanted.max_repairs });
    }
    // The wait for the API server is told by its refusal.
    let kept = |known: &&Known<'_, '_>| known.replaced.is_none() && !known.member.deletion_refused;
    let outdated = known.iter().filter(|known| stale(known)).filter(kept).count();
    if outdated > 0 {
        plan.waits.push(match pace {
            RolloutMode::Rolling { keep } => Wait::Partition { outdated, keep },
            RolloutMode::OnDelete => Wait::OnDelete { outdated },
            RolloutMode::Held => Wait::Held { outdated },
        });
    }
}

fn take(left: &mut usize) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}

/// Creates what is missing, as far as there may be machines.
fn create(
    wanted: &DesiredState<'_>,
    pace: RolloutMode,
    known: &[Known<'_, '_>],
    expected: usize,
    back_off: Duration,
    plan: &mut Plan<'_>,
) {
    let good = known.iter().filter(|known| known.stays() && known.replaced.is_none()).count();
    let missing = wanted.replicas.saturating_sub(good + expected);
    plan.missing = missing;
    if missing == 0 {
        return;
    }
    // A single Node is replaced in the order that the set asks for; a rollout always may surge.
    let by_rollout = known.iter().any(|known| known.replaced.is_some_and(|cause| !cause.is_sickness()));
    let surge = match wanted.replacement {
        ReplacementOrder::DeleteFirst if !by_rollout => 0,
        _ => wanted.budget.surge,
    };
    let most = wanted.replicas.saturating_add(surge);
    let room = most.saturating_sub(known.len() + expected);
    let by_budget = missing.min(room);
    if by_budget > 0 && !back_off.is_zero() {
        plan.waits.push(Wait::BackOff { missing, left: back_off });
        plan.look_again_in(Some(back_off));
        return;
    }
    let to_create = by_budget.min(wanted.class_room.map_or(usize::MAX, |class| class.left));
    if let Some(ClassRoom { limit, .. }) = wanted.class_room.filter(|_| to_create < by_budget) {
        plan.waits.push(Wait::ClassLimit { missing: by_budget - to_create, limit });
    }
    let leaving = plan.counts.leaving;
    if by_budget < missing && leaving > 0 {
        plan.waits.push(Wait::Room { missing: missing - by_budget, leaving, most });
    }
    let batch = match wanted.creation {
        Creation::Allowed => CREATE_BATCH,
        Creation::Probed => 1,
        Creation::Refused { retry_in } => {
            plan.look_again_in(Some(retry_in));
            0
        }
    };
    plan.create = to_create.min(batch);
    plan.more = to_create > plan.create && wanted.creation == Creation::Allowed;
    plan.create_current = match pace {
        RolloutMode::Held => plan.create,
        // What is missing among those that keep the old revision; what was asked for may be of it already.
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
