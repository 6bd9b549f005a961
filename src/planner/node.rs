//! Life cycle of one Node: create the machine, admit pods, drain, delete the machine, remove the finalizer.
//!
//! Input: Node, machine, pods, deletion timeout, time. Output: a [`NodePlan`] for one reconciliation. The caller applies
//! the steps in order and reconciles again after `requeue_after` at the latest; `waits_for` names the obstacle.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube_node_api::{names::TAINT_UNINITIALIZED, node_lease, time::left};

use super::{
    drain::{self, PodId},
    taints::{self, Initialization},
    wait::NodeWait,
};

/// Requeue time for changes that no watch reports.
const POLL: Duration = Duration::from_secs(5);
/// Requeue time of a Node without a drain permit; a new permit enqueues the Node.
const PERMIT_POLL: Duration = Duration::from_mins(1);
/// Maximum time that a Node whose machine is gone waits for its pods and volumes. kube-controller-manager
/// detects an unreachable Node within 50 s and deletes the pods of out-of-service Nodes every 20 s. After
/// this limit the Node goes, and the pod garbage collector deletes the pods of missing Nodes too.
const CLEANUP_LIMIT: Duration = Duration::from_mins(3);

/// A Node as seen by the watch.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Deletion timestamp.
    pub deleted_at: Option<Timestamp>,
    /// True if the Node has the finalizer `kube-node.io/machine`.
    pub finalizer: bool,
    /// True if the Node is cordoned (`spec.unschedulable`).
    pub cordoned: bool,
    /// True if the Node has a drain permit; a drain that has started needs none.
    pub drain_permit: bool,
    /// True if the machine runs in this process: a restart loses the machine without a failure, and it can be
    /// recreated.
    pub volatile: bool,
    /// Time left before the next machine; set if earlier machines ended repeatedly.
    pub back_off: Option<Duration>,
    /// All taints.
    pub taints: Vec<Taint>,
    /// State reported by the kubelet.
    pub kubelet: Kubelet,
    /// Last renewal of the Node's Lease, by the operator's clock.
    pub lease_renewed: Option<Timestamp>,
}

impl Node {
    /// Returns true if a pod may still be bound to the Node: a kubelet has reported, and nothing keeps pods off.
    pub fn takes_pods(&self) -> bool {
        let is_marked = taints::out_of_service_since(&self.taints).is_some();
        self.kubelet != Kubelet::Silent && !self.cordoned && !is_marked
    }
}

/// State reported by a Node's kubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kubelet {
    /// No status yet: nodeInfo has no kubelet version.
    #[default]
    Silent,
    /// A status was posted, and the Ready condition is not True.
    NotReady,
    /// The Ready condition is True.
    Ready,
}

/// The Node's machine as reported by the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineState {
    /// No machine exists.
    Absent,
    /// The machine exists.
    Exists,
    /// The machine has ended for good and must be deleted before another is created.
    Dead,
    /// The machine is being deleted.
    Leaving,
}

/// Progress of the drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pods {
    /// Not observed yet since the Node was cordoned.
    #[default]
    Unknown,
    /// Observed.
    Known {
        /// Next actions of the drain.
        drain: drain::DrainPlan,
        /// Attached volumes that belong to no pod that stays; observed once no pod is left.
        attached: Attached,
    },
}

/// Knowledge about the volumes attached to a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attached {
    /// Names of the attached volumes.
    Volumes(Vec<String>),
    /// Unknown; ask again after this time.
    AskAgain(Duration),
}

impl Default for Attached {
    fn default() -> Self {
        Self::Volumes(Vec::new())
    }
}

/// One action of a reconciliation.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeStep {
    /// Add the finalizer, so that no machine outlives its Node unnoticed.
    AddFinalizer,
    /// Create the machine from the Node's revision.
    CreateMachine,
    /// Write this list of taints.
    SetTaints(Vec<Taint>),
    /// Cordon the Node and record the time.
    Cordon {
        /// Start of the drain.
        at: Timestamp,
    },
    /// Evict these pods.
    Evict(Vec<PodId>),
    /// Delete these pods regardless of any protection, because the drain timeout is over.
    Force(Vec<PodId>),
    /// Delete the machine.
    DeleteMachine,
    /// Write this list of taints, which declares that nothing runs on the Node and never will.
    SetOutOfService(Vec<Taint>),
    /// Delete these pods, whose machine is gone.
    DeletePods(Vec<PodId>),
    /// Remove the finalizer, which lets the Node go.
    RemoveFinalizer,
}

