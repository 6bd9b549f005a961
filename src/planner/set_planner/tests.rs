use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_node_api::{GoDuration, RolloutStatus, UnhealthyCondition};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    node_state::ObservedCondition,
    test_fixtures::{at, node, wanted},
};

const NOW: i64 = 10_000;

fn starting(name: &'static str, revision: &'static str) -> NodeState<'static> {
    NodeState {
        ready_since: None,
        started: false,
        has_kubelet: false,
        created: at(NOW),
        ..node(name, revision)
    }
}

/// An initialized Node whose kubelet has stopped reporting.
fn silent(name: &'static str, revision: &'static str) -> NodeState<'static> {
    let conditions = vec![ObservedCondition { r#type: "Ready", status: "Unknown", since: Some(at(0)) }];
    NodeState { ready_since: None, conditions, ..node(name, revision) }
}

fn names(count: usize) -> Vec<&'static str> {
    (0..count).map(|i| &*Box::leak(format!("n{i:03}").into_boxed_str())).collect()
}

fn nodes(count: usize, revision: &'static str) -> Vec<NodeState<'static>> {
    names(count).into_iter().map(|name| node(name, revision)).collect()
}

/// A set that treats Ready=Unknown for a minute as unhealthy.
fn nursing(replicas: usize) -> DesiredState<'static> {
    let unhealthy = UnhealthyCondition {
        r#type: "Ready".to_owned(),
        status: "Unknown".to_owned(),
        r#for: GoDuration(Duration::from_mins(1)),
    };
    let unhealthy_conditions: &'static [UnhealthyCondition] = Box::leak(Box::new([unhealthy]));
    let mut wanted = wanted(replicas);
    wanted.rules.unhealthy_conditions = unhealthy_conditions;
    wanted
}

fn plan(wanted: &DesiredState<'_>, members: &[NodeState<'static>]) -> SetPlan<'static> {
    let plan = decide(wanted, members, 0, at(NOW));
    assert_eq!(check(&plan, wanted, members, 0, at(NOW)), Ok(()));
    plan
}

/// The invariants of this module.
fn check(
    plan: &SetPlan<'_>,
    wanted: &DesiredState<'_>,
    members: &[NodeState<'_>],
    expected: usize,
    now: Timestamp,
) -> Result<(), String> {
    let most = wanted.replicas + wanted.budget.surge;
    if plan.create > 0 && members.len() + expected + plan.create > most {
        return Err(format!("{} more machines than {most} with {}", plan.create, members.len() + expected));
    }
    if let Some(class) = wanted.class_room.filter(|class| plan.create > class.left) {
        return Err(format!("{} more Nodes of a class that may have {} more", plan.create, class.left));
    }
    let available = |member: &NodeState<'_>| {
        member.available_in(wanted.min_ready, now).is_some_and(|left| left.is_zero())
    };
    let before = members.iter().filter(|member| available(member)).count();
    let mut names: Vec<&str> = plan.delete.iter().map(|deletion| deletion.name).collect();
    names.extend(&plan.drain_permits);
    names.sort_unstable();
    let distinct = names.len();
    names.dedup();
    if names.len() < distinct {
        return Err("a Node goes twice".to_owned());
    }
    let must_go = |m: &&NodeState<'_>| m.victim && m.stage == DeletionStage::Staying && !m.deletion_refused;
    for member in members.iter().filter(must_go) {
        if names.binary_search(&member.name).is_err() {
            return Err(format!("{} was named to go, and stays", member.name));
        }
    }
    let mut lost = 0;
    for member in members.iter().filter(|member| names.binary_search(&member.name).is_ok()) {
        let deleted = plan.delete.iter().any(|d| d.name == member.name);
        if deleted && member.stage != DeletionStage::Staying {
            return Err(format!("{} leaves already", member.name));
        }
        if deleted && member.deletion_refused {
            return Err(format!("the deletion of {} was refused a moment ago", member.name));
        }
        lost += usize::from(available(member) && !member.marked && !member.victim);
    }
    let drained = members
        .iter()
        .filter(|member| member.autoscaler_drains && member.stage == DeletionStage::Staying)
        .count();
    let replicas = wanted.replicas.saturating_sub(drained);
    let least = match wanted.replacement {
        ReplacementOrder::SurgeFirst => wanted.budget.floor(replicas),
        ReplacementOrder::DeleteFirst => replicas.saturating_sub(wanted.budget.unavailable.max(1)),
    };
    if lost > 0 && before - lost < least {
        return Err(format!("{lost} of {before} available Nodes go, and {least} have to be"));
    }
    Ok(())
}

