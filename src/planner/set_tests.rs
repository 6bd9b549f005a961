use std::time::Duration;

use super::*;
use crate::{
    set_planner::{self, DesiredState, RolloutMode},
    test_fixtures::{at, node, wanted},
};

fn member(name: &'static str, ready_since: Option<i64>) -> NodeState<'static> {
    NodeState { ready_since: ready_since.map(at), ..node(name, "new") }
}

fn status_of(
    wanted: &DesiredState<'_>,
    members: &[NodeState<'static>],
    old: &NodeSetStatus,
) -> NodeSetStatus {
    let plan = set_planner::decide(wanted, members, 0, at(100));
    status(&report(wanted, members, &plan, old), at(100))
}

fn report<'a>(
    wanted: &DesiredState<'a>,
    members: &'a [NodeState<'static>],
    plan: &'a set_planner::SetPlan<'static>,
    old: &'a NodeSetStatus,
) -> Report<'a> {
    Report {
        replicas: wanted.replicas,
        generation: Some(1),
        class_generation: None,
        restarted_at: None,
        update_revision: wanted.rules.revision,
        selector: String::new(),
        paused: wanted.pace == RolloutMode::Held,
        creating: 0,
        members,
        plan,
        given_up: None,
        problems: &[],
        old,
    }
}

fn condition<'a>(status: &'a NodeSetStatus, r#type: &str) -> (&'a str, &'a str, &'a str) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == r#type).unwrap();
    (&condition.status, &condition.reason, &condition.message)
}

#[test]
fn a_complete_set_says_so() {
    let status =
        status_of(&wanted(2), &[member("a", Some(0)), member("b", Some(0))], &NodeSetStatus::default());
    assert_eq!(condition(&status, "Progressing"), ("False", "Complete", "all 2 nodes are available"));
    assert_eq!(condition(&status, "Available").0, "True");
    assert_eq!(condition(&status, "Degraded").0, "False");
    assert_eq!((status.waits, status.rollout), (vec![], None));
}

#[test]
fn nodes_that_are_not_ready_are_named() {
    let initializing = NodeState { started: false, ..member("c", Some(0)) };
    let status = status_of(
        &wanted(3),
        &[member("a", Some(0)), member("b", None), initializing],
        &NodeSetStatus::default(),
    );
    assert_eq!(condition(&status, "Available").2, "1 of 3 nodes are available: 2 are not Ready (b, c)");
}

#[test]
fn trouble_of_nodes_degrades_the_set_and_is_what_it_waits_for() {
    let trouble = |name| NodeState {
        trouble: Some(("OutOfResources", "no room")),
        started: false,
        ..member(name, None)
    };
    let status =
        status_of(&wanted(3), &[member("a", Some(0)), trouble("c"), trouble("b")], &NodeSetStatus::default());
    assert_eq!(
        condition(&status, "Degraded"),
        ("True", "NodesInTrouble", "b: OutOfResources: no room (1 more)")
    );
    let first = &status.waits[0];
    assert_eq!(
        (first.reason.as_str(), first.message.as_str(), first.nodes),
        ("OutOfResources", "b: no room (1 more)", 2)
    );
}

#[test]
fn a_set_of_no_nodes_says_that_none_is_wanted() {
    let status = status_of(&wanted(0), &[], &NodeSetStatus::default());
    assert_eq!(condition(&status, "Progressing"), ("False", "Complete", "no nodes are wanted"));
}

#[test]
fn a_disruption_budget_that_holds_a_drain_up_for_moments_degrades_no_set() {
    let blocked = NodeState {
        stage: DeletionStage::Draining,
        trouble: Some(("PodDisruptionBudget", "pod default/web-0 cannot be evicted")),
        trouble_since: Some(at(95)),
        ..member("b", Some(0))
    };
    let members = [member("a", Some(0)), blocked.clone()];
    let at_first = status_of(&wanted(1), &members, &NodeSetStatus::default());
    assert_eq!(condition(&at_first, "Degraded").0, "False");
    assert_eq!(at_first.waits[0].reason, "PodDisruptionBudget", "the wait says so at once");
    let plan = set_planner::decide(&wanted(1), &members, 0, at(100));
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(5)));
    // Also by a clock that is an hour ahead.
    for since in [90, 100 + 3_600] {
        let lasting = [member("a", Some(0)), NodeState { trouble_since: Some(at(since)), ..blocked.clone() }];
        let later = status_of(&wanted(1), &lasting, &NodeSetStatus::default());
        assert_eq!(condition(&later, "Degraded").1, "NodesInTrouble", "since {since}");
    }
}

#[test]
fn a_write_that_was_refused_degrades_the_set_and_is_what_it_waits_for() {
    let message = "cannot change the template of Node a: denied by a policy";
    let problems = [SetWait { reason: "UpdateFailed", message: message.to_owned(), nodes: 1 }];
    let (wanted, members) = (wanted(2), [member("a", Some(0)), member("b", Some(0))]);
    let plan = set_planner::decide(&wanted, &members, 0, at(100));
    let old = NodeSetStatus::default();
    let report = Report { problems: &problems, ..report(&wanted, &members, &plan, &old) };
    let status = status(&report, at(100));
    assert_eq!(condition(&status, "Degraded"), ("True", "UpdateFailed", message));
    assert_eq!(condition(&status, "Ready"), ("False", "UpdateFailed", message));
    let (progressing, reason, text) = condition(&status, "Progressing");
    assert_eq!((progressing, reason), ("True", "Retrying"));
    assert!(text.contains(message), "{text}");
    assert_eq!((status.waits[0].reason.as_str(), status.waits[0].nodes), ("UpdateFailed", 1));
}

