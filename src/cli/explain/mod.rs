//! `kube-node explain`: what the controller does for a NodeSet, what it waits for and since when. Reads only
//! the status of the NodeSet.

mod hints;

use std::fmt::{Display, Write as _};

use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Client;
use kube_node_api::{NodeSet, NodeSetStatus, RolloutStatus, StartFailures, WaitStatus};

pub(super) use self::hints::hint;
use super::{
    access::{read_set, set_name},
    rollout::is_resumed_since,
    set_status::{condition, degraded, name},
    text::age,
};

/// Conditions of a NodeSet, the most urgent first.
const CONDITIONS: [&str; 3] = ["Degraded", "Progressing", "Available"];
/// Width of the first column, in characters.
const LABEL: usize = 14;

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Name of the NodeSet, or nodeset/NAME
    #[arg(value_name = "NODESET", value_parser = set_name)]
    name: String,
}

impl Explain {
    /// Prints the explanation.
    pub async fn run(self, client: &Client) -> anyhow::Result<()> {
        let set = read_set(client, &self.name).await?;
        super::print_line(explain(&set, Timestamp::now()).trim_end());
        Ok(())
    }
}

/// Explains the status of a NodeSet.
pub fn explain(set: &NodeSet, now: Timestamp) -> String {
    let status = set.status.clone().unwrap_or_default();
    let (set_name, class) = (name(set), &set.spec.node_class_name);
    let headline = headline(set, &status, now);
    let lines = format!("NodeSet {set_name} of NodeClass {class}: {headline}\n");
    let mut text = Text { set: set_name, now, lines, hints: Vec::new() };
    if status.observed_generation.is_some() && status.observed_generation != set.metadata.generation {
        let note = "the status is older than the spec: the operator has not observed the last change yet";
        text.row("Note", note);
    }
    if set.spec.paused == Some(true) {
        text.row("Paused", "spec.paused stops the rollout; scaling and repair go on");
        text.hint("Paused");
    }
    if let Some(revision) = &set.spec.revision {
        text.row("Pinned", format!("spec.revision keeps {revision}, whatever the class says"));
        text.hint("Pinned");
    }
    for condition in CONDITIONS.iter().filter_map(|r#type| condition(&status, r#type)) {
        text.condition(condition);
    }
    if set.status.is_some() {
        let wanted = set.spec.replicas;
        let NodeSetStatus { replicas, ready_replicas: ready, available_replicas: available, .. } = status;
        let (updated, unavailable) = (status.updated_replicas, status.unavailable_replicas);
        text.row("Nodes", format!("{wanted} wanted, {replicas} there, {ready} Ready, {available} available, {updated} updated, {unavailable} unavailable"));
    }
    if let Some(rollout) = &status.rollout {
        text.rollout(set, &status, rollout);
    }
    for WaitStatus { reason, message, nodes, since } in &status.waits {
        let nodes = match nodes {
            ..=0 => String::new(),
            1 => ", 1 node".to_owned(),
            nodes => format!(", {nodes} nodes"),
        };
        text.row("Waits for", format!("{reason} for {}{nodes}: {message}", text.age(since)));
        text.hint(reason);
    }
    if let Some(StartFailures { revision, count, last_time }) = &status.start_failures {
        let last = text.age(last_time);
        text.row("Failed starts", format!("{count} of {revision} one after the other, the last {last} ago"));
        text.hint("BackOff");
    }
    text.lines
}

/// The state in a few words.
fn headline(set: &NodeSet, status: &NodeSetStatus, now: Timestamp) -> String {
    if let Some(deleted) = &set.metadata.deletion_timestamp {
        return format!("being deleted for {}", age(deleted.0, now));
    }
    let is = |r#type: &str, wanted: &str| condition(status, r#type).filter(|found| found.status == wanted);
    let halted = status.rollout.as_ref().and_then(|rollout| rollout.halt_time.as_ref());
    if let Some(halted) = halted.filter(|_| degraded(status).is_none()) {
        return format!("its rollout halted itself {} ago", age(halted.0, now));
    }
    let at_rest = |own: &Condition| if own.reason == "Complete" { "complete" } else { "at rest" };
    let state = (degraded(status).map(|own| ("degraded", own)))
        .or_else(|| Some(("progressing", is("Progressing", "True")?)))
        .or_else(|| Some(("not available", is("Available", "False")?)))
        .or_else(|| is("Progressing", "False").map(|own| (at_rest(own), own)));
    let Some((state, condition)) = state else {
        return "the operator has said nothing about it yet; does it run?".to_owned();
    };
    format!("{state} for {} ({})", age(condition.last_transition_time.0, now), condition.reason)
}