/// Result of one reconciliation: actions, wait and requeue time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// Actions, in order.
    pub steps: Vec<NodeStep>,
    /// Current wait; None if the Node is in service or gone.
    pub waits_for: Option<NodeWait>,
    /// Requeue time; None to await a change.
    pub requeue_after: Option<Duration>,
}

impl NodePlan {
    fn new(steps: impl IntoIterator<Item = NodeStep>, waits_for: NodeWait, requeue_after: Duration) -> Self {
        let steps = steps.into_iter().collect();
        Self { steps, waits_for: Some(waits_for), requeue_after: Some(requeue_after) }
    }

    /// No step, and a reconciliation at once.
    fn at_once() -> Self {
        Self { requeue_after: Some(Duration::ZERO), ..Self::default() }
    }
}

/// Plans one reconciliation of a Node. `deletion_timeout` is that of the Node's class.
pub fn decide(
    node: &Node,
    machine: MachineState,
    pods: &Pods,
    deletion_timeout: Duration,
    now: Timestamp,
) -> NodePlan {
    let Some(deleted_at) = node.deleted_at else { return start(node, machine, now) };
    match machine {
        MachineState::Absent if still_needed(node, pods) => {
            NodePlan::new(Some(NodeStep::CreateMachine), NodeWait::WaitingForMachine, POLL)
        }
        MachineState::Absent => finalize(node, pods, now),
        // Nothing runs on the machine, so there is nothing to drain.
        MachineState::Dead => NodePlan::new(Some(NodeStep::DeleteMachine), NodeWait::DeletingMachine, POLL),
        MachineState::Leaving => NodePlan::new(None, NodeWait::DeletingMachine, POLL),
        MachineState::Exists => leave(node, pods, left(deleted_at, deletion_timeout, now), now),
    }
}

/// Returns true if a machine lost in a restart must be recreated, so that its pods leave through their
/// disruption budgets, and none is bound to it unseen: that takes a cordon, for which the set grants a permit.
fn still_needed(node: &Node, pods: &Pods) -> bool {
    let holds_pods = matches!(pods, Pods::Known { drain, .. } if !drain.is_done());
    node.volatile && node.finalizer && node.kubelet != Kubelet::Silent && (!node.cordoned || holds_pods)
}

/// Plan for a Node that is not deleted, from no machine to a Node that takes pods.
fn start(node: &Node, machine: MachineState, now: Timestamp) -> NodePlan {
    let mut plan = NodePlan::default();
    if !node.finalizer {
        plan.steps.push(NodeStep::AddFinalizer);
    }
    let (step, waits_for, requeue_after) = match (machine, node.back_off) {
        (MachineState::Exists, _) => return initialize(node, plan, now),
        (MachineState::Absent | MachineState::Dead, Some(left)) => {
            (None, NodeWait::MachineBackOff, Some(left))
        }
        (MachineState::Absent, None) => (Some(NodeStep::CreateMachine), NodeWait::WaitingForMachine, None),
        (MachineState::Dead, None) => {
            (Some(NodeStep::DeleteMachine), NodeWait::WaitingForMachine, Some(POLL))
        }
        // The machine was deleted by somebody else: it must be gone before it is recreated.
        (MachineState::Leaving, _) => (None, NodeWait::DeletingMachine, Some(POLL)),
    };
    plan.steps.extend(step);
    NodePlan { waits_for: Some(waits_for), requeue_after, ..plan }
}

