//! The life of one Node: provision its machine, let pods in, drain it, take the machine away, let the Node go.
//!
//! One call plans one reconciliation. The caller applies the steps in order and comes back at the latest after `requeue_after`;
//! what the Node waits for is in `waits_for`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube_node_api::names::TAINT_UNINITIALIZED;

use super::{
    back_off::BackOff,
    drain::{self, PodId},
    taints::{self, Initialization},
    wait::Wait,
};

/// A Lease renewed within this time is fresh: the 40 s that a kubelet's Lease lives.
pub const LEASE_FRESH: Duration = Duration::from_secs(40);

/// How often something is looked at that no watch would report.
const POLL: Duration = Duration::from_secs(5);
/// How often a Node without a turn is looked at; whoever grants it tells.
const TURN_POLL: Duration = Duration::from_mins(1);
/// How long a Node whose machine is gone waits for its pods and volumes: a Node that nobody hears from is found within
/// 50 s and the pods of out-of-service Nodes every 20 s. Afterwards its pods are those of a Node that does not exist,
/// which the garbage collector of pods deletes too.
const CLEANUP_LIMIT: Duration = Duration::from_mins(3);

/// A Node as the watch shows it.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// When its deletion was asked for.
    pub deleted_at: Option<Timestamp>,
    /// Whether it carries the finalizer `kube-node.io/machine`.
    pub finalizer: bool,
    /// Whether it is closed to the scheduler (`spec.unschedulable`).
    pub cordoned: bool,
    /// Whether its drain may begin; one that has begun goes on without it.
    pub turn: bool,
    /// Whether its machine lives in our process, so that a restart loses it, and can be made again: that is no failure of the
    /// machine.
    pub volatile: bool,
    /// What has to pass before it gets another machine; those before ended again and again.
    pub back_off: Option<BackOff>,
    /// All taints.
    pub taints: Vec<Taint>,
    /// What its kubelet has said.
    pub kubelet: Kubelet,
    /// When its Lease was renewed last.
    pub lease_renewed: Option<Timestamp>,
}

/// What a Node's kubelet has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kubelet {
    /// Nothing: nodeInfo names no version yet.
    #[default]
    Silent,
    /// It posted a status, and its Ready condition is not True.
    NotReady,
    /// Its Ready condition is True.
    Ready,
}

/// The Node's machine as its provider knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// There is none.
    Absent,
    /// It exists.
    Exists,
    /// It has ended and will not come back: it has to make way for another.
    Dead,
    /// Its deletion was asked for, and it still exists.
    Leaving,
}

/// How far the drain has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pods {
    /// Not observed yet since the Node was cordoned.
    #[default]
    Unknown,
    /// Looked at.
    Known {
        /// What the drain has to do.
        drain: drain::Plan,
        /// Volumes that are attached to the machine and belong to no pod that stays; looked for once no pod is left.
        attached: Attached,
    },
}

/// What is known of the volumes that are attached to a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attached {
    /// Their names.
    Volumes(Vec<String>),
    /// Nothing yet: ask again after this time.
    AskAgain(Duration),
}

impl Default for Attached {
    fn default() -> Self {
        Self::Volumes(Vec::new())
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Set the finalizer, so that no machine outlives its Node unnoticed.
    AddFinalizer,
    /// Make the machine from the revision that the Node names.
    CreateMachine,
    /// Write the list of taints.
    SetTaints(Vec<Taint>),
    /// Close the Node to the scheduler, and note when.
    Cordon {
        /// When the drain begins.
        at: Timestamp,
    },
    /// Evict these pods.
    Evict(Vec<PodId>),
    /// Delete these pods past everything that protects them, because the drain has taken too long.
    Force(Vec<PodId>),
    /// Delete the machine.
    DeleteMachine,
    /// Say that nothing runs on the Node any more, and never will: write this list of taints.
    SetOutOfService(Vec<Taint>),
    /// Delete these pods, whose machine does not exist any more.
    DeletePods(Vec<PodId>),
    /// Let the Node go.
    RemoveFinalizer,
}

/// What to do now, what it waits for then, and when to reconcile again if nothing changes before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// None: the Node is at work, or gone.
    pub waits_for: Option<Wait>,
    /// None: only a change brings anything new.
    pub requeue_after: Option<Duration>,
}

