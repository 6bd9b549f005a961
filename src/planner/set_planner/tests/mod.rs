//! Scaling and rollout, and the fixtures of all tests of the planner.

mod holds;
mod properties;

use kube_node_api::{GoDuration, UnhealthyCondition};

use super::*;
use crate::{
    node_state::ObservedCondition,
    test_fixtures::{at, node, wanted},
};

const NOW: i64 = 10_000;

fn starting(name: &'static str, revision: &'static str) -> NodeState<'static> {
    let node = node(name, revision);
    NodeState { ready_since: None, started: false, initialized: false, created: at(NOW), ..node }
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
    let must_go = |m: &&NodeState<'_>| m.victim && m.stage == DeletionStage::Staying && !m.is_undeletable();
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
        if deleted && member.unprotected {
            return Err(format!("{} would be gone at once, under its pods", member.name));
        }
        let by_scale_down = deleted && member.marked;
        lost += usize::from(available(member) && !by_scale_down && !member.victim);
    }
    let drained = members
        .iter()
        .filter(|member| member.autoscaler_drains && !member.victim && member.stage == DeletionStage::Staying)
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
fn no_node_of_a_node_group_goes_for_an_outdated_one_that_cannot_be_deleted() {
    let refused = NodeState { deletion_refused: true, ..node("x", "old") };
    let stuck = NodeState { deletion_refused: true, ..starting("x", "old") };
    let group = || DesiredState { is_node_group: true, ..wanted(3) };
    // It serves nobody, and another one is there in its place. Then it is available again.
    for outdated in [stuck, refused.clone()] {
        let members = join(&[nodes(3, "new"), vec![outdated]]);
        assert_eq!(deleted(&plan(&group(), &members)), [""; 0]);
    }
    let members = join(&[nodes(3, "new"), vec![refused]]);
    assert_eq!(deleted(&plan(&wanted(3), &members)).len(), 1, "a set that nobody counts shrinks");
    let members = join(&[members, vec![node("y", "new")]]);
    assert_eq!(deleted(&plan(&group(), &members)).len(), 1, "one above that goes");
}

#[test]
fn a_victim_whose_deletion_is_refused_is_no_replica_and_nobody_goes_in_its_place() {
    let drained = || NodeState { victim: true, autoscaler_drains: true, ..node("x", "new") };
    let refused = || NodeState { deletion_refused: true, ..drained() };
    let marked = NodeState { marked: true, ..node("marked", "new") };
    let members = join(&[nodes(3, "new"), vec![marked, refused()]]);
    let settled = plan(&wanted(4), &members);
    assert_eq!((settled.create, settled.delete.len()), (0, 0));
    // Another Node is missing, and there is room for one machine more.
    let missing = plan(&wanted(4), &join(&[nodes(3, "new"), vec![refused()]]));
    assert_eq!((missing.create, missing.delete.len()), (1, 0));
    // An outdated Node that never worked and cannot go: the others are rolled by the surge that is left.
    let broken = NodeState { deletion_refused: true, ..starting("x", "old") };
    let members = join(&[nodes(4, "new"), vec![node("old", "old"), broken]]);
    let budget = Budget { surge: 2, unavailable: 0 };
    let rolled = plan(&DesiredState { budget, ..wanted(5) }, &members);
    assert_eq!((rolled.create, rolled.delete.len()), (1, 0));
    // The victim takes the surge of a rollout, which says so.
    let rolling = plan(&wanted(4), &join(&[nodes(4, "old"), vec![refused()]]));
    assert_eq!((rolling.create, rolling.delete.len()), (0, 0));
    assert!(rolling.waits.iter().any(|wait| wait.reason == "MachinesLeaving"), "{:?}", rolling.waits);
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
    // The replica of a named victim is gone already: the others keep the whole budget.
    let victim = NodeState { victim: true, ..drained.clone() };
    assert_eq!(deleted(&plan(&wanted(3), &join(&[nodes(3, "old"), vec![victim]]))), ["x"]);
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
fn a_marked_node_deleted_by_hand_waits_until_its_replacement_is_available() {
    let marked = NodeState { marked: true, stage: DeletionStage::PendingDrain, ..node("x", "new") };
    let with = |replacement| join(&[nodes(2, "new"), vec![marked.clone(), replacement]]);
    let waits = plan(&wanted(3), &with(starting("y", "new")));
    assert_eq!((waits.create, waits.drain_permits.len()), (0, 0));
    assert!(waits_for(&waits, "Budget", 1, "3 nodes are available and 3 have to be"));
    assert_eq!(plan(&wanted(3), &with(node("y", "new"))).drain_permits, ["x"]);
}

#[test]
fn a_marked_node_does_not_go_for_a_surge_that_is_still_starting() {
    let marked = |revision| NodeState { marked: true, ..node("x", revision) };
    let surge = |revision| join(&[nodes(2, "old"), vec![marked(revision), starting("y", "new")]]);
    assert!(plan(&wanted(3), &surge("old")).delete.is_empty(), "an outdated Node waits as the others do");
    assert!(plan(&wanted(3), &surge("new")).delete.is_empty(), "so does one of the new revision");
    let paused = DesiredState { pace: RolloutMode::Held, ..wanted(3) };
    assert!(plan(&paused, &surge("old")).delete.is_empty(), "a held rollout keeps its surge");
    let repair = join(&[vec![silent("z", "new"), node("w", "new"), marked("new"), starting("y", "new")]]);
    assert!(plan(&nursing(3), &repair).delete.is_empty(), "nor for the replacement of an unhealthy Node");
    // A scale-down takes it without waiting for the budget.
    assert_eq!(deleted(&plan(&wanted(3), &join(&[nodes(2, "new"), surge("new")[2..].to_vec()]))), ["x"]);
}

#[test]
fn a_marked_node_waits_for_the_budget_where_a_rollout_replaces_a_node_that_cannot_be_deleted() {
    let refused = NodeState { deletion_refused: true, ..node("a", "old") };
    let marked = NodeState { marked: true, ..node("x", "new") };
    let members = [refused, marked, starting("y", "new")];
    let goes = |pace| deleted(&plan(&DesiredState { pace, ..wanted(2) }, &members)).contains(&"x");
    assert!(!goes(RolloutMode::Rolling { keep: 0 }), "the Node that starts is the replacement");
    assert!(goes(RolloutMode::OnDelete), "nothing is replaced, and the set shrinks");
}