/// Plan for a Node with a machine: remove the taints of initialization step by step.
fn initialize(node: &Node, mut plan: NodePlan, now: Timestamp) -> NodePlan {
    // The Lease of an initialized Node is not checked here: a stale Lease shows as a change of Ready.
    let initialized = !node.taints.iter().any(|taint| taint.key == TAINT_UNINITIALIZED);
    if initialized && node.kubelet == Kubelet::Ready {
        return plan;
    }
    let fresh = node.lease_renewed.is_some_and(|renewed| !left(renewed, node_lease::DURATION, now).is_zero());
    let (state, waits_for) = match (node.kubelet, fresh) {
        (Kubelet::Silent, _) => (Initialization::Awaited, Some(NodeWait::WaitingForKubelet)),
        (Kubelet::NotReady, _) => (Initialization::Registered, Some(NodeWait::WaitingForReady)),
        // The first Lease is under way: both taints are then removed in one write.
        (Kubelet::Ready, false) if node.lease_renewed.is_none() => {
            (Initialization::Awaited, Some(NodeWait::WaitingForLease))
        }
        (Kubelet::Ready, false) => (Initialization::Registered, Some(NodeWait::WaitingForLease)),
        (Kubelet::Ready, true) => (Initialization::Ready, None),
    };
    if let Some(taints) = taints::advance(&node.taints, state) {
        plan.steps.push(NodeStep::SetTaints(taints));
    }
    plan.requeue_after = (waits_for == Some(NodeWait::WaitingForLease)).then_some(POLL);
    plan.waits_for = waits_for;
    plan
}

/// Plan for a deleted Node with a machine. The machine is deleted once pods and volumes have left and the
/// class's deletion timeout is over.
fn leave(node: &Node, pods: &Pods, timeout_left: Duration, now: Timestamp) -> NodePlan {
    if !node.cordoned && !node.drain_permit {
        return NodePlan::new(None, NodeWait::WaitingForBudget, PERMIT_POLL);
    }
    if !node.cordoned {
        // Pods count once the watch shows the cordon: a pod could be bound before.
        let steps = vec![NodeStep::Cordon { at: now }];
        return NodePlan { steps, requeue_after: Some(POLL), ..NodePlan::default() };
    }
    let Pods::Known { drain, attached } = pods else { return NodePlan::at_once() };
    if !drain.is_done() {
        let evict = Some(&drain.evict).filter(|pods| !pods.is_empty()).cloned().map(NodeStep::Evict);
        let force = Some(&drain.force).filter(|pods| !pods.is_empty()).cloned().map(NodeStep::Force);
        return NodePlan::new(evict.into_iter().chain(force), NodeWait::drain(drain), POLL);
    }
    match attached {
        Attached::AskAgain(later) => {
            NodePlan::new(None, NodeWait::VolumesAttached { names: Vec::new() }, *later)
        }
        Attached::Volumes(names) if !names.is_empty() => {
            NodePlan::new(None, NodeWait::VolumesAttached { names: names.clone() }, POLL)
        }
        Attached::Volumes(_) if timeout_left.is_zero() => {
            NodePlan::new(Some(NodeStep::DeleteMachine), NodeWait::DeletingMachine, POLL)
        }
        Attached::Volumes(_) => {
            NodePlan::new(None, NodeWait::WaitingForDeletionTimeout { left: timeout_left }, timeout_left)
        }
    }
}

/// Plan for a deleted Node without a machine. Pods still bound to the Node can never terminate by themselves:
/// the out-of-service taint makes kube-controller-manager delete them by force and detach their volumes at
/// once. It also keeps off pods, which would be bound as long as nobody sees that the kubelet is silent. The taint declares
/// that the machine does not run, so it is set only here.
fn finalize(node: &Node, pods: &Pods, now: Timestamp) -> NodePlan {
    let mut plan = NodePlan::default();
    if !node.finalizer {
        return plan;
    }
    let Pods::Known { drain, attached } = pods else { return NodePlan::at_once() };
    let marked_at = taints::out_of_service_since(&node.taints);
    let over = marked_at.is_some_and(|at| left(at, CLEANUP_LIMIT, now).is_zero());
    let detached = *attached == Attached::default();
    let clean = drain.bound.is_empty() && (marked_at.is_none() || detached);
    if clean && !node.takes_pods() || over {
        plan.steps.push(NodeStep::RemoveFinalizer);
        return plan;
    }
    if marked_at.is_none() {
        plan.steps.push(NodeStep::SetOutOfService(taints::with_out_of_service(&node.taints, now)));
    } else if !drain.undeleted.is_empty() {
        // Pods that tolerate the taint are not deleted by it.
        plan.steps.push(NodeStep::DeletePods(drain.undeleted.clone()));
    }
    plan.waits_for = Some(NodeWait::WaitingForPodsCleanup {
        pods: drain.bound.len(),
        first: drain.bound.first().cloned(),
    });
    plan.requeue_after = match attached {
        Attached::AskAgain(later) => Some(*later),
        Attached::Volumes(_) => Some(POLL),
    };
    plan
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
