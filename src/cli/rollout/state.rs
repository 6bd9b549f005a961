//! Progress of a rollout, read from the NodeSet alone: done, failed, or waiting. No I/O.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_node_api::{NodeSet, NodeSetStatus, StrategyType};
use kube_node_planner::set_wait::RESTART_NOT_DUE;

use super::change::{is_paused, is_resumed_since, restarted_at, wait};
use crate::{
    progress::{Progress, Waiting},
    set_status::{condition, delay, name},
};

/// Reason of a rollout that halted itself.
const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";

/// A NodeClass as it is when the command starts.
#[derive(Debug)]
pub(super) struct ClassVersion {
    pub(super) name: String,
    pub(super) generation: Option<i64>,
}

/// State of a NodeSet's rollout. `class` is the NodeSet's class; None if it is not known.
pub(super) fn state(set: &NodeSet, class: Option<&ClassVersion>) -> Progress {
    let name = name(set);
    if set.metadata.deletion_timestamp.is_some() {
        return Progress::Failed(format!("nodeset {name:?} is being deleted"));
    }
    let empty = NodeSetStatus::default();
    let status = set.status.as_ref().unwrap_or(&empty);
    // Earlier delays say nothing about a change that is not observed yet.
    let unobserved = |what: &str| {
        let line = format!("Waiting for {what} to be observed...");
        Progress::Waiting(Waiting { delay: None, ..waiting(set, status, line) })
    };
    if status.observed_generation.is_none() || status.observed_generation != set.metadata.generation {
        return unobserved("nodeset spec update");
    }
    // A change of the class changes no generation of the set. An older operator records none of the class.
    let class = class.filter(|class| class.name == set.spec.node_class_name);
    if let (Some(class), Some(_)) = (class, status.observed_class_generation)
        && status.observed_class_generation < class.generation
    {
        return unobserved(&format!("the change of NodeClass {:?}", class.name));
    }
    // An annotation changes no generation. Times in a status have whole seconds.
    let restart = status.restart_time.as_ref().map(|time| time.0.as_second());
    if restarted_at(set).is_some_and(|requested| Some(requested.as_second()) > restart) {
        let not_due = wait(set, RESTART_NOT_DUE).map(|wait| format!("{}: {}", wait.reason, wait.message));
        return match unobserved("the restart") {
            Progress::Waiting(waiting) => Progress::Waiting(Waiting { delay: not_due, ..waiting }),
            other => other,
        };
    }
    let progressing = condition(status, "Progressing");
    let late = progressing.filter(|own| own.status == "False" && own.reason == DEADLINE_EXCEEDED);
    let halt = status.rollout.as_ref().and_then(|rollout| rollout.halt_time.as_ref());
    if let Some(halted) = halt.or(late.map(|condition| &condition.last_transition_time)) {
        if is_resumed_since(set, halted.0) {
            return unobserved("the resumption");
        }
        let why = late.map_or_else(String::new, |condition| format!(": {}", condition.message));
        return Progress::Failed(format!("nodeset {name:?} exceeded its progress deadline{why}"));
    }
    let complete = progressing.filter(|condition| {
        status.rollout.is_none() && condition.status == "False" && condition.reason == "Complete"
    });
    let Some(complete) = complete else {
        return Progress::Waiting(waiting(set, status, finish(set, status, progressing)));
    };
    let (replicas, updated) = (set.spec.replicas, status.updated_replicas);
    if updated < replicas {
        // The partition keeps old Nodes on purpose.
        return Progress::Done(if partition(set) > 0 && !is_on_delete(set) {
            format!("partitioned roll out complete: {updated} new nodes have been updated")
        } else {
            format!("nodeset {name:?} rolled out: {}", complete.message)
        });
    }
    Progress::Done(format!("nodeset {name:?} successfully rolled out"))
}

