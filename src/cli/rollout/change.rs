//! Changes made by `pause`, `resume` and `restart`, decided from the NodeSet as it was read. No I/O.

use anyhow::ensure;
use jiff::Timestamp;
use kube::ResourceExt;
use kube_node_api::{NodeSet, WaitStatus, names};
use kube_node_planner::set_wait::RESUME_NOT_DUE;
use serde_json::{Value, json};

use super::access::Change;
use crate::set_status::name;

/// Pauses the rollout.
pub(super) fn pause(set: &NodeSet) -> Change {
    if is_paused(set) {
        return change(set, "is paused already", None);
    }
    change(set, "paused", Some(json!({"spec": {"paused": true}})))
}

/// Resumes a rollout that was paused or has halted itself. `now` is the API server's time.
pub(super) fn resume(set: &NodeSet, now: Timestamp) -> Change {
    let halted = halted_at(set);
    if !is_paused(set) && halted.is_none() {
        return change(set, "is neither paused nor halted", None);
    }
    let mut patch = json!({});
    if is_paused(set) {
        patch["spec"]["paused"] = Value::Null;
    }
    if let Some(halted) = halted {
        // The resume time must be after the halt, even if the API server's clock is behind the operator's.
        let after = now.max(next_second(halted));
        patch["metadata"]["annotations"][names::ANNOTATION_RESUMED_AT] = json!(written(after));
    }
    change(set, "resumed", Some(patch))
}

/// Requests the replacement of every Node created before `at`, a whole second by the API server's clock.
pub(super) fn restart(set: &NodeSet, at: Timestamp) -> anyhow::Result<Change> {
    let name = name(set);
    ensure!(!is_paused(set), "can't restart a paused nodeset: run `kube-node rollout resume {name}` first");
    let patch = json!({"metadata": {"annotations": {names::ANNOTATION_RESTARTED_AT: written(at)}}});
    Ok(change(set, "restarted", Some(patch)))
}

/// The next whole second. Times are written without fractions: a truncated time would place a restart before
/// Nodes created and rollouts completed in the same second.
pub(super) fn next_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second().saturating_add(1)).unwrap_or(now)
}

/// A change with the message that this was done to the NodeSet.
pub(super) fn change(set: &NodeSet, done: &str, patch: Option<Value>) -> Change {
    Change { patch, message: format!("{} {done}", subject(set)) }
}

/// The NodeSet in the form in which kubectl names changed objects.
pub(super) fn subject(set: &NodeSet) -> String {
    format!("nodeset.kube-node.io/{}", name(set))
}

/// Returns true if a user has paused the rollout.
pub(super) fn is_paused(set: &NodeSet) -> bool {
    set.spec.paused == Some(true)
}

/// Time at which the rollout halted itself; `None` if it did not, or if it was resumed and the operator has not yet
/// observed the resume.
pub(super) fn halted_at(set: &NodeSet) -> Option<Timestamp> {
    let halted = set.status.as_ref()?.rollout.as_ref()?.halt_time.as_ref()?.0;
    (!is_resumed_since(set, halted)).then_some(halted)
}

/// Returns true if a user resumed the rollout after it halted itself, at a time that has come.
pub(crate) fn is_resumed_since(set: &NodeSet, halted: Timestamp) -> bool {
    let is_due = wait(set, RESUME_NOT_DUE).is_none();
    is_due && time(set, names::ANNOTATION_RESUMED_AT).is_some_and(|resumed| resumed >= halted)
}

/// A wait of the NodeSet by its reason.
pub(super) fn wait<'a>(set: &'a NodeSet, reason: &str) -> Option<&'a WaitStatus> {
    set.status.as_ref()?.waits.iter().find(|wait| wait.reason == reason)
}

/// Time of the last requested restart.
pub(super) fn restarted_at(set: &NodeSet) -> Option<Timestamp> {
    time(set, names::ANNOTATION_RESTARTED_AT)
}

fn time(set: &NodeSet, key: &str) -> Option<Timestamp> {
    set.annotations().get(key)?.parse().ok()
}

