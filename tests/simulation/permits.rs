//! A Node that a NodeSetController has deleted has its permit to drain: the NodeController of the same process does not let
//! it wait for the budget of its set.
//!
//! Inputs: deletions whose process has heard that they were accepted, and changes of Nodes with the write that made them.
//! Output: a violation.

use std::collections::BTreeSet;

use kube_node_api::names::CONDITION_DRAINED;
use kube_node_planner::wait::NodeWait;
use serde_json::Value;

use crate::sent::Sent;

/// A process, and the UID of a Node.
pub type OfProcess = (String, String);

/// Which Nodes were deleted, and which wait.
#[derive(Default)]
pub struct Permits {
    /// Deletions that a process knows to be accepted.
    deleted: BTreeSet<OfProcess>,
    /// Nodes that a process lets wait for the budget.
    waiting: BTreeSet<OfProcess>,
    /// Nodes whose drain was refused once: their permits are taken back.
    refused: BTreeSet<String>,
}

impl Permits {
    /// Returns true if the process knows that this deletion was accepted.
    pub fn is_deleted(&self, of: &OfProcess) -> bool {
        self.deleted.contains(of)
    }

    /// Notes that a process hears that its deletion was accepted.
    pub fn deleted(&mut self, of: &OfProcess) -> Option<String> {
        self.deleted.insert(of.clone());
        self.check(of)
    }

    /// Notes that the drain of a Node was refused.
    pub fn refused(&mut self, uid: String) {
        self.refused.insert(uid);
    }

    /// Returns true if the drain of the Node with this UID was refused once.
    pub fn was_refused(&self, uid: &str) -> bool {
        self.refused.contains(uid)
    }

    /// Checks a change of a Node by a process.
    pub fn note_node(&mut self, after: &Value, before: &Value, by: &Sent) -> Option<String> {
        let (now, last) = (reason(after), reason(before));
        let uid = after["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        if now == last || now != Some(NodeWait::WaitingForBudget.reason()) {
            return None;
        }
        let of = (by.process.clone(), uid);
        self.waiting.insert(of.clone());
        self.check(&of)
    }

    fn check(&self, of: &OfProcess) -> Option<String> {
        let (process, uid) = of;
        let is_both = self.deleted.contains(of) && self.waiting.contains(of) && !self.refused.contains(uid);
        is_both.then(|| {
            format!("{process} has deleted the Node {uid}, and lets it wait for the budget of its set")
        })
    }
}

/// Why a Node is not drained.
fn reason(node: &Value) -> Option<&str> {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let mut drained = conditions.filter(|one| one["type"] == CONDITION_DRAINED && one["status"] == "False");
    drained.next()?["reason"].as_str()
}
