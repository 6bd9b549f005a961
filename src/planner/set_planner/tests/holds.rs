//! Repair, and what keeps Nodes from being created or replaced.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_node_api::RolloutStatus;

use super::*;

/// A rollout with one new Node that made no progress and was halted.
fn halted() -> RolloutStatus {
    RolloutStatus {
        revision: "new".to_owned(),
        start_time: Time(at(0)),
        waiting_time: None,
        progress_time: Time(at(0)),
        available: 1,
        outdated: 10,
        halt_time: Some(Time(at(700))),
    }
}

#[test]
fn a_failed_start_in_the_future_delays_new_nodes_as_long_as_one_of_now() {
    let failures =
        |second| StartFailures { revision: "new".to_owned(), count: 1, last_time: Time(at(second)) };
    let ahead = failures(NOW + 1_000_000);
    let waiting = plan(&DesiredState { start_failures: Some(&ahead), ..wanted(1) }, &[]);
    // The status records it, so that the back-off ends.
    assert_eq!((waiting.create, waiting.start_failures), (0, Some(failures(NOW))));
    let over = failures(NOW - 10);
    assert_eq!(plan(&DesiredState { start_failures: Some(&over), ..wanted(1) }, &[]).create, 1);
}

#[test]
fn the_sick_are_replaced_one_surge_at_a_time() {
    let mut members = nodes(10, "new");
    members[3] = silent("n003", "new");
    let first = plan(&nursing(10), &members);
    assert_eq!((first.create, deleted(&first)), (1, vec![]));
    members.push(node("x", "new"));
    let second = plan(&nursing(10), &members);
    assert_eq!((second.create, deleted(&second)), (0, vec!["n003"]));
    assert_eq!(second.delete[0].cause, Some(DisruptionReason::Unhealthy));
}

#[test]
fn too_many_sick_nodes_are_not_replaced_at_all() {
    let members: Vec<_> = names(10).into_iter().map(|name| silent(name, "new")).collect();
    let plan = plan(&DesiredState { max_unhealthy: 4, ..nursing(10) }, &members);
    assert_eq!((plan.create, plan.delete.len()), (0, 0));
    assert!(waits_for(&plan, "TooManySick", 10, "more than maxUnhealthy (4)"));
}

#[test]
fn repairs_are_limited() {
    let mut members: Vec<_> = names(10).into_iter().map(|name| silent(name, "new")).collect();
    members.extend(["x", "y"].map(|name| node(name, "new")));
    let budget = Budget { surge: 10, unavailable: 0 };
    let plan = plan(&DesiredState { max_repairs: 2, budget, ..nursing(10) }, &members);
    assert_eq!(plan.delete.len(), 2);
    assert!(waits_for(&plan, "RepairLimit", 8, "at most 2 may be at once"));
}

