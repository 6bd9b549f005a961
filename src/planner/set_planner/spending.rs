//! What is left of the budget while Nodes are taken away, and who may go within it.

use kube_node_api::ReplacementOrder;

use super::{Deletion, DesiredState, DisruptionReason, Known, NodeState, Plan, Stage, Wait, take};

/// What the budget has left while Nodes are taken away.
pub(super) struct Spending {
    /// Fewest Nodes that are to be available.
    floor: usize,
    /// The same for a single Node that is to go before its replacement comes.
    single_floor: usize,
    /// Nodes that are available.
    available: usize,
    /// Nodes that are available or broken: new ones that are still starting do not count, so that no Node goes in
    /// favour of one that may never come.
    established: usize,
    /// Nodes that have to go and may not.
    waiting: usize,
}

impl Spending {
    pub(super) fn new(wanted: &DesiredState<'_>, known: &[Known<'_, '_>]) -> Self {
        // Whoever is being emptied takes its replica along: it is not waited for.
        let claimed = known.iter().filter(|known| known.stays() && known.member.claimed).count();
        let replicas = wanted.replicas.saturating_sub(claimed);
        let floor = wanted.budget.floor(replicas);
        let single_floor = match wanted.replacement {
            ReplacementOrder::SurgeFirst => floor,
            ReplacementOrder::DeleteFirst => floor.min(replicas.saturating_sub(1)),
        };
        let available = known.iter().filter(|known| known.available).count();
        let broken = known.iter().filter(|known| known.stays() && known.is_broken()).count();
        Self { floor, single_floor, available, established: available + broken, waiting: 0 }
    }

    fn lose(&mut self, available: bool) {
        self.available -= usize::from(available);
        self.established = self.established.saturating_sub(1);
    }

    /// Named Nodes go, and marked victims of a smaller set go whatever else holds: somebody else has emptied them
    /// already. They go first, so that nobody else spends what they take. Not for the surge of a rollout one that
    /// cluster-autoscaler is still emptying: its replica is to go with it, by an order.
    pub(super) fn delete_marked<'a>(
        &mut self,
        wanted: &DesiredState<'_>,
        known: &mut [Known<'_, 'a>],
        expected: usize,
        plan: &mut Plan<'a>,
    ) {
        let mut surplus = (plan.counts.staying + expected).saturating_sub(wanted.replicas);
        // Those that were named come first in the order.
        for victim in known.iter_mut().filter(|known| known.stays()) {
            let NodeState { named, marked, claimed, deletion_refused, .. } = *victim.member;
            if deletion_refused {
                continue;
            }
            let spent = (named || marked && !claimed) && take(&mut surplus);
            if spent || named {
                self.go(victim, plan);
            }
        }
    }

    /// Nodes that were deleted by hand, or by an earlier process of ours.
    pub(super) fn grant_turns<'a>(
        &mut self,
        wanted: &DesiredState<'_>,
        known: &[Known<'_, 'a>],
        plan: &mut Plan<'a>,
    ) {
        // Beyond the replicas nobody is missed.
        let mut surplus = plan.counts.staying + plan.counts.leaving;
        surplus = surplus.saturating_sub(wanted.replicas);
        for known in known {
            match known.member.stage {
                Stage::Staying => {}
                Stage::Draining => plan.drain_permits.push(known.member.name),
                Stage::PendingDrain if known.member.deletion_refused => {}
                Stage::PendingDrain if !known.available => plan.drain_permits.push(known.member.name),
                Stage::PendingDrain
                    if known.member.marked && surplus > 0 || self.available > self.single_floor =>
                {
                    self.lose(true);
                    surplus = surplus.saturating_sub(1);
                    plan.drain_permits.push(known.member.name);
                }
                Stage::PendingDrain => self.waiting += 1,
            }
        }
    }

    pub(super) fn delete<'a>(
        &mut self,
        wanted: &DesiredState<'_>,
        known: &mut [Known<'_, 'a>],
        plan: &mut Plan<'a>,
    ) {
        for bad in known.iter_mut().filter(|known| known.stays() && known.replaced.is_some()) {
            let sick = bad.replaced.is_some_and(DisruptionReason::is_sickness);
            let floor = if sick { self.single_floor } else { self.floor };
            let may = if bad.available { self.available > floor } else { self.established > floor };
            if bad.member.deletion_refused {
                continue;
            }
            if may {
                self.go(bad, plan);
            } else {
                self.waiting += 1;
            }
        }
        // Of those that nothing is wrong with. What was asked for and is not shown yet is the first to be given up, once
        // it is shown. Who is being emptied is left to its order, and neither is anybody else taken for it.
        let good = |known: &Known<'_, '_>| known.stays() && known.replaced.is_none() && !known.member.claimed;
        let count = known.iter().filter(|known| good(known)).count();
        let mut surplus = count.saturating_sub(wanted.replicas + plan.kept_surge(wanted));
        for victim in known.iter_mut().filter(|known| good(known) && !known.member.deletion_refused) {
            if surplus > 0 && (!victim.available || self.available > self.floor) {
                surplus -= 1;
                self.go(victim, plan);
            }
        }
        self.waiting += surplus;
    }

    /// Nodes that leave and whose drain the API server refused may try again once no other Node waits for the budget: one
    /// that cannot go must not keep others from going.
    pub(super) fn retry_refused<'a>(&mut self, known: &[Known<'_, 'a>], plan: &mut Plan<'a>) {
        let refused = |known: &&Known<'_, '_>| {
            known.member.stage == Stage::PendingDrain && known.member.deletion_refused
        };
        for known in known.iter().filter(refused) {
            if !known.available || (self.waiting == 0 && self.available > self.single_floor) {
                self.lose(known.available);
                plan.drain_permits.push(known.member.name);
            }
        }
    }

    fn go<'a>(&mut self, known: &mut Known<'_, 'a>, plan: &mut Plan<'a>) {
        if known.available || known.is_broken() {
            self.lose(known.available);
        }
        known.deleted = true;
        plan.delete.push(Deletion { name: known.member.name, cause: known.replaced });
    }
}

/// What is left to wait for once everything is decided.
pub(super) fn wait(spending: &Spending, plan: &mut Plan<'_>) {
    if spending.waiting > 0 {
        let Spending { waiting, available, floor, .. } = *spending;
        plan.waits.push(Wait::Budget { waiting, available, least: floor });
    }
    let nodes = plan.counts.staying - plan.counts.available;
    if nodes > 0 {
        plan.waits.push(Wait::Unavailable { nodes });
    }
    let nodes = plan.counts.leaving + plan.delete.len();
    if nodes > 0 {
        plan.waits.push(Wait::Leaving { nodes });
    }
}
