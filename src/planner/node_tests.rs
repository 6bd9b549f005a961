//! Tests of the life cycle of one Node.

use proptest::prelude::*;

use super::*;
use crate::drain::{Blockage, Obstacle};
use crate::test_fixtures::at;

const TIMEOUT: Duration = Duration::from_secs(30);

fn new_node() -> Node {
    Node { finalizer: true, taints: taints::at_birth(), ..Node::default() }
}

fn leaving(cordoned: bool) -> Node {
    Node { deleted_at: Some(at(100)), cordoned, drain_permit: true, finalizer: true, ..Node::default() }
}

fn ids(count: usize) -> Vec<PodId> {
    (0..count)
        .map(|i| PodId { namespace: "default".into(), name: format!("pod-{i}").into(), uid: "u".into() })
        .collect()
}

/// A drain with `count` pods left, all of them evictable.
fn left(count: usize) -> Pods {
    let drain = drain::DrainPlan {
        evict: ids(count),
        left: ids(count),
        bound: ids(count),
        undeleted: ids(count),
        awaits_volumes: count == 0,
        ..drain::DrainPlan::default()
    };
    Pods::Known { drain, attached: Attached::default() }
}

fn plan(node: &Node, machine: MachineState, pods: &Pods, now: i64) -> NodePlan {
    decide(node, machine, pods, TIMEOUT, at(now))
}

fn steps(node: &Node, machine: MachineState, pods: &Pods, now: i64) -> Vec<NodeStep> {
    plan(node, machine, pods, now).steps
}

#[test]
fn a_node_written_by_hand_gets_its_finalizer_before_its_machine() {
    let node = Node::default();
    assert_eq!(
        steps(&node, MachineState::Absent, &Pods::Unknown, 0),
        [NodeStep::AddFinalizer, NodeStep::CreateMachine]
    );
}

#[test]
fn a_ready_node_with_a_stale_lease_takes_no_pods() {
    let node = Node { kubelet: Kubelet::Ready, lease_renewed: Some(at(0)), ..new_node() };
    let stale = plan(&node, MachineState::Exists, &Pods::Unknown, 40);
    assert_eq!(stale.waits_for, Some(NodeWait::WaitingForLease));
    assert!(
        matches!(&stale.steps[..], [NodeStep::SetTaints(left)] if left.len() == 1 && left[0].effect == "NoSchedule")
    );
    let unseen = Node { lease_renewed: None, ..node.clone() };
    let unseen = plan(&unseen, MachineState::Exists, &Pods::Unknown, 40);
    assert_eq!(
        (unseen.steps, unseen.waits_for),
        (vec![], Some(NodeWait::WaitingForLease)),
        "both taints leave in one write"
    );
    let fresh = plan(&node, MachineState::Exists, &Pods::Unknown, 39);
    assert_eq!(fresh, NodePlan { steps: vec![NodeStep::SetTaints(vec![])], ..NodePlan::default() });
}

#[test]
fn the_machine_goes_at_the_later_of_drain_and_timeout() {
    let node = leaving(true);
    assert_eq!(steps(&node, MachineState::Exists, &left(2), 500), [NodeStep::Evict(ids(2))]);
    let early = plan(&node, MachineState::Exists, &left(0), 110);
    assert_eq!(early.waits_for, Some(NodeWait::WaitingForDeletionTimeout { left: Duration::from_secs(20) }));
    assert_eq!(steps(&node, MachineState::Exists, &left(0), 130), [NodeStep::DeleteMachine]);
}

#[test]
fn a_clock_that_went_back_does_not_prolong_the_timeout() {
    let plan = plan(&leaving(true), MachineState::Exists, &left(0), 0);
    assert_eq!(plan.waits_for, Some(NodeWait::WaitingForDeletionTimeout { left: TIMEOUT }));
}