/// RFC 3339 in whole seconds, as in all times of Kubernetes.
fn written(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Present time of all tests.
    pub(crate) fn now() -> Timestamp {
        "2026-01-02T03:04:05.6Z".parse().unwrap()
    }

    /// A complete NodeSet of three, with `change` merged into it.
    pub(crate) fn set(change: &Value) -> NodeSet {
        let mut set = json!({
            "apiVersion": "kube-node.io/v1alpha1",
            "kind": "NodeSet",
            "metadata": {"name": "workers", "generation": 4, "uid": "u"},
            "spec": {"replicas": 3, "nodeClassName": "medium"},
            "status": {
                "observedGeneration": 4,
                "replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "updatedReplicas": 3,
                "currentRevision": "v1-bb", "updateRevision": "v1-bb",
                "conditions": [
                    {"type": "Available", "status": "True", "reason": "NodesAvailable",
                     "message": "3 of 3 nodes are available", "lastTransitionTime": "2026-01-02T00:00:00Z"},
                    {"type": "Progressing", "status": "False", "reason": "Complete",
                     "message": "all 3 nodes are available", "lastTransitionTime": "2026-01-02T03:00:00Z"},
                    {"type": "Degraded", "status": "False", "reason": "AsExpected",
                     "message": "nothing stands in the way", "lastTransitionTime": "2026-01-02T00:00:00Z"},
                ],
            },
        });
        merge(&mut set, change);
        serde_json::from_value(set).unwrap()
    }

    fn merge(into: &mut Value, change: &Value) {
        match (into, change) {
            (Value::Object(into), Value::Object(change)) => {
                for (key, value) in change {
                    merge(into.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
            (into, change) => *into = change.clone(),
        }
    }

    /// Status of a rollout that halted itself at this second of the minute.
    pub(crate) fn halted(second: u8) -> Value {
        json!({"status": {"rollout": {
            "revision": "v1-bb", "startTime": "2026-01-02T02:00:00Z", "progressTime": "2026-01-02T02:50:00Z",
            "available": 1, "outdated": 2, "haltTime": format!("2026-01-02T03:04:{second:02}Z"),
        }}})
    }

    fn refusal(change: anyhow::Result<Change>) -> String {
        change.unwrap_err().to_string()
    }

    #[test]
    fn a_set_is_paused_once() {
        let change = pause(&set(&json!({})));
        assert_eq!(change.message, "nodeset.kube-node.io/workers paused");
        assert_eq!(change.patch, Some(json!({"spec": {"paused": true}})));
        assert!(pause(&set(&json!({"spec": {"paused": false}}))).patch.is_some());
        let paused = set(&json!({"spec": {"paused": true}}));
        let again = pause(&paused);
        assert_eq!(
            (again.patch, again.message.as_str()),
            (None, "nodeset.kube-node.io/workers is paused already")
        );
    }

    #[test]
    fn a_rollout_that_goes_on_needs_no_resume() {
        let nothing = resume(&set(&json!({})), now());
        assert_eq!(
            (nothing.patch, nothing.message.as_str()),
            (None, "nodeset.kube-node.io/workers is neither paused nor halted")
        );
        let change = resume(&set(&json!({"spec": {"paused": true}})), now());
        assert_eq!(change.patch, Some(json!({"spec": {"paused": null}})));
        assert_eq!(change.message, "nodeset.kube-node.io/workers resumed");
    }

    #[test]
    fn a_rollout_that_halted_itself_is_resumed_by_a_time_after_that() {
        let resumed = |halt, now| resume(&set(&halted(halt)), now).patch;
        let at = |second: u8| {
            Some(
                json!({"metadata": {"annotations": {names::ANNOTATION_RESUMED_AT: format!("2026-01-02T03:04:{second:02}Z")}}}),
            )
        };
        assert_eq!(resumed(1, now()), at(5));
        // In the same second, and with a clock that is behind.
        assert_eq!(resumed(5, now()), at(6));
        assert_eq!(resumed(30, now()), at(31));
        // A time in the future, which the operator ignores.
        let mut future = halted(1);
        merge(&mut future, &at(59).unwrap());
        assert_eq!(resume(&set(&future), now()).patch, None);
        future["status"]["waits"] =
            json!([{"reason": "ResumeNotDue", "message": "later", "since": "2026-01-02T03:04:02Z"}]);
        assert_eq!(resume(&set(&future), now()).patch, at(5));
        // A second resume before the operator has reconciled the first.
        let mut twice = halted(1);
        merge(&mut twice, &at(5).unwrap());
        assert_eq!(resume(&set(&twice), now()).patch, None);
        // A paused and halted rollout: resume ends both.
        let mut both = halted(1);
        merge(&mut both, &json!({"spec": {"paused": true}}));
        let patch = resume(&set(&both), now()).patch.unwrap();
        assert!(patch["spec"]["paused"].is_null() && patch["metadata"]["annotations"].is_object(), "{patch}");
    }

    #[test]
    fn a_restart_is_a_time() {
        let at = next_second(now());
        let change = restart(&set(&json!({})), at).unwrap();
        assert_eq!(change.message, "nodeset.kube-node.io/workers restarted");
        let patch = change.patch.unwrap();
        assert_eq!(
            patch,
            json!({"metadata": {"annotations": {names::ANNOTATION_RESTARTED_AT: "2026-01-02T03:04:06Z"}}})
        );
        let paused = set(&json!({"spec": {"paused": true}}));
        assert_eq!(
            refusal(restart(&paused, at)),
            "can't restart a paused nodeset: run `kube-node rollout resume workers` first"
        );
    }
}
