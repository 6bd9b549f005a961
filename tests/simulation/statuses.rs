//! The status of a NodeSet goes forward: its observed generation, the clock of its rollout, a rollout that has halted.
//!
//! Inputs: a set before and after a change, and the write that made it. Output: a violation. Invariants: what a request
//! brings back that was carried out after its client gave it up accuses nobody, and an operator that knows nothing else
//! may go on from there.

use std::{collections::BTreeMap, iter, time::Duration};

use jiff::Timestamp;
use kube_node_api::names::ANNOTATION_RESUMED_AT;
use serde_json::Value;
use tokio::time::Instant;

use crate::{objects::name, sent::Sent};

/// Longest time by which the clock of a host is ahead.
const AHEAD: Duration = Duration::from_mins(1);

/// What the statuses of sets showed so far; by the UID of the set.
#[derive(Default)]
pub struct Statuses {
    /// Observed generation of each set, and when the set changed last.
    observed: BTreeMap<String, (i64, Instant)>,
    /// Rollouts that late requests have brought back since the last one in time, by the UID of the set.
    brought_back: BTreeMap<String, Vec<Value>>,
    /// Rollout in each set's status, as its operator wrote it last, and when it was written first.
    rollouts: BTreeMap<String, (Value, Instant)>,
    /// When the class got another spec, or its status another revision.
    class_changed: Option<Instant>,
    /// Revision to which each set's rollout has halted, and when.
    halted: BTreeMap<String, (Value, String)>,
}

impl Statuses {
    /// Checks a change of a set.
    pub fn check(
        &mut self,
        after: &Value,
        before: Option<&Value>,
        by: Option<&Sent>,
        time: Timestamp,
    ) -> Option<String> {
        let now = Instant::now();
        let observed = after["status"]["observedGeneration"].as_i64().unwrap_or_default();
        let uid = after["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let (last, changed) = self.observed.insert(uid.clone(), (observed, now)).unwrap_or((0, now));
        if observed < last {
            return Some(format!("observedGeneration goes back from {last} to {observed}"));
        }
        if before.is_some_and(|before| before["status"] == after["status"]) {
            return None;
        }
        // A request that is carried out after its client gave it up brings an old status back.
        if by.is_some_and(|sent| sent.at < changed || sent.is_given_up) {
            self.brought_back.entry(uid.clone()).or_default().push(after["status"]["rollout"].clone());
            if after["status"]["rollout"]["haltTime"].is_null() {
                self.halted.remove(&uid);
            }
            return None;
        }
        let brought_back = self.brought_back.remove(&uid).unwrap_or_default();
        let halt = self.check_halt(after, time);
        let (old, new) = (&before?["status"]["rollout"], &after["status"]["rollout"]);
        // What such requests have brought back is replaced by what the operator knows, or one of them is all that
        // the next operator knows.
        let last = self.rollouts.get(&uid).cloned();
        let (last, since) = last.unwrap_or((Value::Null, now));
        let begun = if last["startTime"] == new["startTime"] { since } else { now };
        self.rollouts.insert(uid, (new.clone(), begun));
        if old == new {
            return halt;
        }
        // A class that had another revision meanwhile has come back to this one: that is another rollout.
        if self.class_changed.is_some_and(|at| at > since) {
            return halt;
        }
        let known = iter::once(&last).chain(&brought_back);
        halt.or_else(|| known.map(|known| rollout_goes_back(known, new)).collect::<Option<Vec<_>>>()?.pop())
    }

    /// Notes a change of a class. Its operator may know of a revision that no status of the class showed: while the write
    /// of that status was refused, the class came back.
    pub fn note_class(&mut self, after: &Value, before: Option<&Value>) {
        let differs = |path: &str| before.is_some_and(|before| before.pointer(path) != after.pointer(path));
        if differs("/status/revision") || differs("/metadata/generation") {
            self.class_changed = Some(Instant::now());
        }
    }

    /// Returns true if the status of a set is one that a late request has brought back.
    pub fn is_brought_back(&self, set: &Value) -> bool {
        set["metadata"]["uid"].as_str().is_some_and(|uid| self.brought_back.contains_key(uid))
    }

    /// A rollout that has halted stays so until there is another revision, or nothing to roll.
    fn check_halt(&mut self, set: &Value, time: Timestamp) -> Option<String> {
        let (uid, status) = (set["metadata"]["uid"].as_str()?.to_owned(), &set["status"]);
        let (rollout, revision) = (&status["rollout"], &status["updateRevision"]);
        let is_usable =
            status["observedGeneration"].is_i64() && !status["waits"].to_string().contains("InvalidMachine");
        // While a new revision is not stored, `updateRevision` stays the one before.
        let is_of = |last: &Value| {
            last == revision && (rollout["revision"].is_null() || rollout["revision"] == *last)
        };
        let last = self.halted.get(&uid).filter(|(last, _)| is_of(last));
        let resumed = set["metadata"]["annotations"][ANNOTATION_RESUMED_AT].as_str();
        // A time that has not come for any operator resumes nothing.
        let has_come = |resumed: &&str| resumed.parse().is_ok_and(|at: Timestamp| at <= time + AHEAD);
        let resumed = resumed.filter(has_come).unwrap_or_default();
        if last.is_none_or(|(_, halted)| resumed >= halted.as_str())
            || is_usable && status["replicas"] == status["updatedReplicas"]
        {
            self.halted.remove(&uid);
        } else if is_usable && rollout["haltTime"].is_null() {
            return Some(format!(
                "the rollout of {} to {revision} has halted, and goes on: {rollout}",
                name(set)
            ));
        }
        if rollout["haltTime"].is_string() {
            let at = rollout["haltTime"].as_str().unwrap_or_default().to_owned();
            self.halted.insert(uid, (rollout["revision"].clone(), at));
        }
        None
    }
}

/// A rollout to one revision has one start, and its progress never goes back.
fn rollout_goes_back(before: &Value, after: &Value) -> Option<String> {
    let is_same = before["revision"].is_string() && before["revision"] == after["revision"];
    let progress = |rollout: &Value| rollout["progressTime"].as_str().unwrap_or_default().to_owned();
    let goes_back = before["startTime"] != after["startTime"] || progress(after) < progress(before);
    (is_same && goes_back).then(|| format!("the clock of a rollout goes back from {before} to {after}"))
}