#[test]
fn a_drain_begins_in_its_turn_and_goes_on_without_one() {
    let waiting = Node { drain_permit: false, ..leaving(false) };
    let plan = plan(&waiting, MachineState::Exists, &Pods::Unknown, 100);
    assert_eq!((&plan.steps[..], plan.waits_for), (&[][..], Some(NodeWait::WaitingForBudget)));
    assert_eq!(
        steps(&leaving(false), MachineState::Exists, &Pods::Unknown, 100),
        [NodeStep::Cordon { at: at(100) }]
    );
    let begun = Node { drain_permit: false, ..leaving(true) };
    assert_eq!(steps(&begun, MachineState::Exists, &left(1), 100), [NodeStep::Evict(ids(1))]);
    assert_eq!(steps(&waiting, MachineState::Absent, &left(0), 100), [NodeStep::RemoveFinalizer]);
}

#[test]
fn a_blocked_drain_says_so() {
    let Pods::Known { mut drain, attached } = left(2) else { unreachable!() };
    let pod = ids(1).remove(0);
    drain.blocked = vec![Blockage { obstacle: Obstacle::PodOptedOut, pod, message: String::new() }];
    let plan = plan(&leaving(true), MachineState::Exists, &Pods::Known { drain, attached }, 500);
    assert_eq!(plan.waits_for.unwrap().reason(), "PodOptedOut");
}

#[test]
fn the_machine_waits_for_its_volumes() {
    let Pods::Known { drain, .. } = left(0) else { unreachable!() };
    let attached = Pods::Known { drain, attached: Attached::Volumes(vec!["data".to_owned()]) };
    let plan = plan(&leaving(true), MachineState::Exists, &attached, 500);
    assert_eq!(plan.steps, []);
    assert_eq!(plan.waits_for, Some(NodeWait::VolumesAttached { names: vec!["data".to_owned()] }));
    let later = Duration::from_millis(700);
    for (machine, node) in [(MachineState::Exists, leaving(true)), (MachineState::Absent, out_of_service())] {
        let Pods::Known { drain, .. } = left(0) else { unreachable!() };
        let unknown = Pods::Known { drain, attached: Attached::AskAgain(later) };
        let plan = decide(&node, machine, &unknown, TIMEOUT, at(200));
        assert_eq!(
            (plan.steps, plan.requeue_after),
            (vec![], Some(later)),
            "nothing is known of its volumes"
        );
    }
}

fn out_of_service() -> Node {
    Node { taints: taints::with_out_of_service(&[], at(150)), ..leaving(true) }
}

#[test]
fn a_node_that_pods_were_let_in_to_waits_for_no_lease() {
    for lease_renewed in [None, Some(at(0)), Some(at(199))] {
        let node = Node { kubelet: Kubelet::Ready, finalizer: true, lease_renewed, ..Node::default() };
        assert_eq!(
            plan(&node, MachineState::Exists, &Pods::Unknown, 200),
            NodePlan::default(),
            "{lease_renewed:?}"
        );
    }
    let hanging = Node { kubelet: Kubelet::NotReady, finalizer: true, ..Node::default() };
    assert_eq!(
        plan(&hanging, MachineState::Exists, &Pods::Unknown, 200).waits_for,
        Some(NodeWait::WaitingForReady)
    );
}

#[test]
fn a_machine_that_ends_again_and_again_is_not_made_at_once() {
    let left = Duration::from_secs(7);
    let node = Node { back_off: Some(left), ..new_node() };
    for machine in [MachineState::Absent, MachineState::Dead] {
        let plan = plan(&node, machine, &Pods::Unknown, 200);
        assert_eq!(
            (plan.steps, plan.waits_for, plan.requeue_after),
            (vec![], Some(NodeWait::MachineBackOff), Some(left))
        );
    }
    let lives = plan(&node, MachineState::Exists, &Pods::Unknown, 200);
    assert_eq!(lives.waits_for, Some(NodeWait::WaitingForKubelet));
    let by_hand = Node { finalizer: false, ..node };
    assert_eq!(steps(&by_hand, MachineState::Absent, &Pods::Unknown, 200), [NodeStep::AddFinalizer]);
}

#[test]
fn a_deleted_node_without_a_machine_and_pods_goes_at_once() {
    assert_eq!(steps(&leaving(false), MachineState::Absent, &left(0), 100), [NodeStep::RemoveFinalizer]);
}

