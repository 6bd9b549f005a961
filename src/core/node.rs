//! The life of one Node: provision its machine, let pods in, drain it, take the machine away, let the Node go.
//!
//! One call decides one look. The caller applies the steps in order and comes back at the latest after `look_again`;
//! what the Node waits for is in `waits_for`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;

use super::taints::{self, Initialization};

/// A Lease renewed within this time is fresh: the 40 s that a kubelet's Lease lives.
pub const LEASE_FRESH: Duration = Duration::from_secs(40);

/// How often something is looked at that no watch would report.
const POLL: Duration = Duration::from_secs(5);

/// A Node as the watch shows it.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// When its deletion was asked for.
    pub deleted_at: Option<Timestamp>,
    /// Whether it carries the finalizer `kube-node.io/machine`.
    pub finalizer: bool,
    /// Whether it is closed to the scheduler (`spec.unschedulable`).
    pub cordoned: bool,
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
    /// Its deletion was asked for, and it still exists.
    Leaving,
}

/// How far the drain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    /// Not looked at yet since the Node was cordoned.
    Unknown,
    /// Pods that have to leave before the machine does.
    Remaining(usize),
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
    /// Close the Node to the scheduler.
    Cordon,
    /// Evict what has to leave.
    Evict,
    /// Delete the machine.
    DeleteMachine,
    /// Let the Node go.
    RemoveFinalizer,
}

/// What a Node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The provider to make the machine.
    Machine,
    /// The machine's kubelet to post its first status.
    Kubelet,
    /// The kubelet to report Ready=True.
    Ready,
    /// The kubelet to renew its Lease.
    Lease,
    /// Pods to leave.
    Drain {
        /// How many are left.
        pods: usize,
    },
    /// The class's deletion timeout.
    DeletionTimeout {
        /// What is left of it.
        left: Duration,
    },
    /// The provider to say that the machine is gone.
    MachineDeletion,
}

impl Wait {
    /// The reason for conditions, events and metric labels: few values, in the form of a condition's reason.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Machine => "WaitingForMachine",
            Self::Kubelet => "WaitingForKubelet",
            Self::Ready => "WaitingForReady",
            Self::Lease => "WaitingForLease",
            Self::Drain { .. } => "Draining",
            Self::DeletionTimeout { .. } => "WaitingForDeletionTimeout",
            Self::MachineDeletion => "DeletingMachine",
        }
    }
}

/// What to do now, what it waits for then, and when to look again if nothing changes before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// None: the Node is at work, or gone.
    pub waits_for: Option<Wait>,
    /// None: only a change brings anything new.
    pub look_again: Option<Duration>,
}

/// Decides for one Node of ours. `deletion_timeout` is its class's.
#[must_use]
pub fn decide(node: &Node, machine: Machine, pods: Pods, deletion_timeout: Duration, now: Timestamp) -> Plan {
    match node.deleted_at {
        Some(deleted_at) => leave(node, machine, pods, until(deleted_at, deletion_timeout, now)),
        None => start(node, machine, now),
    }
}

/// What is left at `now` of a span that began at `since`; zero when it is over.
fn until(since: Timestamp, span: Duration, now: Timestamp) -> Duration {
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
    match machine {
        Machine::Absent => {
            plan.steps.push(Step::CreateMachine);
            plan.waits_for = Some(Wait::Machine);
            return plan;
        }
        // Somebody took the machine away: it has to be gone before it is made again.
        Machine::Leaving => {
            plan.waits_for = Some(Wait::MachineDeletion);
            plan.look_again = Some(POLL);
            return plan;
        }
        Machine::Exists => {}
    }
    let fresh = node.lease_renewed.is_some_and(|renewed| !until(renewed, LEASE_FRESH, now).is_zero());
    let (state, waits_for) = match (node.kubelet, fresh) {
        (Kubelet::Silent, _) => (Initialization::Awaited, Some(Wait::Kubelet)),
        (Kubelet::NotReady, _) => (Initialization::Registered, Some(Wait::Ready)),
        (Kubelet::Ready, false) => (Initialization::Registered, Some(Wait::Lease)),
        (Kubelet::Ready, true) => (Initialization::Ready, None),
    };
    if let Some(taints) = taints::advance(&node.taints, state) {
        plan.steps.push(Step::SetTaints(taints));
    }
    // A Node that works needs no look at its Lease: a stale one comes back as a change of its Ready condition.
    plan.look_again = (waits_for == Some(Wait::Lease)).then_some(POLL);
    plan.waits_for = waits_for;
    plan
}