/// Decides for one Node of ours. `deletion_timeout` is its class's.
#[must_use]
pub fn decide(
    node: &Node,
    machine: Machine,
    pods: &Pods,
    deletion_timeout: Duration,
    now: Timestamp,
) -> Plan {
    let Some(deleted_at) = node.deleted_at else { return start(node, machine, now) };
    match machine {
        Machine::Absent if still_needed(node, pods) => {
            let steps = vec![Step::CreateMachine];
            Plan { steps, waits_for: Some(Wait::Machine), requeue_after: Some(POLL) }
        }
        Machine::Absent => finalize(node, pods, now),
        // Nothing runs on it, so there is nothing to drain.
        Machine::Dead => Plan {
            steps: vec![Step::DeleteMachine],
            waits_for: Some(Wait::MachineDeletion),
            requeue_after: Some(POLL),
        },
        Machine::Leaving => {
            Plan { waits_for: Some(Wait::MachineDeletion), requeue_after: Some(POLL), ..Plan::default() }
        }
        Machine::Exists => leave(node, pods, until(deleted_at, deletion_timeout, now), now),
    }
}

/// Whether a machine that a restart took has to come back so that its pods can leave as they should: through their
/// disruption budgets, and not before the set says so.
fn still_needed(node: &Node, pods: &Pods) -> bool {
    let holds_pods = matches!(pods, Pods::Known { drain, .. } if !drain.is_done());
    let waits = !node.cordoned && !node.turn;
    node.volatile && node.finalizer && node.kubelet != Kubelet::Silent && (waits || holds_pods)
}

/// What is left at `now` of a span that began at `since`; zero when it is over.
pub(super) fn until(since: Timestamp, span: Duration, now: Timestamp) -> Duration {
    // A clock that went backwards must not make the wait longer than the span.
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    span.saturating_sub(passed)
}

/// From a Node without a machine to one that takes pods.
fn start(node: &Node, machine: Machine, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if !node.finalizer {
        plan.steps.push(Step::AddFinalizer);
    }
    if let Some(back_off) =
        node.back_off.as_ref().filter(|_| matches!(machine, Machine::Absent | Machine::Dead))
    {
        plan.waits_for = Some(Wait::BackOff);
        plan.requeue_after = Some(back_off.left);
        return plan;
    }
    match machine {
        Machine::Absent => {
            plan.steps.push(Step::CreateMachine);
            plan.waits_for = Some(Wait::Machine);
            return plan;
        }
        // Somebody took the machine away: it has to be gone before it is made again.
        Machine::Leaving => {
            plan.waits_for = Some(Wait::MachineDeletion);
            plan.requeue_after = Some(POLL);
            return plan;
        }
        Machine::Dead => {
            plan.steps.push(Step::DeleteMachine);
            plan.waits_for = Some(Wait::Machine);
            plan.requeue_after = Some(POLL);
            return plan;
        }
        Machine::Exists => {}
    }
    // The Lease of a Node that pods were let in to is nobody's business here: a stale one shows as a change of Ready.
    let initialized = !node.taints.iter().any(|taint| taint.key == TAINT_UNINITIALIZED);
    if initialized && node.kubelet == Kubelet::Ready {
        return plan;
    }
    let fresh = node.lease_renewed.is_some_and(|renewed| !until(renewed, LEASE_FRESH, now).is_zero());
    let (state, waits_for) = match (node.kubelet, fresh) {
        (Kubelet::Silent, _) => (Initialization::Awaited, Some(Wait::Kubelet)),
        (Kubelet::NotReady, _) => (Initialization::Registered, Some(Wait::Ready)),
        // Its first Lease is on its way: both taints leave in one write.
        (Kubelet::Ready, false) if node.lease_renewed.is_none() => {
            (Initialization::Awaited, Some(Wait::Lease))
        }
        (Kubelet::Ready, false) => (Initialization::Registered, Some(Wait::Lease)),
        (Kubelet::Ready, true) => (Initialization::Ready, None),
    };
    if let Some(taints) = taints::advance(&node.taints, state) {
        plan.steps.push(Step::SetTaints(taints));
    }
    plan.requeue_after = (waits_for == Some(Wait::Lease)).then_some(POLL);
    plan.waits_for = waits_for;
    plan
}