/// The explanation, built line by line.
struct Text<'a> {
    /// Name of the NodeSet.
    set: &'a str,
    now: Timestamp,
    lines: String,
    /// Hints already printed: each is printed once.
    hints: Vec<&'static str>,
}

impl Text<'_> {
    fn age(&self, since: &Time) -> String {
        age(since.0, self.now)
    }

    fn row(&mut self, label: &str, text: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.lines, "{label:<LABEL$} {text}");
    }

    /// Adds advice for a reason, if there is some.
    fn hint(&mut self, reason: &str) {
        if let Some(hint) = hint(reason).filter(|hint| !self.hints.contains(hint)) {
            self.hints.push(hint);
            self.row("", format!("-> {}", hint.replace("NODESET", self.set)));
        }
    }

    fn condition(&mut self, condition: &Condition) {
        let Condition { type_, status, reason, message, last_transition_time, .. } = condition;
        self.row(type_, format!("{status} for {}, {reason}: {message}", self.age(last_transition_time)));
        if type_ == "Degraded" && status == "True" {
            // The message of NodesInTrouble names the Nodes, then their reason.
            let inner = message.split(": ").nth(1).unwrap_or_default();
            self.hint(if reason == "NodesInTrouble" { inner } else { reason });
        }
    }

    fn rollout(&mut self, set: &NodeSet, status: &NodeSetStatus, rollout: &RolloutStatus) {
        let RolloutStatus { revision, start_time, progress_time, available, outdated, halt_time, .. } =
            rollout;
        let way = match status.current_revision.as_ref().filter(|current| *current != revision) {
            Some(current) => format!("from {current} to {revision}"),
            None => format!("to {revision}"),
        };
        let (started, progress) = (self.age(start_time), self.age(progress_time));
        self.row("Rollout", format!("{way}, began {started} ago"));
        let counts = format!("new nodes available: {available}, old nodes left: {outdated}");
        self.row("", format!("last progress {progress} ago; {counts}"));
        if let Some(halted) = halt_time {
            self.row("", format!("halted itself {} ago: progressDeadline was over", self.age(halted)));
            if is_resumed_since(set, halted.0) {
                self.row("", "-> It has been resumed since: the operator has not observed that yet.");
            } else {
                self.hint("ProgressDeadlineExceeded");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rollout::tests::{now, set};

    fn said(change: &Value) -> String {
        explain(&set(change), now())
    }

    fn condition(r#type: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({"type": r#type, "status": status, "reason": reason, "message": message,
               "lastTransitionTime": "2026-01-02T03:00:00Z"})
    }

    #[test]
    fn a_complete_set() {
        assert_eq!(
            said(&json!({})),
            "NodeSet workers of NodeClass medium: complete for 4m5s (Complete)\n\
             Degraded       False for 3h4m, AsExpected: nothing stands in the way\n\
             Progressing    False for 4m5s, Complete: all 3 nodes are available\n\
             Available      True for 3h4m, NodesAvailable: 3 of 3 nodes are available\n\
             Nodes          3 wanted, 3 there, 3 Ready, 3 available, 3 updated, 0 unavailable\n"
        );
    }

    #[test]
    fn a_rollout_that_waits() {
        let text = said(&json!({
            "spec": {"revision": "v1-cc"},
            "status": {
                "currentRevision": "v1-bb",
                "updatedReplicas": 1,
                "rollout": {
                    "revision": "v1-cc", "startTime": "2026-01-02T02:54:05Z",
                    "progressTime": "2026-01-02T03:03:35Z", "available": 1, "outdated": 3,
                },
                "conditions": [
                    condition("Progressing", "True", "RollingOut", "1 of 3 nodes have v1-cc"),
                    condition("Available", "True", "NodesAvailable", "3 of 3 nodes are available"),
                ],
                "waits": [
                    {"reason": "DrainBlocked", "message": "pod default/web-0 on workers-a: budget web allows none",
                     "nodes": 1, "since": "2026-01-02T03:03:45Z"},
                    {"reason": "SomethingNew", "message": "it is new", "nodes": 2, "since": "2026-01-02T03:04:00Z"},
                ],
            },
        }));
        assert_eq!(
            text,
            "NodeSet workers of NodeClass medium: progressing for 4m5s (RollingOut)\n\
             Pinned         spec.revision keeps v1-cc, whatever the class says\n               \
             -> To follow the class again: `kube-node rollout undo workers --to-latest`.\n\
             Progressing    True for 4m5s, RollingOut: 1 of 3 nodes have v1-cc\n\
             Available      True for 4m5s, NodesAvailable: 3 of 3 nodes are available\n\
             Nodes          3 wanted, 3 there, 3 Ready, 3 available, 1 updated, 0 unavailable\n\
             Rollout        from v1-bb to v1-cc, began 10m ago\n               \
             last progress 30s ago; new nodes available: 1, old nodes left: 3\n\
             Waits for      DrainBlocked for 20s, 1 node: pod default/web-0 on workers-a: budget web allows none\n               \
             -> Raise the budget's maxUnavailable or the workload's replicas, delete the pod, or set spec.drain.timeout.\n\
             Waits for      SomethingNew for 5s, 2 nodes: it is new\n"
        );
    }

    #[test]
    fn a_rollout_that_halted_itself() {
        let text = said(&json!({
            "spec": {"paused": true},
            "status": {
                "observedGeneration": 3,
                "rollout": {
                    "revision": "v1-bb", "startTime": "2026-01-02T02:00:00Z",
                    "progressTime": "2026-01-02T02:50:00Z", "haltTime": "2026-01-02T03:00:00Z",
                },
                "startFailures": {"revision": "v1-bb", "count": 4, "lastTime": "2026-01-02T03:04:00Z"},
            },
        }));
        let has = |part: &str| assert!(text.contains(part), "{part}: {text}");
        has("medium: its rollout halted itself 4m5s ago\n");
        has("Note           the status is older than the spec");
        has("Paused         spec.paused stops the rollout");
        has("Rollout        to v1-bb, began 64m ago\n");
        has("halted itself 4m5s ago: progressDeadline was over\n");
        has("on with `kube-node rollout resume workers`.");
        has("Failed starts  4 of v1-bb one after the other, the last 5s ago\n");
    }

    #[test]
    fn a_rollout_that_somebody_has_resumed() {
        let mut change = crate::rollout::tests::halted(1);
        change["metadata"] = json!({"annotations": {"kube-node.io/resumed-at": "2026-01-02T03:04:02Z"}});
        let text = said(&change);
        assert!(text.contains("-> It has been resumed since") && !text.contains("rollout undo"), "{text}");
    }

    #[test]
    fn what_degrades_a_set_comes_first() {
        let degraded = |reason: &str, message: &str| {
            said(&json!({"status": {"conditions": [
                condition("Progressing", "True", "Provisioning", "2 of 3 nodes are Ready"),
                condition("Degraded", "True", reason, message),
            ]}}))
        };
        let text = degraded("NodesInTrouble", "workers-a: OutOfResources: no room (1 more)");
        assert!(
            text.starts_with("NodeSet workers of NodeClass medium: degraded for 4m5s (NodesInTrouble)\n"),
            "{text}"
        );
        assert!(text.contains("\n               -> The provider has no room"), "{text}");
        let text = degraded("ClassNotFound", "there is no NodeClass medium");
        assert!(text.contains("-> Create the class"), "{text}");
    }

    #[test]
    fn a_set_that_nobody_has_looked_at_or_that_leaves() {
        let text = said(&json!({"status": null}));
        assert_eq!(
            text,
            "NodeSet workers of NodeClass medium: the operator has said nothing about it yet; does it run?\n"
        );
        let text = said(&json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:00Z"}}));
        assert!(text.starts_with("NodeSet workers of NodeClass medium: being deleted for 5s\n"), "{text}");
    }
}