/// From a deleted Node to none: the machine goes when the pods have left and the timeout is over, the Node when the
/// machine is gone.
fn leave(node: &Node, machine: Machine, pods: Pods, timeout_left: Duration) -> Plan {
    let mut plan = Plan::default();
    match machine {
        Machine::Absent if node.finalizer => plan.steps.push(Step::RemoveFinalizer),
        Machine::Absent => {}
        Machine::Leaving => {
            plan.waits_for = Some(Wait::MachineDeletion);
            plan.look_again = Some(POLL);
        }
        // Pods count once the watch shows the cordon: one could slip in before.
        Machine::Exists if !node.cordoned => {
            plan.steps.push(Step::Cordon);
            plan.look_again = Some(POLL);
        }
        Machine::Exists => match pods {
            Pods::Unknown => plan.look_again = Some(Duration::ZERO),
            Pods::Remaining(0) if timeout_left.is_zero() => {
                plan.steps.push(Step::DeleteMachine);
                plan.waits_for = Some(Wait::MachineDeletion);
                plan.look_again = Some(POLL);
            }
            Pods::Remaining(0) => {
                plan.waits_for = Some(Wait::DeletionTimeout { left: timeout_left });
                plan.look_again = Some(timeout_left);
            }
            Pods::Remaining(pods) => {
                plan.steps.push(Step::Evict);
                plan.waits_for = Some(Wait::Drain { pods });
                plan.look_again = Some(POLL);
            }
        },
    }
    plan
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn new_node() -> Node {
        Node { finalizer: true, taints: taints::at_birth(), ..Node::default() }
    }

    fn leaving(cordoned: bool) -> Node {
        Node { deleted_at: Some(at(100)), cordoned, finalizer: true, ..Node::default() }
    }

    fn steps(node: &Node, machine: Machine, pods: Pods, now: i64) -> Vec<Step> {
        decide(node, machine, pods, TIMEOUT, at(now)).steps
    }

    #[test]
    fn a_node_written_by_hand_gets_its_finalizer_before_its_machine() {
        let node = Node::default();
        assert_eq!(
            steps(&node, Machine::Absent, Pods::Unknown, 0),
            [Step::AddFinalizer, Step::CreateMachine]
        );
    }

    #[test]
    fn a_ready_node_with_a_stale_lease_takes_no_pods() {
        let node = Node { kubelet: Kubelet::Ready, lease_renewed: Some(at(0)), ..new_node() };
        let stale = decide(&node, Machine::Exists, Pods::Unknown, TIMEOUT, at(40));
        assert_eq!(stale.waits_for, Some(Wait::Lease));
        assert!(
            matches!(&stale.steps[..], [Step::SetTaints(left)] if left.len() == 1 && left[0].effect == "NoSchedule")
        );
        let fresh = decide(&node, Machine::Exists, Pods::Unknown, TIMEOUT, at(39));
        assert_eq!(fresh, Plan { steps: vec![Step::SetTaints(vec![])], ..Plan::default() });
    }

    #[test]
    fn the_machine_goes_at_the_later_of_drain_and_timeout() {
        let node = leaving(true);
        assert_eq!(steps(&node, Machine::Exists, Pods::Remaining(2), 500), [Step::Evict]);
        let early = decide(&node, Machine::Exists, Pods::Remaining(0), TIMEOUT, at(110));
        assert_eq!(early.waits_for, Some(Wait::DeletionTimeout { left: Duration::from_secs(20) }));
        assert_eq!(steps(&node, Machine::Exists, Pods::Remaining(0), 130), [Step::DeleteMachine]);
    }

    #[test]
    fn a_clock_that_went_back_does_not_prolong_the_timeout() {
        let plan = decide(&leaving(true), Machine::Exists, Pods::Remaining(0), TIMEOUT, at(0));
        assert_eq!(plan.waits_for, Some(Wait::DeletionTimeout { left: TIMEOUT }));
    }

    #[test]
    fn a_deleted_node_without_a_machine_goes_at_once() {
        assert_eq!(steps(&leaving(false), Machine::Absent, Pods::Unknown, 100), [Step::RemoveFinalizer]);
    }

    fn nodes() -> impl Strategy<Value = Node> {
        (prop::option::of(0_i64..200), any::<[bool; 2]>(), 0_usize..3, prop::option::of(0_i64..200)).prop_map(
            |(deleted, [finalizer, cordoned], kubelet, lease)| Node {
                deleted_at: deleted.map(at),
                finalizer,
                cordoned,
                taints: taints::at_birth(),
                kubelet: [Kubelet::Silent, Kubelet::NotReady, Kubelet::Ready][kubelet],
                lease_renewed: lease.map(at),
            },
        )
    }

    fn machines() -> impl Strategy<Value = Machine> {
        prop_oneof![Just(Machine::Absent), Just(Machine::Exists), Just(Machine::Leaving)]
    }

    fn pods() -> impl Strategy<Value = Pods> {
        prop_oneof![Just(Pods::Unknown), (0_usize..3).prop_map(Pods::Remaining)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// In every state: no machine is made for a Node that leaves, none is deleted under pods, before its time or
        /// for a Node that stays, and no Node goes before its machine.
        #[test]
        fn nothing_happens_out_of_order(node in nodes(), machine in machines(), pods in pods(), now in 0_i64..300) {
            let plan = decide(&node, machine, pods, TIMEOUT, at(now));
            let has = |step: &Step| plan.steps.contains(step);
            prop_assert!(!has(&Step::CreateMachine) || (node.deleted_at.is_none() && machine == Machine::Absent));
            prop_assert!(!has(&Step::RemoveFinalizer) || (node.deleted_at.is_some() && machine == Machine::Absent));
            if has(&Step::DeleteMachine) {
                let deleted_at = node.deleted_at.expect("a Node that leaves");
                prop_assert!(node.cordoned && pods == Pods::Remaining(0));
                prop_assert!(at(now).duration_since(deleted_at) >= TIMEOUT.try_into().expect("small"));
            }
            if node.deleted_at.is_none() {
                prop_assert!(!has(&Step::Evict) && !has(&Step::Cordon));
            }
        }

        /// Whoever waits for what no watch reports comes back by itself; a wait for nothing does not spin.
        #[test]
        fn nobody_is_forgotten(node in nodes(), machine in machines(), pods in pods(), now in 0_i64..300) {
            let plan = decide(&node, machine, pods, TIMEOUT, at(now));
            if node.deleted_at.is_some() && machine != Machine::Absent {
                prop_assert!(plan.look_again.is_some());
            }
            if plan.steps.is_empty() && plan.waits_for.is_none() && node.cordoned && pods != Pods::Unknown {
                prop_assert!(plan.look_again.is_none());
            }
        }
    }
}