#[test]
fn only_deletions_that_were_sent_count_as_failures_to_start() {
    let (wanted, members) = (wanted(1), [member("a", Some(0))]);
    let plan = set_planner::decide(&wanted, &members, 0, at(100));
    let old = NodeSetStatus::default();
    let failures = |given_up| {
        let report = Report { given_up, ..report(&wanted, &members, &plan, &old) };
        status(&report, at(100)).start_failures.map(|failures| (failures.revision, failures.count))
    };
    assert_eq!(failures(None), None);
    assert_eq!(
        failures(Some("old")),
        Some(("old".to_owned(), 1)),
        "the revision of the Nodes, not the newest"
    );
}

#[test]
fn leaving_nodes_count_for_nothing_but_progress() {
    let leaving = NodeState { stage: DeletionStage::Draining, ..member("b", Some(0)) };
    let status = status_of(&wanted(1), &[member("a", Some(0)), leaving], &NodeSetStatus::default());
    assert_eq!((status.replicas, status.terminating_replicas), (1, 1));
    let progress = ("True", "ScalingDown", "1 node is being drained and deleted");
    assert_eq!(condition(&status, "Progressing"), progress);
}

#[test]
fn a_rollout_says_how_far_it_is_and_what_holds_it_up() {
    let old_node = |name| NodeState { revision: "old", ..member(name, Some(0)) };
    let blocked = NodeState {
        stage: DeletionStage::Draining,
        trouble: Some(("PodDisruptionBudget", "pod default/web-0: its budget web allows no disruption")),
        ..old_node("d")
    };
    let nodes = [member("a", Some(0)), old_node("b"), old_node("c"), blocked];
    let status = status_of(&wanted(3), &nodes, &NodeSetStatus::default());
    let (progressing, reason, message) = condition(&status, "Progressing");
    assert_eq!((progressing, reason), ("True", "RollingOut"));
    assert!(message.contains("pod default/web-0: its budget web allows no disruption"), "{message}");
    assert_eq!(status.current_revision.as_deref(), Some("old"));
    assert_eq!(status.updated_replicas, 1);
    let done = status_of(&wanted(1), &[member("a", Some(0))], &status);
    assert_eq!(done.current_revision.as_deref(), Some("new"));
}

#[test]
fn the_time_of_a_wait_is_that_of_its_beginning() {
    let waiting = [member("a", Some(0)), NodeState { started: false, ..member("b", None) }];
    let mut first = status_of(&wanted(2), &waiting, &NodeSetStatus::default());
    first.waits[0].since = Time(at(7));
    let second = status_of(&wanted(2), &waiting, &first);
    assert_eq!(second.waits, first.waits);
}

#[test]
fn a_paused_set_with_outdated_nodes_is_not_complete() {
    let old_node = NodeState { revision: "old", ..member("b", Some(0)) };
    let paused = DesiredState { pace: RolloutMode::Held, ..wanted(2) };
    let status = status_of(&paused, &[member("a", Some(0)), old_node], &NodeSetStatus::default());
    assert_eq!(condition(&status, "Progressing").1, "Paused");
    assert_eq!(status.waits[0].reason, "Paused");
}

#[test]
fn a_partition_above_the_replicas_is_reported() {
    let old_node = |name| NodeState { revision: "old", ..member(name, Some(0)) };
    let wanted = DesiredState { pace: RolloutMode::Rolling { keep: 5 }, ..wanted(2) };
    let status = status_of(&wanted, &[old_node("a"), old_node("b")], &NodeSetStatus::default());
    assert!(status.waits[0].message.contains("which is 5 of 2: write fewer than 2"), "{:?}", status.waits);
    assert_eq!(condition(&status, "Progressing").1, "Complete");
}

#[test]
fn a_set_is_ready_once_all_is_as_its_spec_wants_it() {
    fn ready(wanted: &DesiredState<'_>, members: &[NodeState<'static>]) -> (String, String) {
        let status = status_of(wanted, members, &NodeSetStatus::default());
        let (status, reason, _) = condition(&status, "Ready");
        (status.to_owned(), reason.to_owned())
    }
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    assert_eq!(ready(&wanted(2), &[member("a", Some(0)), member("b", Some(0))]), is("True", "Complete"));
    assert_eq!(ready(&wanted(2), &[member("a", Some(0)), member("b", None)]), is("False", "Provisioning"));
    assert_eq!(ready(&wanted(2), &[member("a", Some(0))]), is("False", "ScalingUp"));
    assert_eq!(ready(&wanted(1), &[member("a", Some(0)), member("b", Some(0))]), is("False", "ScalingDown"));
    let trouble = NodeState { trouble: Some(("OutOfResources", "no room")), ..member("b", Some(0)) };
    assert_eq!(ready(&wanted(2), &[member("a", Some(0)), trouble]), is("False", "NodesInTrouble"));
}

/// `kubectl wait` and kstatus compare it with that of the object.
#[test]
fn conditions_say_which_generation_they_are_of() {
    let complete = status_of(&wanted(1), &[member("a", Some(0))], &NodeSetStatus::default());
    assert!(complete.conditions.iter().all(|condition| condition.observed_generation == Some(1)));
}