/// From a deleted Node to one without a machine: the machine goes when pods and volumes have left and the timeout of the
/// class is over.
fn leave(node: &Node, pods: &Pods, timeout_left: Duration, now: Timestamp) -> Plan {
    let mut plan = Plan { requeue_after: Some(POLL), ..Plan::default() };
    if !node.cordoned {
        // Pods count once the watch shows the cordon: one could slip in before.
        if node.turn {
            plan.steps.push(Step::Cordon { at: now });
        } else {
            plan.waits_for = Some(Wait::Turn);
            plan.requeue_after = Some(TURN_POLL);
        }
        return plan;
    }
    let Pods::Known { drain, attached } = pods else {
        plan.requeue_after = Some(Duration::ZERO);
        return plan;
    };
    if !drain.is_done() {
        if !drain.evict.is_empty() {
            plan.steps.push(Step::Evict(drain.evict.clone()));
        }
        if !drain.force.is_empty() {
            plan.steps.push(Step::Force(drain.force.clone()));
        }
        plan.waits_for = Some(Wait::drain(drain));
        return plan;
    }
    match attached {
        Attached::AskAgain(later) => {
            plan.waits_for = Some(Wait::Volumes { names: Vec::new() });
            plan.requeue_after = Some(*later);
            return plan;
        }
        Attached::Volumes(names) if !names.is_empty() => {
            plan.waits_for = Some(Wait::Volumes { names: names.clone() });
            return plan;
        }
        Attached::Volumes(_) => {}
    }
    if timeout_left.is_zero() {
        plan.steps.push(Step::DeleteMachine);
        plan.waits_for = Some(Wait::MachineDeletion);
    } else {
        plan.waits_for = Some(Wait::DeletionTimeout { left: timeout_left });
        plan.requeue_after = Some(timeout_left);
    }
    plan
}

/// From a deleted Node without a machine to none. Pods that are bound to it still can never end by themselves: the
/// out-of-service taint lets kube-controller-manager delete them by force and detach their volumes at once. It says
/// that the machine does not run, so it is set here alone.
fn finalize(node: &Node, pods: &Pods, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if !node.finalizer {
        return plan;
    }
    let Pods::Known { drain, attached } = pods else {
        plan.requeue_after = Some(Duration::ZERO);
        return plan;
    };
    let marked_at = taints::out_of_service_since(&node.taints);
    let over = marked_at.is_some_and(|at| until(at, CLEANUP_LIMIT, now).is_zero());
    let detached = *attached == Attached::default();
    let clean = drain.bound.is_empty() && (marked_at.is_none() || detached);
    if clean || over {
        plan.steps.push(Step::RemoveFinalizer);
        return plan;
    }
    if marked_at.is_none() {
        plan.steps.push(Step::SetOutOfService(taints::with_out_of_service(&node.taints, now)));
    } else if !drain.undeleted.is_empty() {
        // The taint does not make pods leave that tolerate it.
        plan.steps.push(Step::DeletePods(drain.undeleted.clone()));
    }
    plan.waits_for = Some(Wait::PodsCleanup { pods: drain.bound.len(), first: drain.bound.first().cloned() });
    plan.requeue_after = match attached {
        Attached::AskAgain(later) => Some(*later),
        Attached::Volumes(_) => Some(POLL),
    };
    plan
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