fn is_on_delete(set: &NodeSet) -> bool {
    set.spec.strategy.as_ref().and_then(|strategy| strategy.r#type) == Some(StrategyType::OnDelete)
}

/// Number of Nodes that keep the old revision.
fn partition(set: &NodeSet) -> i32 {
    let update = set.spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    update.and_then(|update| update.partition).unwrap_or(0)
}

/// Remaining work of a rollout, in kubectl's words for a Deployment.
fn finish(set: &NodeSet, status: &NodeSetStatus, progressing: Option<&Condition>) -> String {
    let (desired, updated) = (set.spec.replicas, status.updated_replicas);
    let (available, partition) = (status.available_replicas, partition(set));
    let old = status.rollout.as_ref().map_or(0, |rollout| rollout.outdated);
    let left = if updated < desired - partition && !is_on_delete(set) {
        format!("{updated} out of {desired} new nodes have been updated")
    } else if old > partition {
        format!("{} old nodes are pending termination", old - partition)
    } else if available < desired {
        format!("{available} of {desired} updated nodes are available")
    } else {
        let message = progressing.map(|condition| condition.message.as_str());
        message.unwrap_or("nothing is known about its progress").to_owned()
    };
    let paused = if is_paused(set) { "it is paused: " } else { "" };
    format!("Waiting for nodeset {:?} rollout to finish: {paused}{left}...", name(set))
}

fn waiting(set: &NodeSet, status: &NodeSetStatus, line: String) -> Waiting {
    let NodeSetStatus { updated_replicas: updated, available_replicas: available, rollout, .. } = status;
    let (desired, rollout) = (set.spec.replicas, rollout.as_ref());
    let old = rollout.map_or(0, |rollout| rollout.outdated);
    let done = rollout.map_or(*available, |rollout| rollout.available).min(desired);
    // The condition's message may be part of the line already.
    let delay = delay(status).filter(|(_, message)| !line.contains(message));
    Waiting {
        line,
        delay: delay.map(|(reason, message)| format!("{reason}: {message}")),
        counts: format!("{done}/{desired}: updated {updated}, available {available}, old {old}"),
        done: u64::try_from(done).unwrap_or(0),
        total: u64::try_from(desired).unwrap_or(0),
        is_observed: true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::change::tests::{halted, set};
    use super::*;

    fn state(set: &NodeSet) -> Progress {
        super::state(set, None)
    }

    fn rolling(updated: i32, available: i32, outdated: i32) -> Value {
        json!({"status": {
            "updatedReplicas": updated, "availableReplicas": available,
            "rollout": {
                "revision": "v1-bb", "startTime": "2026-01-02T03:00:00Z", "progressTime": "2026-01-02T03:01:00Z",
                "available": 1, "outdated": outdated,
            },
            "conditions": [progressing("True", "RollingOut", "going on")],
        }})
    }

    fn progressing(status: &str, reason: &str, message: &str) -> Value {
        json!({"type": "Progressing", "status": status, "reason": reason, "message": message,
               "lastTransitionTime": "2026-01-02T03:04:00Z"})
    }

    fn with(mut base: Value, part: &str, change: Value) -> Value {
        base[part] = change;
        base
    }

    fn line(change: &Value) -> String {
        match state(&set(change)) {
            Progress::Waiting(waiting) => waiting.line,
            other => panic!("{other:?}"),
        }
    }

    fn failure(change: &Value) -> String {
        match state(&set(change)) {
            Progress::Failed(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_complete_set_is_done() {
        let done = Progress::Done("nodeset \"workers\" successfully rolled out".to_owned());
        assert_eq!(state(&set(&json!({}))), done);
    }

    #[test]
    fn an_old_status_is_not_believed() {
        let expected = "Waiting for nodeset spec update to be observed...";
        assert_eq!(line(&json!({"metadata": {"generation": 5}})), expected);
        assert_eq!(line(&json!({"status": null})), expected);
    }

    #[test]
    fn status_waits_until_the_set_observes_the_changed_class() {
        let at = |generation| ClassVersion { name: "medium".to_owned(), generation: Some(generation) };
        let observed = set(&json!({"status": {"observedClassGeneration": 2}}));
        let Progress::Waiting(waiting) = super::state(&observed, Some(&at(3))) else { panic!("done") };
        assert_eq!(waiting.line, "Waiting for the change of NodeClass \"medium\" to be observed...");
        assert!(matches!(super::state(&observed, Some(&at(2))), Progress::Done(_)));
        let other = ClassVersion { name: "large".to_owned(), ..at(9) };
        assert!(
            matches!(super::state(&observed, Some(&other)), Progress::Done(_)),
            "the set has left that class"
        );
        let unrecorded = set(&json!({}));
        assert!(matches!(super::state(&unrecorded, Some(&at(9))), Progress::Done(_)), "by an older operator");
    }

    #[test]
    fn what_is_left_is_said_as_kubectl_says_it() {
        let expect = |change: &Value, text: &str| {
            assert_eq!(line(change), format!("Waiting for nodeset \"workers\" rollout to finish: {text}..."));
        };
        expect(&rolling(1, 3, 2), "1 out of 3 new nodes have been updated");
        expect(&rolling(3, 3, 2), "2 old nodes are pending termination");
        expect(&rolling(3, 2, 0), "2 of 3 updated nodes are available");
        expect(&rolling(3, 3, 0), "going on");
        let paused = with(rolling(1, 3, 2), "spec", json!({"paused": true}));
        expect(&paused, "it is paused: 1 out of 3 new nodes have been updated");
    }

    #[test]
    fn a_restart_that_nobody_has_seen_is_waited_for() {
        let restarted = |at: &str| json!({"metadata": {"annotations": {"kube-node.io/restarted-at": at}}});
        // Whatever the clock of the operator says about the last completion.
        let never = restarted("2026-01-02T01:00:00Z");
        assert_eq!(line(&never), "Waiting for the restart to be observed...");
        let observed = |at| with(restarted(at), "status", json!({"restartTime": "2026-01-02T03:00:00Z"}));
        assert_eq!(line(&observed("2026-01-02T03:00:01Z")), "Waiting for the restart to be observed...");
        for at in ["2026-01-02T03:00:00Z", "2026-01-02T03:00:00.5Z", "2026-01-02T02:59:59Z", "yesterday"] {
            assert!(matches!(state(&set(&observed(at))), Progress::Done(_)), "{at}");
        }
        let mut future = observed("2027-01-02T03:00:00Z");
        future["status"]["waits"] =
            json!([{"reason": "RestartNotDue", "message": "later", "since": "2026-01-02T03:04:02Z"}]);
        let Progress::Waiting(waiting) = state(&set(&future)) else { panic!("{future}") };
        assert_eq!(waiting.text(), "Waiting for the restart to be observed... RestartNotDue: later");
    }

    #[test]
    fn a_halted_rollout_has_failed_until_somebody_resumes_it() {
        let mut halt = halted(1);
        halt["status"]["conditions"] =
            json!([progressing("False", "ProgressDeadlineExceeded", "no progress for 600 s")]);
        let expected = "nodeset \"workers\" exceeded its progress deadline: no progress for 600 s";
        assert_eq!(failure(&halt), expected);
        assert_eq!(failure(&halted(1)), "nodeset \"workers\" exceeded its progress deadline");
        halt["metadata"]["annotations"] = json!({"kube-node.io/resumed-at": "2026-01-02T03:04:02Z"});
        assert_eq!(line(&halt), "Waiting for the resumption to be observed...");
        let condition_alone =
            json!({"status": {"conditions": [progressing("False", "ProgressDeadlineExceeded", "late")]}});
        assert_eq!(failure(&condition_alone), "nodeset \"workers\" exceeded its progress deadline: late");
    }

    #[test]
    fn old_nodes_that_are_kept_on_purpose_are_no_rollout() {
        let message = "all 3 nodes are available, 2 of them keep an older revision";
        let complete = json!({"status": {"updatedReplicas": 1, "conditions": [progressing("False", "Complete", message)]}});
        let done = |spec: Value| match state(&set(&with(complete.clone(), "spec", spec))) {
            Progress::Done(text) => text,
            other => panic!("{other:?}"),
        };
        let partition = json!({"strategy": {"rollingUpdate": {"partition": 2}}});
        assert_eq!(done(partition.clone()), "partitioned roll out complete: 1 new nodes have been updated");
        let on_delete = json!({"strategy": {"type": "OnDelete"}});
        assert_eq!(done(on_delete.clone()), format!("nodeset \"workers\" rolled out: {message}"));
        let line = |change, spec| line(&with(change, "spec", spec));
        assert!(line(rolling(1, 3, 3), partition.clone()).contains("1 old nodes are pending termination"));
        assert!(line(rolling(0, 3, 2), partition).contains("0 out of 3 new nodes"));
        assert!(line(rolling(1, 2, 2), on_delete).contains("2 old nodes are pending"));
    }

    #[test]
    fn a_set_that_leaves_is_not_waited_for() {
        let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-02T03:00:00Z"}});
        assert!(failure(&leaving).contains("is being deleted"));
    }

    #[test]
    fn the_first_wait_is_shown_or_else_what_degrades_the_set() {
        let why = |change: &Value| match state(&set(change)) {
            Progress::Waiting(waiting) => waiting.delay,
            other => panic!("{other:?}"),
        };
        let mut change = rolling(1, 3, 2);
        assert_eq!(why(&change), None);
        change["status"]["conditions"] = json!([{"type": "Degraded", "status": "True", "reason": "ClassNotFound",
            "message": "there is no NodeClass", "lastTransitionTime": "2026-01-02T03:00:00Z"}]);
        assert_eq!(why(&change).as_deref(), Some("ClassNotFound: there is no NodeClass"));
        change["status"]["waits"] = json!([
            {"reason": "DrainBlocked", "message": "a budget", "nodes": 1, "since": "2026-01-02T03:00:00Z"},
            {"reason": "Later", "message": "more", "nodes": 1, "since": "2026-01-02T03:00:00Z"},
        ]);
        assert_eq!(why(&change).as_deref(), Some("DrainBlocked: a budget"));
        change["status"]["waits"][0]["message"] = json!("going on");
        change["status"]["conditions"] = json!([progressing("True", "RollingOut", "3 nodes: going on")]);
        change["status"]["updatedReplicas"] = json!(3);
        change["status"]["rollout"]["outdated"] = json!(0);
        assert_eq!(why(&change), None, "the condition says it");
        change["status"]["updatedReplicas"] = json!(1);
        change["status"]["rollout"]["outdated"] = json!(2);
        let Progress::Waiting(waiting) = state(&set(&change)) else { panic!("it waits") };
        assert_eq!((waiting.done, waiting.total), (1, 3));
        assert_eq!(waiting.counts, "1/3: updated 1, available 3, old 2");
    }
}