#[test]
fn a_node_that_takes_pods_is_closed_to_them_before_it_goes() {
    let mut node = Node { kubelet: Kubelet::Ready, ..leaving(false) };
    let marked = steps(&node, MachineState::Absent, &left(0), 200);
    let [NodeStep::SetOutOfService(taints)] = &marked[..] else { panic!("{marked:?}") };
    node.taints.clone_from(taints);
    assert_eq!(steps(&node, MachineState::Absent, &left(0), 210), [NodeStep::RemoveFinalizer]);
}

#[test]
fn pods_of_a_machine_that_is_gone_are_cleaned_up_first() {
    let mut node = leaving(true);
    let marked = steps(&node, MachineState::Absent, &left(1), 200);
    let [NodeStep::SetOutOfService(taints)] = &marked[..] else { panic!("{marked:?}") };
    assert_eq!(taints::out_of_service_since(taints), Some(at(200)));
    node.taints.clone_from(taints);
    let waiting = plan(&node, MachineState::Absent, &left(1), 210);
    assert_eq!(waiting.steps, [NodeStep::DeletePods(ids(1))]);
    assert_eq!(waiting.waits_for.unwrap().reason(), "WaitingForPodsCleanup");
    assert_eq!(steps(&node, MachineState::Absent, &left(0), 220), [NodeStep::RemoveFinalizer]);
    assert_eq!(
        steps(&node, MachineState::Absent, &left(1), 380),
        [NodeStep::RemoveFinalizer],
        "not for ever"
    );
}

fn nodes() -> impl Strategy<Value = Node> {
    (
        prop::option::of(0_i64..200),
        any::<[bool; 3]>(),
        0_usize..3,
        prop::option::of(0_i64..200),
        prop::option::of(0_i64..200),
    )
        .prop_map(|(deleted, [finalizer, cordoned, drain_permit], kubelet, lease, marked)| Node {
            deleted_at: deleted.map(at),
            finalizer,
            cordoned,
            drain_permit,
            volatile: false,
            back_off: None,
            taints: match marked {
                None => taints::at_birth(),
                Some(second) => taints::with_out_of_service(&taints::at_birth(), at(second)),
            },
            kubelet: [Kubelet::Silent, Kubelet::NotReady, Kubelet::Ready][kubelet],
            lease_renewed: lease.map(at),
        })
}

fn machines() -> impl Strategy<Value = MachineState> {
    prop_oneof![Just(MachineState::Absent), Just(MachineState::Exists), Just(MachineState::Leaving)]
}

