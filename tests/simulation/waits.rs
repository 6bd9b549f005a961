//! What a NodeSet says it waits for has its cause: a back-off belongs to the revision of the Nodes that the set makes, and a
//! creation that failed is reported only as long as the set has a revision to create Nodes of. A set whose creations are
//! refused does not go on as if they were not.
//!
//! Inputs: changes of sets, and creations that the API server refuses. Output: a violation. Invariant: a cause that was there
//! lately counts, since the status may be about a state of before.

use std::{collections::BTreeMap, time::Duration};

use kube_node_testing::api_server;
use serde_json::Value;
use tokio::time::Instant;

use crate::{objects::name, sent::Sent};

/// Most refused creations of one set within [`WINDOW`]: all of its Nodes, and some that were tried alone after that.
const MOST_REFUSED: usize = 24;
/// Time over which they are counted; an operator that starts anew knows of no refusal, and begins anew as well.
const WINDOW: Duration = Duration::from_secs(10);
/// Waits of a set without a revision to create Nodes of, by a final answer.
const WITHOUT_REVISION: [&str; 2] = ["InvalidMachine", "RevisionNotFound"];

/// What changes and refusals showed so far.
#[derive(Default)]
pub struct Waits {
    /// When the status of a set last said that Nodes of a revision fail to start.
    failed: BTreeMap<String, Instant>,
    /// When creations of each set's Nodes were refused lately, by process and set.
    refused: BTreeMap<(String, String), Vec<Instant>>,
}

impl Waits {
    /// Checks the status that a change of a set brings. What was so up to `memory` ago may still count.
    pub fn check(&mut self, set: &Value, memory: Duration) -> Option<String> {
        let (spec, status, now) = (&set["spec"], &set["status"], Instant::now());
        if let Some(revision) = status["startFailures"]["revision"].as_str() {
            self.failed.insert(revision.to_owned(), now);
        }
        let waits = || status["waits"].as_array().into_iter().flatten();
        let has = |reason: &str| waits().any(|wait| wait["reason"] == reason);
        if let Some(without) = WITHOUT_REVISION.into_iter().find(|reason| has(reason))
            && has("CreateFailed")
        {
            return Some(format!("{} says CreateFailed beside {without}: {status}", name(set)));
        }
        let pinned = spec["revision"].as_str()?;
        // Nodes of the revision that works are made while the rollout to the pinned one is held.
        let made = [pinned, status["currentRevision"].as_str().unwrap_or_default()];
        let has_failed =
            |revision: &&str| self.failed.get(*revision).is_some_and(|at| at.elapsed() <= memory);
        let is_present = status["observedGeneration"] == set["metadata"]["generation"];
        (is_present && has("BackOff") && !made.iter().any(has_failed)).then(|| {
            format!("{} waits for a back-off, and no Node of {made:?} has failed: {status}", name(set))
        })
    }

    /// Notes that the API server refuses a write.
    pub fn refuse(&mut self, sent: &Sent) -> Option<String> {
        if sent.method != http::Method::POST || sent.path != "/api/v1/nodes" {
            return None;
        }
        let node = api_server::object_of(&sent.body)?;
        let owner = node["metadata"]["labels"]["kube-node.io/nodeset"].as_str()?;
        let refused = self.refused.entry((sent.process.clone(), owner.to_owned())).or_default();
        refused.retain(|at| at.elapsed() < WINDOW);
        refused.push(Instant::now());
        (refused.len() > MOST_REFUSED)
            .then(|| format!("{} creations of {owner} are refused within {WINDOW:?}", refused.len()))
    }
}
