//! Remaining budget during one reconciliation, and the choice of victims within it.

use kube_node_api::ReplacementOrder;

use super::{Candidate, Deletion, DeletionStage, DesiredState, Planner, SetPlan, take};
use crate::set_wait::{SetWait, nodes};

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
    pub(super) fn new(desired: &DesiredState<'_>, nodes: &[Candidate<'_, '_>]) -> Self {
        // A Node that cluster-autoscaler drains takes its replica along: nothing waits for the Node. The replica of a
        // named victim is gone already.
        let is_drained = |own: &Candidate<'_, '_>| own.node.autoscaler_drains && !own.node.victim;
        let drained = nodes.iter().filter(|own| own.stays() && is_drained(own)).count();
        let replicas = desired.replicas.saturating_sub(drained);
        let floor = desired.budget.floor(replicas);
        let single_floor = match desired.replacement {
            ReplacementOrder::SurgeFirst => floor,
            ReplacementOrder::DeleteFirst => floor.min(replicas.saturating_sub(1)),
        };
        // A named victim that could not go yet goes at the next attempt, whatever the budget is then.
        let available = nodes.iter().filter(|own| own.available && !own.is_stuck()).count();
        let broken = nodes.iter().filter(|own| own.stays() && own.is_broken()).count();
        Self { floor, single_floor, available, established: available + broken, waiting: 0 }
    }

    fn lose(&mut self, available: bool) {
        self.available -= usize::from(available);
        self.established = self.established.saturating_sub(1);
    }

    /// Deletes named victims always, and marked Nodes if there are more Nodes than replicas. They come first, so that no
    /// other deletion uses their share of the budget. A Node that cluster-autoscaler still drains is not deleted for the
    /// surge of a rollout: its replica goes with it by a scale request.
    pub(super) fn delete_marked(&mut self, planner: &mut Planner<'_, '_, '_>) {
        let Planner { desired, nodes, expected, plan, .. } = planner;
        for own in nodes.iter_mut().filter(|own| own.stays() && own.node.victim && !own.node.is_undeletable())
        {
            self.go(own, plan);
        }
        let stuck = nodes.iter().filter(|own| own.is_stuck()).count();
        let staying = nodes.iter().filter(|own| own.stays()).count();
        let mut surplus = (staying + *expected).saturating_sub(desired.replicas + stuck);
        // A scale-down does not wait for the budget. The Nodes above the replicas that a rollout or a repair has made do:
        // they may still be starting. An outdated Node that cannot be deleted has such a replacement too.
        let mut shrinks = above_replicas(desired, nodes, plan).saturating_sub(held_up(nodes));
        for own in nodes.iter_mut().filter(|own| own.stays() && !own.node.is_undeletable()) {
            let is_marked = own.node.marked && !own.node.autoscaler_drains;
            let by_scale_down = shrinks > 0 && own.is_kept();
            let may_go = by_scale_down || !own.available || self.available > self.floor;
            if is_marked && may_go && take(&mut surplus) {
                shrinks -= usize::from(by_scale_down);
                self.go(own, plan);
            }
        }
    }

    /// Grants drain permits to Nodes that were deleted by hand or by an earlier process of ours. A mark does not matter here:
    /// a Node above the replicas may be the replacement of the deleted one, and still be starting.
    pub(super) fn grant_drain_permits(&mut self, planner: &mut Planner<'_, '_, '_>) {
        let Planner { nodes, plan, .. } = planner;
        for own in nodes.iter() {
            match own.node.stage {
                DeletionStage::Staying => {}
                DeletionStage::Draining => plan.drain_permits.push(own.node.name),
                DeletionStage::PendingDrain if own.node.deletion_refused => {}
                DeletionStage::PendingDrain if !own.available => plan.drain_permits.push(own.node.name),
                DeletionStage::PendingDrain if self.available > self.single_floor => {
                    self.lose(true);
                    plan.drain_permits.push(own.node.name);
                }
                DeletionStage::PendingDrain => self.waiting += 1,
            }
        }
    }

    /// Deletes Nodes to replace, then Nodes beyond the replicas.
    pub(super) fn delete(&mut self, planner: &mut Planner<'_, '_, '_>) {
        let Planner { desired, nodes, plan, .. } = planner;
        let is_deletable = |own: &Candidate<'_, '_>| own.stays() && !own.node.is_undeletable();
        for own in nodes.iter_mut().filter(|own| is_deletable(own)) {
            let Some(cause) = own.replaced else { continue };
            let floor = if cause.is_repair() { self.single_floor } else { self.floor };
            let present = if own.available { self.available } else { self.established };
            if present > floor {
                self.go(own, plan);
            } else {
                self.waiting += 1;
            }
        }
        // Healthy Nodes. Pending creations are given up first, once the watch shows them. cluster-autoscaler counts an outdated Node
        // that cannot be deleted beside the replicas, so no other Node goes for it, even if it becomes available again.
        let held_up = if desired.is_node_group { held_up(nodes) } else { 0 };
        let mut surplus = above_replicas(desired, nodes, plan).saturating_sub(held_up);
        for own in nodes.iter_mut().filter(|own| is_good(own) && is_deletable(own)) {
            if surplus > 0 && (!own.available || self.available > self.floor) {
                surplus -= 1;
                self.go(own, plan);
            }
        }
        self.waiting += surplus;
        let is_wanted = |own: &&Candidate<'_, '_>| own.node.victim || own.finding.is_wanted() || surplus > 0;
        let undeletable =
            || nodes.iter().filter(|own| own.stays() && own.node.is_undeletable()).filter(is_wanted);
        let refused = undeletable().filter(|own| own.node.deletion_refused);
        plan.retry_deletions = refused.map(|own| own.node.name).collect();
        let unprotected = undeletable().filter(|own| !own.node.deletion_refused).count();
        plan.waits.extend(SetWait::of_unprotected(unprotected));
    }

    /// Grants drain permits to Nodes whose drain the API server refused, once no other Node waits for the
    /// budget: a Node that cannot go must not delay others.
    pub(super) fn retry_refused(&mut self, planner: &mut Planner<'_, '_, '_>) {
        let is_refused = |own: &&Candidate<'_, '_>| {
            own.node.stage == DeletionStage::PendingDrain && own.node.deletion_refused
        };
        for own in planner.nodes.iter().filter(is_refused) {
            if !own.available || (self.waiting == 0 && self.available > self.single_floor) {
                self.lose(own.available);
                planner.plan.drain_permits.push(own.node.name);
            }
        }
    }

    fn go<'a>(&mut self, own: &mut Candidate<'_, 'a>, plan: &mut SetPlan<'a>) {
        if own.available || own.is_broken() {
            self.lose(own.available);
        }
        own.deleted = true;
        plan.delete.push(Deletion { name: own.node.name, cause: own.replaced });
    }

    /// Adds the waits that remain after all decisions.
    pub(super) fn report(&self, plan: &mut SetPlan<'_>) {
        let Self { waiting, available, floor, .. } = *self;
        if waiting > 0 {
            let have = if floor == 1 { "has" } else { "have" };
            let text =
                format!("to leave: {} available and {floor} {have} to be", nodes(available, "is", "are"));
            plan.wait_of("Budget", waiting, ["waits", "wait"], text);
        }
        let counts = plan.counts;
        if counts.staying > counts.available {
            plan.wait("NotAvailable", counts.staying - counts.available, "not available yet");
        }
        let leaving = counts.leaving + plan.delete.len();
        if leaving > 0 {
            plan.wait("Draining", leaving, "being drained and deleted");
        }
    }
}

/// Returns true if the Node stays as a replica, and is none that cluster-autoscaler drains: that Node is left to its scale
/// request, and no other Node is deleted for it.
fn is_good(own: &Candidate<'_, '_>) -> bool {
    own.is_kept() && !own.node.autoscaler_drains
}

/// Number of good Nodes that would be replaced now and cannot be deleted.
fn held_up(nodes: &[Candidate<'_, '_>]) -> usize {
    nodes.iter().filter(|own| is_good(own) && own.is_held_up).count()
}

/// Number of good Nodes above the replicas, without the surge that a held rollout keeps.
fn above_replicas(desired: &DesiredState<'_>, nodes: &[Candidate<'_, '_>], plan: &SetPlan<'_>) -> usize {
    let count = nodes.iter().filter(|own| is_good(own)).count();
    count.saturating_sub(desired.replicas + plan.retained_surge(desired))
}
