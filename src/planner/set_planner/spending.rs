//! Remaining budget during one reconciliation, and the choice of victims within it.

use kube_node_api::ReplacementOrder;

use super::{
    Deletion, DeletionStage, DesiredState, DisruptionReason, Known, NodeState, SetPlan, SetWait, take,
};

/// Remaining budget during one reconciliation.
pub(super) struct Spending {
    /// Minimum number of available Nodes.
    floor: usize,
    /// The minimum for a single Node that goes before its replacement exists.
    single_floor: usize,
    /// Number of available Nodes.
    available: usize,
    /// Number of available or broken Nodes. New Nodes that are still starting do not count, so that no Node
    /// goes in favour of one that may never start.
    established: usize,
    /// Number of Nodes that have to go and must wait for the budget.
    waiting: usize,
}

impl Spending {
    pub(super) fn new(wanted: &DesiredState<'_>, known: &[Known<'_, '_>]) -> Self {
        // A Node that cluster-autoscaler drains takes its replica along: nothing waits for the Node.
        let drained = known.iter().filter(|known| known.stays() && known.member.autoscaler_drains).count();
        let replicas = wanted.replicas.saturating_sub(drained);
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

    /// Deletes named victims always, and marked Nodes if the set shrinks: somebody else has emptied them already. They
    /// come first, so that no other deletion uses their share of the budget. A Node that cluster-autoscaler still
    /// drains is not deleted for the surge of a rollout: its replica goes with it by a scale request.
    pub(super) fn delete_marked<'a>(
        &mut self,
        wanted: &DesiredState<'_>,
        known: &mut [Known<'_, 'a>],
        expected: usize,
        plan: &mut SetPlan<'a>,
    ) {
        let mut surplus = (plan.counts.staying + expected).saturating_sub(wanted.replicas);
        // Named victims come first in the order.
        for victim in known.iter_mut().filter(|known| known.stays()) {
            let NodeState { victim: is_victim, marked, autoscaler_drains, deletion_refused, .. } =
                *victim.member;
            if deletion_refused {
                continue;
            }
            let spent = (is_victim || marked && !autoscaler_drains) && take(&mut surplus);
            if spent || is_victim {
                self.go(victim, plan);
            }
        }
    }

    /// Grants drain permits to Nodes that were deleted by hand or by an earlier process of ours.
    pub(super) fn grant_drain_permits<'a>(
        &mut self,
        wanted: &DesiredState<'_>,
        known: &[Known<'_, 'a>],
        plan: &mut SetPlan<'a>,
    ) {
        // Nodes beyond the replicas need no budget.
        let mut surplus = plan.counts.staying + plan.counts.leaving;
        surplus = surplus.saturating_sub(wanted.replicas);
        for known in known {
            match known.member.stage {
                DeletionStage::Staying => {}
                DeletionStage::Draining => plan.drain_permits.push(known.member.name),
                DeletionStage::PendingDrain if known.member.deletion_refused => {}
                DeletionStage::PendingDrain if !known.available => plan.drain_permits.push(known.member.name),
                DeletionStage::PendingDrain
                    if known.member.marked && surplus > 0 || self.available > self.single_floor =>
                {
                    self.lose(true);
                    surplus = surplus.saturating_sub(1);
                    plan.drain_permits.push(known.member.name);
                }
                DeletionStage::PendingDrain => self.waiting += 1,
            }
        }
    }

    pub(super) fn delete<'a>(
        &mut self,
        wanted: &DesiredState<'_>,
        known: &mut [Known<'_, 'a>],
        plan: &mut SetPlan<'a>,
    ) {
        for bad in known.iter_mut().filter(|known| known.stays() && known.replaced.is_some()) {
            let unhealthy = bad.replaced.is_some_and(DisruptionReason::is_repair);
            let floor = if unhealthy { self.single_floor } else { self.floor };
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
        // Healthy Nodes. Pending creations are given up first, once the watch shows them. A Node that
        // cluster-autoscaler drains is left to its scale request, and no other Node is deleted for it.
        let good = |known: &Known<'_, '_>| {
            known.stays() && known.replaced.is_none() && !known.member.autoscaler_drains
        };
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

    /// Grants drain permits to Nodes whose drain the API server refused, once no other Node waits for the
    /// budget: a Node that cannot go must not delay others.
    pub(super) fn retry_refused<'a>(&mut self, known: &[Known<'_, 'a>], plan: &mut SetPlan<'a>) {
        let refused = |known: &&Known<'_, '_>| {
            known.member.stage == DeletionStage::PendingDrain && known.member.deletion_refused
        };
        for known in known.iter().filter(refused) {
            if !known.available || (self.waiting == 0 && self.available > self.single_floor) {
                self.lose(known.available);
                plan.drain_permits.push(known.member.name);
            }
        }
    }

    fn go<'a>(&mut self, known: &mut Known<'_, 'a>, plan: &mut SetPlan<'a>) {
        if known.available || known.is_broken() {
            self.lose(known.available);
        }
        known.deleted = true;
        plan.delete.push(Deletion { name: known.member.name, cause: known.replaced });
    }
}

/// Adds the waits that remain after all decisions.
pub(super) fn wait(spending: &Spending, plan: &mut SetPlan<'_>) {
    if spending.waiting > 0 {
        let Spending { waiting, available, floor, .. } = *spending;
        plan.waits.push(SetWait::Budget { waiting, available, least: floor });
    }
    let nodes = plan.counts.staying - plan.counts.available;
    if nodes > 0 {
        plan.waits.push(SetWait::Unavailable { nodes });
    }
    let nodes = plan.counts.leaving + plan.delete.len();
    if nodes > 0 {
        plan.waits.push(SetWait::Leaving { nodes });
    }
}