/// A Node that reports Ready and has another condition that its set counts as unhealthy.
fn deadlocked(name: &'static str) -> NodeState<'static> {
    let condition = ObservedCondition { r#type: "KernelDeadlock", status: "True", since: Some(at(0)) };
    NodeState { conditions: vec![condition], ..node(name, "new") }
}

/// A set that repairs Nodes with a kernel deadlock.
fn watching_kernels(replicas: usize) -> DesiredState<'static> {
    let deadlock = UnhealthyCondition {
        r#type: "KernelDeadlock".to_owned(),
        status: "True".to_owned(),
        r#for: GoDuration(Duration::from_mins(1)),
    };
    let mut wanted = wanted(replicas);
    wanted.rules.unhealthy_conditions = Box::leak(Box::new([deadlock]));
    wanted
}

#[test]
fn a_repair_of_a_ready_node_is_in_flight_until_the_node_is_gone() {
    let leaving = |stage| NodeState { stage, ..deadlocked("leaving") };
    let budget = Budget { surge: 10, unavailable: 3 };
    let wanted = DesiredState { max_repairs: 1, budget, ..watching_kernels(3) };
    for stage in [DeletionStage::PendingDrain, DeletionStage::Draining] {
        let members = join(&[nodes(2, "new"), vec![deadlocked("next"), leaving(stage)]]);
        let plan = plan(&wanted, &members);
        assert!(plan.delete.is_empty(), "{stage:?}");
        assert!(waits_for(&plan, "RepairLimit", 1, "at most 1 may be at once"));
    }
    let members = join(&[nodes(3, "new"), vec![deadlocked("next")]]);
    assert_eq!(deleted(&plan(&wanted, &members)), ["next"]);
}

#[test]
fn unhealthy_nodes_that_leave_count_for_max_unhealthy() {
    let leaving = |name| NodeState { stage: DeletionStage::Draining, ..silent(name, "new") };
    let budget = Budget { surge: 0, unavailable: 10 };
    let wanted = DesiredState { max_unhealthy: 2, budget, ..nursing(10) };
    let members = join(&[nodes(7, "new"), vec![silent("x", "new"), leaving("y"), leaving("z")]]);
    let held = plan(&wanted, &members);
    assert!(held.delete.is_empty());
    assert!(waits_for(&held, "TooManySick", 3, "more than maxUnhealthy (2)"));
    let members = join(&[nodes(8, "new"), vec![leaving("x"), leaving("y"), leaving("z")]]);
    assert!(
        !plan(&wanted, &members).waits.iter().any(|wait| wait.reason == "TooManySick"),
        "none is left to repair"
    );
}

#[test]
fn outdated_nodes_expire_where_no_rollout_replaces_them() {
    let mut wanted = wanted(10);
    wanted.rules.expire_after = Some(Duration::from_secs(1_000));
    let mut members: Vec<_> =
        nodes(10, "old").into_iter().map(|node| NodeState { created: at(NOW - 10), ..node }).collect();
    members[3].created = at(0);
    let with = |pace| DesiredState { pace, ..wanted.clone() };
    for pace in [RolloutMode::OnDelete, RolloutMode::Rolling { keep: 10 }] {
        let first = plan(&with(pace), &members);
        let of_old = usize::from(pace != RolloutMode::OnDelete);
        assert_eq!((first.create, first.create_current, first.delete.len()), (1, of_old, 0), "{pace:?}");
        let second = plan(&with(pace), &join(&[members.clone(), vec![node_of_now("x")]]));
        assert_eq!(deleted(&second), ["n003"], "{pace:?}");
        assert_eq!(second.delete[0].cause, Some(DisruptionReason::Expired));
    }
    assert_eq!(plan(&with(RolloutMode::Held), &members).create, 0, "a held set keeps expired Nodes");
}

fn node_of_now(name: &'static str) -> NodeState<'static> {
    NodeState { created: at(NOW), ..node(name, "new") }
}

#[test]
fn a_paused_set_scales_and_repairs_with_the_revision_that_works() {
    let paused = DesiredState { pace: RolloutMode::Held, ..nursing(12) };
    let mut members = nodes(10, "old");
    let grown = plan(&paused, &members);
    assert_eq!((grown.create, grown.create_current, grown.delete.len()), (2, 2, 0));
    members[0] = silent("n000", "old");
    let repaired = plan(&DesiredState { replicas: 10, ..paused }, &members);
    assert_eq!((repaired.create, repaired.create_current), (1, 1));
    assert!(waits_for(&repaired, "Paused", 9, ""));
}

#[test]
fn a_rollout_that_has_halted_is_held() {
    let halted = RolloutStatus { available: 0, ..halted() };
    let clock = ProgressDeadline { old: Some(&halted), deadline: Duration::from_mins(10), resumed_at: None };
    let plan = plan(&DesiredState { clock, ..wanted(10) }, &nodes(10, "old"));
    assert_eq!(plan.create, 0);
    assert!(waits_for(&plan, "ProgressDeadlineExceeded", 10, ""));
}

#[test]
fn a_rollout_that_is_held_keeps_its_new_nodes() {
    let held = DesiredState { pace: RolloutMode::Held, ..wanted(10) };
    let members = join(&[nodes(10, "old"), vec![starting("x", "new")]]);
    assert!(plan(&held, &members).delete.is_empty());
    assert_eq!(deleted(&plan(&DesiredState { replicas: 9, ..held }, &members)), ["x"]);
}

#[test]
fn a_partition_keeps_its_nodes_and_replaces_them_in_kind() {
    let canary = DesiredState { pace: RolloutMode::Rolling { keep: 8 }, ..wanted(10) };
    let members = join(&[nodes(9, "old"), vec![node("x", "new"), node("y", "new")]]);
    assert_eq!(plan(&canary, &members).delete.len(), 1);
    let done = join(&[nodes(8, "old"), vec![node("x", "new"), node("y", "new")]]);
    let waits = plan(&canary, &done);
    assert_eq!((waits.create, waits.delete.len()), (0, 0));
    let lost = plan(&canary, &join(&[nodes(7, "old"), vec![node("x", "new"), node("y", "new")]]));
    assert_eq!((lost.create, lost.create_current), (1, 1));
}

#[test]
fn on_delete_replaces_what_somebody_deletes() {
    let on_delete = DesiredState { pace: RolloutMode::OnDelete, ..wanted(10) };
    let idle = plan(&on_delete, &nodes(10, "old"));
    assert_eq!((idle.create, idle.delete.len(), idle.rollout.clone()), (0, 0, None));
    let one = plan(&on_delete, &nodes(9, "old"));
    assert_eq!((one.create, one.create_current), (1, 0));
}

#[test]
fn nodes_that_did_not_start_are_made_again_after_a_while() {
    let mut wanted = wanted(10);
    wanted.rules.startup_timeout = Some(Duration::from_mins(1));
    let late = NodeState { created: at(0), ..starting("x", "new") };
    let given_up = plan(&wanted, &join(&[nodes(10, "new"), vec![late]]));
    assert_eq!(given_up.delete[0].cause, Some(DisruptionReason::FailedToStart));
    assert_eq!(given_up.start_failures, None, "a deletion that is only planned may not come about");
    let failures = rollout::account(given_up.start_failures, Some("new"), at(NOW)).unwrap();
    wanted.start_failures = Some(&failures);
    let waits = plan(&wanted, &nodes(9, "new"));
    assert_eq!(waits.create, 0);
    assert!(waits_for(&waits, "BackOff", 1, ""));
    assert_eq!(decide(&wanted, &nodes(9, "new"), 0, at(NOW + 10)).create, 1);
}

#[test]
fn a_new_node_whose_kubelet_restarts_after_a_long_drain_halts_no_rollout() {
    let begun = RolloutStatus { halt_time: None, ..halted() };
    let clock = ProgressDeadline { old: Some(&begun), deadline: Duration::from_mins(10), resumed_at: None };
    let restarting = |initialized| NodeState {
        ready_since: None,
        unready_since: Some(at(NOW - 5)),
        initialized,
        ..node("x", "new")
    };
    let rolling = DesiredState { clock, ..wanted(10) };
    let waiting = plan(&rolling, &join(&[nodes(10, "old"), vec![restarting(true)]]));
    let rollout = waiting.rollout.unwrap();
    assert_eq!((rollout.halt_time, rollout.waiting_time.clone()), (None, Some(Time(at(NOW)))));
    assert_eq!(waiting.requeue_after, Some(Duration::from_mins(10)));
    // Ten minutes later.
    let late = RolloutStatus { waiting_time: Some(Time(at(NOW - 600))), ..begun.clone() };
    let clock = ProgressDeadline { old: Some(&late), ..rolling.clock.clone() };
    let unready = |ready: NodeState<'static>| {
        let plan = plan(
            &DesiredState { clock: clock.clone(), ..rolling.clone() },
            &join(&[nodes(10, "old"), vec![ready]]),
        );
        plan.rollout.unwrap().halt_time
    };
    assert_eq!(unready(restarting(true)), None, "it was Ready until a moment ago");
    assert_eq!(
        unready(NodeState { unready_since: Some(at(NOW - 600)), ..restarting(true) }),
        Some(Time(at(NOW)))
    );
    assert_eq!(unready(restarting(false)), Some(Time(at(NOW))), "it has never started");
}

#[test]
fn a_class_that_cannot_be_used_for_a_moment_leaves_a_rollout_where_it_stood() {
    let halted = halted();
    let begun = RolloutStatus { halt_time: None, ..halted.clone() };
    let members = join(&[nodes(10, "old"), vec![starting("x", "new")]]);
    for old in [&begun, &halted] {
        let clock = ProgressDeadline { old: Some(old), deadline: Duration::from_mins(10), resumed_at: None };
        let rules = DisruptionRules { revision: None, ..DisruptionRules::default() };
        let unusable = plan(&DesiredState { clock: clock.clone(), rules, ..wanted(10) }, &members);
        assert_eq!(unusable.rollout.as_ref(), Some(old));
        assert!(unusable.delete.is_empty(), "its surge stays");
        let on_delete = plan(&DesiredState { clock, pace: RolloutMode::OnDelete, ..wanted(10) }, &members);
        assert_eq!(
            on_delete.rollout.as_ref(),
            Some(old),
            "a switch of the strategy and back forgets nothing"
        );
    }
}

#[test]
fn a_set_whose_revision_is_not_known_for_a_moment_keeps_what_may_be_a_surge() {
    let rules = || DisruptionRules { revision: None, ..DisruptionRules::default() };
    let unanswered =
        |replicas| DesiredState { rules: rules(), revision_unanswered: true, ..wanted(replicas) };
    let members = join(&[nodes(10, "old"), vec![node("x", "new")]]);
    assert!(plan(&unanswered(10), &members).delete.is_empty());
    assert_eq!(plan(&unanswered(4), &members).delete.len(), 6, "no more than a surge");
    // A class that cannot be used stays so: a scale-down does not wait for it.
    assert_eq!(plan(&DesiredState { rules: rules(), ..wanted(10) }, &members).delete.len(), 1);
}

#[test]
fn a_rollout_that_waits_for_a_node_that_cannot_be_deleted_does_not_move() {
    let refused = || NodeState { deletion_refused: true, ..node("x", "old") };
    let last = join(&[nodes(9, "new"), vec![refused()]]);
    assert!(!plan(&wanted(10), &last).moves);
    let ends = NodeState { stage: DeletionStage::PendingDrain, ..refused() };
    assert!(
        !plan(&wanted(9), &join(&[nodes(9, "new"), vec![ends]])).moves,
        "nor does one whose drain is refused"
    );
    // The refused victim takes the only surge.
    let victim = NodeState { victim: true, ..refused() };
    assert!(!plan(&wanted(9), &join(&[nodes(9, "old"), vec![victim.clone()]])).moves);
    let waits = NodeState { stage: DeletionStage::PendingDrain, ..node("y", "old") };
    assert!(
        !plan(&wanted(9), &join(&[nodes(8, "old"), vec![waits.clone(), victim]])).moves,
        "nor one that waits for the budget"
    );
    assert!(plan(&wanted(8), &join(&[nodes(8, "old"), vec![waits]])).moves, "it goes");
    for more in [node("y", "old"), starting("y", "new")] {
        assert!(plan(&wanted(11), &join(&[last.clone(), vec![more]])).moves);
    }
    assert!(!plan(&wanted(9), &nodes(9, "new")).moves);
    assert!(decide(&wanted(9), &nodes(9, "new"), 1, at(NOW)).moves, "a Node that the watch has not shown");
}

#[test]
fn others_go_in_the_place_of_a_node_whose_deletion_is_refused() {
    let refused = |name, revision| NodeState { deletion_refused: true, ..node(name, revision) };
    let others = || nodes(9, "new");
    let smaller = plan(&wanted(9), &join(&[vec![refused("a", "new")], others()]));
    assert_eq!(deleted(&smaller), ["n000"]);
    let named = NodeState { victim: true, ..refused("a", "new") };
    assert!(
        deleted(&plan(&wanted(10), &join(&[vec![named.clone()], others()]))).is_empty(),
        "until its retry"
    );
    // A named victim goes at its retry without regard to the budget, so a rollout does not count on it.
    let mut members = join(&[vec![named], nodes(10, "old")]);
    assert!(deleted(&plan(&wanted(10), &members)).is_empty());
    members.push(node("x", "new"));
    assert_eq!(deleted(&plan(&wanted(10), &members)), ["n000"]);
    // The rollout continues with the other Nodes, and the surge is theirs.
    let members = join(&[vec![refused("a", "old")], nodes(9, "old"), vec![node("x", "new")]]);
    assert_eq!(deleted(&plan(&wanted(10), &members)), ["n000"]);
    let members = join(&[vec![refused("a", "old")], nodes(8, "old"), vec![node("x", "new")]]);
    assert_eq!(plan(&wanted(10), &members).create, 1);
    let members = join(&[vec![refused("a", "old")], others()]);
    let done = plan(&wanted(10), &members);
    assert_eq!((done.create, done.delete.len(), done.rollout.is_some()), (0, 0, true));
    // A leaving Node whose drain is refused counts as the surge of the others until none of them is left.
    let stuck = NodeState { stage: DeletionStage::PendingDrain, ..refused("a", "old") };
    let members = join(&[vec![stuck.clone()], nodes(9, "old"), vec![node("x", "new")]]);
    let going_on = plan(&wanted(10), &members);
    assert_eq!((deleted(&going_on), going_on.drain_permits), (vec!["n000"], vec![]));
    let last = plan(&wanted(10), &join(&[vec![stuck], nodes(10, "new")]));
    assert_eq!((last.create, last.drain_permits), (0, vec!["a"]));
    // An unhealthy Node is replaced by an additional machine, within the surge.
    let unhealthy = NodeState { deletion_refused: true, ..silent("a", "new") };
    assert_eq!(plan(&nursing(10), &join(&[vec![unhealthy], others()])).create, 1);
}

#[test]
fn a_node_stays_while_its_machine_finalizer_is_missing() {
    let unprotected = |name, revision| NodeState { unprotected: true, ..node(name, revision) };
    let others = || nodes(9, "new");
    let smaller = plan(&wanted(9), &join(&[vec![unprotected("a", "new")], others()]));
    assert_eq!(deleted(&smaller), ["n000"], "another one goes in its place");
    assert!(!waits_for(&smaller, "FinalizerMissing", 1, ""), "it is not to go any more");
    let last = join(&[vec![unprotected("a", "old")], others()]);
    for (none, members) in [(wanted(0), vec![unprotected("a", "new")]), (wanted(10), last)] {
        let plan = plan(&none, &members);
        assert_eq!((deleted(&plan), plan.retry_deletions.len()), (vec![], 0));
        assert!(waits_for(&plan, "FinalizerMissing", 1, "1 node is deleted once"), "{:?}", plan.waits);
    }
    let named = NodeState { victim: true, ..unprotected("a", "new") };
    let plan = plan(&wanted(9), &join(&[vec![named], others()]));
    assert!(deleted(&plan).is_empty(), "a named victim goes itself, with its finalizer");
    assert!(waits_for(&plan, "FinalizerMissing", 1, "kube-node.io/machine"));
}

#[test]
fn a_class_has_no_more_nodes_than_its_limit() {
    let class_room = |left| Some(ClassRoom { left, limit: 12 });
    let some = plan(&DesiredState { class_room: class_room(2), ..wanted(15) }, &nodes(10, "new"));
    assert_eq!(some.create, 2);
    assert!(waits_for(&some, "ClassLimit", 3, "12 nodes at most"));
    let surge = plan(&DesiredState { class_room: class_room(0), ..wanted(12) }, &nodes(12, "old"));
    assert_eq!((surge.create, surge.delete.len()), (0, 0));
    assert!(waits_for(&surge, "ClassLimit", 1, "12 nodes at most"));
    let enough = plan(&DesiredState { class_room: class_room(5), ..wanted(15) }, &nodes(10, "new"));
    assert!(!enough.waits.iter().any(|wait| wait.reason == "ClassLimit"));
}

#[test]
fn after_a_refused_creation_one_node_is_tried_at_a_time() {
    let retry_in = Duration::from_secs(8);
    let newest = |creation| CreationLimits { creation, ..CreationLimits::default() };
    let refused = plan(&DesiredState { newest: newest(Creation::Refused { retry_in }), ..wanted(100) }, &[]);
    assert_eq!((refused.create, refused.missing, refused.requeue_after), (0, 100, Some(retry_in)));
    let probed = plan(&DesiredState { newest: newest(Creation::Probed), ..wanted(100) }, &[]);
    assert_eq!((probed.create, probed.more), (1, false));
}

/// A held set whose Nodes have the revision `old`, and the limits for more of them.
fn held_on_old(limits: CreationLimits) -> DesiredState<'static> {
    let working = Some(WorkingRevision { revision: "old", limits });
    DesiredState { pace: RolloutMode::Held, working, ..wanted(10) }
}