fn pods() -> impl Strategy<Value = Pods> {
    let known =
        (0_usize..3, 0_usize..3, any::<bool>(), 0_usize..2).prop_map(|(count, lost, given_up, volumes)| {
            let Pods::Known { mut drain, .. } = left(count) else { unreachable!() };
            drain.bound = ids(count + lost);
            drain.given_up = given_up;
            let volumes = vec!["volume".to_owned(); if drain.awaits_volumes { volumes } else { 0 }];
            Pods::Known { drain, attached: Attached::Volumes(volumes) }
        });
    prop_oneof![Just(Pods::Unknown), known]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    /// Invariants in every state:
    ///
    /// - A machine is created only for a Node that is not deleted.
    /// - A machine is deleted only with its Node, after the deletion timeout, and with no pods or volumes
    ///   left to wait for.
    /// - A Node goes only after its machine; its pods go first or have had their cleanup time.
    /// - A Node gets the out-of-service taint only when its machine is absent.
    /// - A drain starts only with a drain permit.
    #[test]
    fn nothing_happens_out_of_order(node in nodes(), machine in machines(), pods in pods(), now in 0_i64..400) {
        let plan = plan(&node, machine, &pods, now);
        let has = |step: &NodeStep| plan.steps.contains(step);
        let marks = plan.steps.iter().any(|s| matches!(s, NodeStep::SetOutOfService(_) | NodeStep::DeletePods(_)));
        let drains = plan.steps.iter().any(|s| matches!(s, NodeStep::Evict(_) | NodeStep::Force(_)));
        prop_assert!(!has(&NodeStep::CreateMachine) || (node.deleted_at.is_none() && machine == MachineState::Absent));
        prop_assert!(!marks || (node.deleted_at.is_some() && machine == MachineState::Absent));
        prop_assert!(!drains || (node.deleted_at.is_some() && machine == MachineState::Exists && node.cordoned));
        if has(&NodeStep::RemoveFinalizer) {
            prop_assert!(node.deleted_at.is_some() && machine == MachineState::Absent);
            let Pods::Known { drain, .. } = &pods else { panic!("goes with pods unknown") };
            let marked = taints::out_of_service_since(&node.taints);
            let waited = marked.is_some_and(|since| kube_node_api::time::left(since, CLEANUP_LIMIT, at(now)).is_zero());
            prop_assert!(drain.bound.is_empty() && !node.takes_pods() || waited);
        }
        if has(&NodeStep::DeleteMachine) {
            let deleted_at = node.deleted_at.expect("a Node that leaves");
            let Pods::Known { drain, attached } = &pods else { panic!("goes with pods unknown") };
            prop_assert!(node.cordoned && drain.is_done() && *attached == Attached::default());
            prop_assert!(at(now).duration_since(deleted_at) >= TIMEOUT.try_into().expect("small"));
        }
        if has(&NodeStep::Cordon { at: at(now) }) {
            prop_assert!(node.drain_permit && node.deleted_at.is_some());
        }
    }

    /// A wait that no watch event ends has a requeue time; a Node without work and without a wait is not requeued.
    #[test]
    fn nobody_is_forgotten(node in nodes(), machine in machines(), pods in pods(), now in 0_i64..400) {
        let plan = plan(&node, machine, &pods, now);
        if node.deleted_at.is_some() && machine != MachineState::Absent {
            prop_assert!(plan.requeue_after.is_some());
        }
        if node.deleted_at.is_some() && node.finalizer && machine == MachineState::Absent {
            prop_assert!(plan.requeue_after.is_some() || plan.steps == [NodeStep::RemoveFinalizer]);
        }
        if plan.steps.is_empty() && plan.waits_for.is_none() && node.cordoned && pods != Pods::Unknown {
            prop_assert!(plan.requeue_after.is_none());
        }
    }
}

#[test]
fn a_machine_that_a_restart_took_comes_back_until_its_pods_have_left() {
    let lost = Node { volatile: true, kubelet: Kubelet::Ready, ..leaving(true) };
    assert_eq!(steps(&lost, MachineState::Absent, &left(1), 110), [NodeStep::CreateMachine]);
    assert_eq!(steps(&lost, MachineState::Absent, &left(0), 110), [NodeStep::RemoveFinalizer]);
    let waiting = Node { drain_permit: false, ..Node { cordoned: false, ..lost.clone() } };
    assert_eq!(steps(&waiting, MachineState::Absent, &left(0), 110), [NodeStep::CreateMachine]);
    let permitted = Node { drain_permit: true, ..waiting.clone() };
    assert_eq!(steps(&permitted, MachineState::Absent, &left(0), 110), [NodeStep::CreateMachine]);
    let gone = Node { volatile: false, ..waiting };
    assert_eq!(steps(&gone, MachineState::Absent, &Pods::Unknown, 110), [], "no cordon without a permit");
    let elsewhere = Node { volatile: false, ..lost };
    assert!(matches!(
        steps(&elsewhere, MachineState::Absent, &left(1), 110)[..],
        [NodeStep::SetOutOfService(_)]
    ));
}

#[test]
fn a_dead_machine_makes_way_for_another_and_holds_nobody_up() {
    let working = Node { finalizer: true, kubelet: Kubelet::Ready, ..Node::default() };
    let plan = decide(&working, MachineState::Dead, &Pods::Unknown, Duration::ZERO, at(200));
    assert_eq!(plan.steps, [NodeStep::DeleteMachine]);
    assert_eq!(plan.waits_for, Some(NodeWait::WaitingForMachine));
    let plan = decide(&leaving(false), MachineState::Dead, &Pods::Unknown, Duration::ZERO, at(200));
    assert_eq!(plan.steps, [NodeStep::DeleteMachine], "nothing runs on it that could be drained");
    assert_eq!(plan.waits_for, Some(NodeWait::DeletingMachine));
}