fn waits_for(plan: &SetPlan<'_>, reason: &str, nodes: usize, message: &str) -> bool {
    plan.waits
        .iter()
        .any(|wait| wait.reason == reason && wait.nodes == nodes && wait.message.contains(message))
}

fn deleted(plan: &SetPlan<'static>) -> Vec<&'static str> {
    plan.delete.iter().map(|deletion| deletion.name).collect()
}

fn join(parts: &[Vec<NodeState<'static>>]) -> Vec<NodeState<'static>> {
    parts.concat()
}

#[test]
fn a_set_grows_in_batches() {
    let plan = plan(&wanted(1_200), &[]);
    assert_eq!((plan.create, plan.more), (500, true));
}

#[test]
fn victims_are_marked_then_unready_then_by_order() {
    let with =
        |name, marked, pods, created| NodeState { marked, pods, created: at(created), ..node(name, "new") };
    let members = [
        with("busy", true, 9, 1),
        NodeState { pods: 9, created: at(2), ..silent("unhealthy", "new") },
        with("idle", false, 0, 3),
        with("old", false, 1, 0),
    ];
    let victims = |order| deleted(&plan(&DesiredState { order, ..wanted(0) }, &members));
    assert_eq!(victims(ScaleDownOrder::LeastPods), ["busy", "unhealthy", "idle", "old"]);
    assert_eq!(victims(ScaleDownOrder::Newest), ["busy", "unhealthy", "idle", "old"]);
    assert_eq!(victims(ScaleDownOrder::Oldest), ["busy", "unhealthy", "old", "idle"]);
}

#[test]
fn a_scale_down_never_waits_for_the_budget() {
    assert_eq!(plan(&wanted(3), &nodes(50, "new")).delete.len(), 47);
}

#[test]
fn what_was_asked_for_is_given_up_before_what_works() {
    assert!(decide(&wanted(8), &nodes(8, "new"), 2, at(NOW)).delete.is_empty());
}

#[test]
fn a_rollout_goes_on_only_with_new_nodes_that_are_available() {
    let old = nodes(10, "old");
    let first = plan(&wanted(10), &old);
    assert_eq!((first.create, first.delete.len()), (1, 0));
    let waiting = plan(&wanted(10), &join(&[old.clone(), vec![starting("x", "new")]]));
    assert_eq!((waiting.create, waiting.delete.len()), (0, 0));
    assert!(waits_for(&waiting, "Budget", 10, "10 nodes are available and 10 have to be"));
    let ready = plan(&wanted(10), &join(&[old, vec![node("x", "new")]]));
    assert_eq!((ready.create, ready.delete.len()), (0, 1));
    assert_eq!(ready.delete[0].cause, Some(DisruptionReason::Outdated));
}

#[test]
fn a_rollout_takes_all_of_its_budget_at_once() {
    let budget = Budget { surge: 50, unavailable: 0 };
    assert_eq!(plan(&DesiredState { budget, ..wanted(200) }, &nodes(200, "old")).create, 50);
    let budget = Budget { surge: 0, unavailable: 50 };
    let plan = plan(&DesiredState { budget, ..wanted(200) }, &nodes(200, "old"));
    assert_eq!((plan.create, plan.delete.len()), (0, 50));
}

#[test]
fn min_ready_time_counts_for_the_budget() {
    let fresh = NodeState { ready_since: Some(at(NOW - 5)), ..node("x", "new") };
    let patient = DesiredState { min_ready: Duration::from_secs(10), ..wanted(10) };
    let plan = plan(&patient, &join(&[nodes(10, "old"), vec![fresh]]));
    assert_eq!((plan.delete.len(), plan.requeue_after), (0, Some(Duration::from_secs(5))));
}

#[test]
fn new_nodes_that_never_start_cost_no_old_one() {
    let mut members = nodes(10, "old");
    members[0] = silent("n000", "old");
    members.push(starting("x", "new"));
    let plan = plan(&wanted(10), &members);
    assert!(plan.delete.is_empty(), "{:?}", plan.delete);
}

#[test]
fn dead_old_nodes_do_not_stop_a_rollout() {
    let mut members: Vec<_> = names(10).into_iter().map(|name| silent(name, "old")).collect();
    members.push(node("x", "new"));
    let plan = plan(&wanted(10), &members);
    assert_eq!(plan.delete.len(), 1);
    assert_ne!(plan.delete[0].name, "x");
}

#[test]
fn a_new_revision_in_the_middle_takes_what_has_not_started_first() {
    let members = join(&[nodes(10, "old"), vec![starting("x", "between")]]);
    assert_eq!(deleted(&plan(&wanted(10), &members)), ["x"]);
}

#[test]
fn a_rollback_keeps_what_is_right_already() {
    let mut right = nodes(6, "new");
    let wrong = names(11).split_off(6).into_iter().map(|name| node(name, "old"));
    right.extend(wrong);
    let plan = plan(&wanted(10), &right);
    assert_eq!((plan.create, deleted(&plan)), (0, vec!["n006"]));
}

#[test]
fn a_victim_of_the_autoscaler_goes_although_it_is_of_the_new_revision() {
    let marked = NodeState { marked: true, ..node("x", "new") };
    let members = join(&[nodes(6, "old"), vec![marked, node("y", "new"), node("z", "new")]]);
    assert_eq!(deleted(&plan(&wanted(8), &members)), ["x"]);
}

#[test]
fn who_is_named_goes_and_nobody_else_for_it() {
    let named = |name| NodeState { victim: true, ..node(name, "new") };
    let marked = NodeState { marked: true, ..node("marked", "new") };
    // The watch shows one of two scale requests before the other's deletion: a mark alone is no scale request.
    let members = join(&[nodes(3, "new"), vec![marked, named("x")]]);
    assert_eq!(deleted(&plan(&wanted(4), &members)), ["x"]);
    // Replicas raised in the meantime: the victim goes all the same, and a new Node is created.
    let again = plan(&wanted(4), &join(&[nodes(3, "new"), vec![named("x")]]));
    assert_eq!((deleted(&again), again.create), (vec!["x"], 1));
    let old = NodeState { revision: "old", ..named("x") };
    assert_eq!(deleted(&plan(&wanted(3), &join(&[nodes(3, "old"), vec![old]]))), ["x"]);
}

#[test]
fn a_node_that_is_being_emptied_keeps_its_replica_and_nobody_counts_on_it() {
    let drained = NodeState { autoscaler_drains: true, marked: true, ..node("x", "old") };
    // The last outdated Node: the rollout creates no surge for it and waits for the scale request.
    let last = plan(&wanted(4), &join(&[nodes(3, "new"), vec![drained.clone()]]));
    assert_eq!((last.create, last.delete.len()), (0, 0));
    // The drained Node does not delay the rollout of the others and does not count as available.
    let members = join(&[nodes(3, "old"), vec![drained.clone()]]);
    assert_eq!((plan(&wanted(4), &members).create, plan(&wanted(4), &members).delete.len()), (1, 0));
    let with_new = join(&[members, vec![node("y", "new")]]);
    assert_eq!(plan(&wanted(4), &with_new).delete.len(), 1);
    // The drained Node is not deleted for the surge created before.
    let replaced = join(&[nodes(4, "new"), vec![drained.clone()]]);
    assert_eq!((plan(&wanted(4), &replaced).create, plan(&wanted(4), &replaced).delete.len()), (0, 0));
    let unhealthy = NodeState { autoscaler_drains: true, ..silent("x", "new") };
    assert!(plan(&nursing(3), &join(&[nodes(2, "new"), vec![unhealthy]])).delete.is_empty());
}

#[test]
fn a_node_deleted_by_hand_keeps_working_until_its_replacement_is_there() {
    let pending = NodeState { stage: DeletionStage::PendingDrain, ..node("x", "new") };
    let alone = join(&[nodes(9, "new"), vec![pending.clone()]]);
    let waits = plan(&wanted(10), &alone);
    assert_eq!((waits.create, waits.drain_permits.len()), (1, 0));
    assert!(waits_for(&waits, "Budget", 1, "10 nodes are available and 10 have to be"));
    let replaced = join(&[nodes(10, "new"), vec![pending.clone()]]);
    assert_eq!(plan(&wanted(10), &replaced).drain_permits, ["x"]);
    let first = DesiredState { replacement: ReplacementOrder::DeleteFirst, ..wanted(10) };
    let gone_first = plan(&first, &alone);
    assert_eq!((gone_first.create, gone_first.drain_permits), (0, vec!["x"]));
    let draining = NodeState { stage: DeletionStage::Draining, ..pending };
    assert_eq!(plan(&first, &join(&[nodes(9, "new"), vec![draining]])).create, 0);
    assert_eq!(plan(&first, &nodes(9, "new")).create, 1);
}

#[test]
fn hand_deletions_and_a_rollout_share_one_budget() {
    let pending = |name| NodeState { stage: DeletionStage::PendingDrain, ..node(name, "old") };
    let budget = Budget { surge: 0, unavailable: 2 };
    let members = join(&[nodes(7, "old"), vec![pending("x"), pending("y"), pending("z")]]);
    let plan = plan(&DesiredState { budget, ..wanted(10) }, &members);
    assert_eq!((plan.drain_permits.len(), plan.delete.len()), (2, 0));
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
    assert!(waits_for(&plan, "RepairLimit", 8, "2 repairs at most"));
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
    let halted = RolloutStatus {
        revision: "new".to_owned(),
        start_time: Time(at(0)),
        progress_time: Time(at(0)),
        available: 0,
        outdated: 10,
        halt_time: Some(Time(at(700))),
    };
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
    let failures = rollout::account(given_up.start_failures, 1, "new", at(NOW)).unwrap();
    wanted.start_failures = Some(&failures);
    let waits = plan(&wanted, &nodes(9, "new"));
    assert_eq!(waits.create, 0);
    assert!(waits_for(&waits, "BackOff", 1, ""));
    assert_eq!(decide(&wanted, &nodes(9, "new"), 0, at(NOW + 10)).create, 1);
}

#[test]
fn a_class_that_cannot_be_used_for_a_moment_leaves_a_rollout_where_it_stood() {
    let begun = RolloutStatus {
        revision: "new".to_owned(),
        start_time: Time(at(0)),
        progress_time: Time(at(0)),
        available: 1,
        outdated: 10,
        halt_time: None,
    };
    let halted = RolloutStatus { halt_time: Some(Time(at(700))), ..begun.clone() };
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
fn others_go_in_the_place_of_a_node_whose_deletion_is_refused() {
    let refused = |name, revision| NodeState { deletion_refused: true, ..node(name, revision) };
    let others = || nodes(9, "new");
    let smaller = plan(&wanted(9), &join(&[vec![refused("a", "new")], others()]));
    assert_eq!(deleted(&smaller), ["n000"]);
    let named = NodeState { victim: true, ..refused("a", "new") };
    assert!(deleted(&plan(&wanted(10), &join(&[vec![named], others()]))).is_empty(), "until its retry");
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
    let refused = plan(&DesiredState { creation: Creation::Refused { retry_in }, ..wanted(100) }, &[]);
    assert_eq!((refused.create, refused.missing, refused.requeue_after), (0, 100, Some(retry_in)));
    let probed = plan(&DesiredState { creation: Creation::Probed, ..wanted(100) }, &[]);
    assert_eq!((probed.create, probed.more), (1, false));
}

fn members() -> impl Strategy<Value = Vec<NodeState<'static>>> {
    let one = (0_usize..3, 0_usize..3, any::<[bool; 5]>(), prop::option::of(0..NOW), 0_usize..5, 0..NOW);
    vec(one, 0..40).prop_map(|rows| {
        let names = names(rows.len());
        let rows = rows.into_iter().zip(names);
        rows.map(
            |((stage, revision, [started, marked, skip, refused, named], ready, pods, created), name)| {
                NodeState {
                    stage: [DeletionStage::Staying, DeletionStage::PendingDrain, DeletionStage::Draining]
                        [stage],
                    ready_since: ready.map(at),
                    started,
                    marked,
                    skip_remediation: skip,
                    deletion_refused: refused && pods == 0,
                    victim: named && pods == 1,
                    pods,
                    created: at(created),
                    conditions: ready.map_or_else(|| silent(name, "").conditions, |_| Vec::new()),
                    ..node(name, ["new", "old", "older"][revision])
                }
            },
        )
        .collect()
    })
}

fn any_wanted() -> impl Strategy<Value = DesiredState<'static>> {
    let budget =
        (0_usize..6, 0_usize..6).prop_filter("of nothing", |(surge, unavailable)| surge + unavailable > 0);
    let room = prop::option::of(0_usize..10);
    let times = (room, 0_u64..60, prop::option::of(0_u64..20_000), prop::option::of(0_u64..20_000));
    (0_usize..50, budget, 0_usize..4, 0_usize..10, any::<bool>(), 0_usize..20, 1_usize..5, times).prop_map(
        |(
            replicas,
            (surge, unavailable),
            pace,
            keep,
            first,
            max_unhealthy,
            max_repairs,
            (room, min_ready, age, startup),
        )| {
            let mut wanted = nursing(replicas);
            wanted.budget = Budget { surge, unavailable };
            wanted.pace = [
                RolloutMode::Rolling { keep: 0 },
                RolloutMode::Rolling { keep },
                RolloutMode::OnDelete,
                RolloutMode::Held,
            ][pace];
            wanted.replacement =
                if first { ReplacementOrder::DeleteFirst } else { ReplacementOrder::SurgeFirst };
            wanted.class_room = room.map(|left| ClassRoom { left, limit: 50 });
            wanted.max_unhealthy = max_unhealthy;
            wanted.max_repairs = max_repairs;
            wanted.min_ready = Duration::from_secs(min_ready);
            wanted.rules.expire_after = age.map(Duration::from_secs);
            wanted.rules.startup_timeout = startup.map(Duration::from_secs);
            wanted
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    /// In any state: the budget holds, no Node goes twice, and the order of the Nodes does not matter.
    #[test]
    fn the_budget_holds(mut members in members(), wanted in any_wanted(), expected in 0_usize..5) {
        let plan = decide(&wanted, &members, expected, at(NOW));
        prop_assert_eq!(check(&plan, &wanted, &members, expected, at(NOW)), Ok(()));
        members.reverse();
        prop_assert_eq!(decide(&wanted, &members, expected, at(NOW)), plan);
    }

    /// A set with missing, surplus or outdated Nodes and no action always reports a wait.
    #[test]
    fn no_wait_is_silent(mut members in members(), wanted in any_wanted()) {
        // Refused writes are reported elsewhere.
        for member in &mut members {
            member.deletion_refused = false;
        }
        let plan = plan(&wanted, &members);
        let idle = plan.create == 0 && plan.delete.is_empty() && plan.drain_permits.is_empty();
        let unmet = plan.counts.available < wanted.replicas || plan.counts.staying > wanted.replicas
            || plan.counts.to_replace > 0 || plan.counts.leaving > 0;
        if idle && unmet {
            prop_assert!(!plan.waits.is_empty());
        }
    }
}