#[test]
fn a_newest_revision_that_does_not_start_delays_no_node_of_the_working_one() {
    let class_back_off = Duration::from_mins(5);
    let newest = CreationLimits { class_back_off, ..CreationLimits::default() };
    let failures = rollout::account(None, Some("new"), at(NOW));
    let members = nodes(8, "old");
    let held =
        DesiredState { newest, start_failures: failures.as_ref(), ..held_on_old(CreationLimits::default()) };
    let made = plan(&held, &members);
    assert_eq!((made.create, made.create_current), (2, 2));
    assert_eq!(made.start_failures, failures, "they count once the set is resumed");
    // The Nodes of a partition are made, and those of the newest revision wait.
    let canary = DesiredState { pace: RolloutMode::Rolling { keep: 9 }, ..held.clone() };
    let made = plan(&canary, &members);
    assert_eq!((made.create, made.create_current), (1, 1));
    assert!(waits_for(&made, "BackOff", 1, ""));
    let rolling = DesiredState { pace: RolloutMode::Rolling { keep: 0 }, ..held };
    assert_eq!(plan(&rolling, &members).create, 0);
}

#[test]
fn a_working_revision_that_does_not_start_delays_its_own_nodes_alone() {
    let failures = rollout::account(None, Some("old"), at(NOW));
    let held = DesiredState { start_failures: failures.as_ref(), ..held_on_old(CreationLimits::default()) };
    let members = nodes(8, "old");
    let waits = plan(&held, &members);
    assert_eq!((waits.create, &waits.start_failures), (0, &failures));
    assert!(waits_for(&waits, "BackOff", 2, ""));
    let newer = NodeState { created: at(NOW + 1), ..node("x", "new") };
    let members = join(&[members, vec![newer]]);
    assert_eq!(plan(&held, &members).start_failures, failures, "a Node of another revision says nothing");
    let rolling = DesiredState { pace: RolloutMode::Rolling { keep: 0 }, ..held };
    assert_eq!(plan(&rolling, &nodes(8, "old")).create, 3);
}

#[test]
fn a_held_set_tries_one_node_of_the_working_revision_after_a_refusal() {
    let limits = |creation| CreationLimits { creation, ..CreationLimits::default() };
    let retry_in = Duration::from_secs(8);
    let refused = plan(&held_on_old(limits(Creation::Refused { retry_in })), &[]);
    assert_eq!((refused.create, refused.missing_current, refused.requeue_after), (0, 10, Some(retry_in)));
    let probed = plan(&held_on_old(limits(Creation::Probed)), &[]);
    assert_eq!((probed.create, probed.create_current, probed.more), (1, 1, false));
    // A refusal of the newest revision is none of the working one.
    let newest = DesiredState { newest: limits(Creation::Probed), ..held_on_old(CreationLimits::default()) };
    assert_eq!(plan(&newest, &[]).create, 10);
}
