//! State of one Node of a NodeSet, as the set planner and the disruption rules see it.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::time::{after, left};

use super::rollout::AwaitedNode;

/// Time for which a disruption budget may hold up a drain before the set is degraded.
const MOMENTS: Duration = Duration::from_secs(10);

/// Progress of a Node's deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionStage {
    /// Not deleted.
    #[default]
    Staying,
    /// Deleted, and the drain has not started: the Node still serves its pods.
    PendingDrain,
    /// The drain has started.
    Draining,
}

/// One Node of the set, as the planner sees it.
#[derive(Clone, Debug, Default)]
pub struct NodeState<'a> {
    /// Name of the Node.
    pub name: &'a str,
    /// Revision of the Node.
    pub revision: &'a str,
    /// Creation time.
    pub created: Timestamp,
    /// Progress of the Node's deletion.
    pub stage: DeletionStage,
    /// Last transition of the Ready condition to True; None if Ready is not True.
    pub ready_since: Option<Timestamp>,
    /// Last transition of the Ready condition to another status; None if Ready is True, or not there.
    pub unready_since: Option<Timestamp>,
    /// True if the Node takes pods while it is Ready: it is initialized, and no startup taint is on it now.
    pub started: bool,
    /// True if the Node was initialized once: it was Ready, and its startup taints had gone. One that comes back, as a CNI's
    /// while its agent is down, changes nothing about it.
    pub initialized: bool,
    /// True if an admin (`delete-first`) or cluster-autoscaler marked the Node to go first.
    pub marked: bool,
    /// True if a scale request named the Node as a victim.
    pub victim: bool,
    /// True while cluster-autoscaler drains the Node, to remove it together with its replica.
    pub autoscaler_drains: bool,
    /// True if the Node is never repaired.
    pub skip_remediation: bool,
    /// Number of pods that a drain would evict.
    pub pods: usize,
    /// True if the API server refused the Node's deletion and has not said since that it would accept it, or refused its
    /// drain, if the Node is leaving: other Nodes go first.
    pub deletion_refused: bool,
    /// True if the Node lacks the finalizer with which its node controller drains it: deleted, it would be gone at once, under
    /// its pods. It stays until the node controller has given the finalizer back, and other Nodes go first.
    pub unprotected: bool,
    /// Conditions that the set's unhealthy conditions refer to.
    pub conditions: Vec<ObservedCondition<'a>>,
    /// Reason and message of an obstacle to the Node's machine or drain.
    pub trouble: Option<(&'a str, &'a str)>,
    /// Earliest time at which that obstacle can have been there; None counts as long ago.
    pub trouble_since: Option<Timestamp>,
}

impl NodeState<'_> {
    /// Returns true if the Node cannot be deleted for now.
    pub(super) const fn is_undeletable(&self) -> bool {
        self.deletion_refused || self.unprotected
    }

    /// Returns true if the Node is Ready and schedulable.
    pub const fn is_ready(&self) -> bool {
        self.started && self.ready_since.is_some()
    }

    /// The Node as one that a rollout waits for.
    pub(super) fn awaited(&self) -> AwaitedNode {
        let ready_changed = self.ready_since.or(self.unready_since).filter(|_| self.initialized);
        AwaitedNode { created: self.created, ready_changed }
    }

    /// Time until the obstacle degrades the set. A disruption budget lets the next pod go once another one is Ready, so it
    /// holds up most drains for moments.
    pub(super) fn degrades_in(&self, now: Timestamp) -> Duration {
        match (self.trouble, self.trouble_since) {
            // A clock that was far ahead hides no obstacle.
            (Some(("PodDisruptionBudget", _)), Some(since)) if since <= after(now, MOMENTS) => {
                left(since, MOMENTS, now)
            }
            _ => Duration::ZERO,
        }
    }

    /// Time until the Node counts as available; zero if it does, None if it is not Ready or is being drained.
    pub(super) fn available_in(&self, min_ready: Duration, now: Timestamp) -> Option<Duration> {
        if !self.started || self.autoscaler_drains || self.stage == DeletionStage::Draining {
            return None;
        }
        Some(left(self.ready_since?, min_ready, now))
    }
}

/// A condition of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedCondition<'a> {
    /// Condition type.
    pub r#type: &'a str,
    /// True, False or Unknown.
    pub status: &'a str,
    /// Last transition; None counts as now.
    pub since: Option<Timestamp>,
}
