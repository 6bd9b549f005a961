//! Drain planner: pods to evict now, pods that block the drain, and the time at which the machine may go.
//!
//! Input: the pods of a deleted Node, the drain policy of its set, the time. Output: a [`DrainPlan`] for one
//! reconciliation.
//!
//! Pods of DaemonSets and mirror pods stay and delay nothing. The other pods leave in ascending order of
//! priority. A pod that the policy or its own annotation protects blocks the drain until somebody acts or the
//! set's timeout expires.

use std::{fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube_node_api::{
    Drain, UnmanagedPods,
    time::{left, passed},
};
use strum::{IntoStaticStr, VariantNames};

/// Maximum grace period of pods that are deleted after the timeout.
pub const LAST_GRACE: Duration = Duration::from_secs(30);

/// A pod on the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Identity of the pod.
    pub id: PodId,
    /// Handling of the pod in a drain.
    pub fate: Fate,
    /// True if the pod has run to completion.
    pub finished: bool,
    /// True if the pod's annotation forbids its eviction.
    pub opted_out: bool,
    /// True if the pod has an emptyDir volume.
    pub empty_dir: bool,
    /// Priority of the pod.
    pub priority: i32,
    /// Time at which the pod's grace period ends; None while the pod has no deletion timestamp.
    pub gone_by: Option<Timestamp>,
}

/// Handling of a pod when its Node leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// The pod stays until the end: a DaemonSet controls it, or it is a mirror pod.
    Stays,
    /// A controller recreates the pod on another Node.
    #[default]
    Moves,
    /// No controller recreates the pod.
    Ends,
}

/// Identity of a pod, ordered by namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodId {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Name of the pod.
    pub name: Arc<str>,
    /// UID of the pod.
    pub uid: Arc<str>,
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Progress of the drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainProgress {
    /// Start of the drain.
    pub began: Timestamp,
    /// True if the kubelet is unreachable (Ready is Unknown); no pod's termination is confirmed then.
    pub unreachable: bool,
}

/// Reason why a pod is not evicted, ordered by precedence in messages; the names of the variants are reasons of
/// conditions and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantNames)]
pub enum Obstacle {
    /// The pod's annotation forbids the eviction.
    PodOptedOut,
    /// The pod has an emptyDir volume, and the set keeps such pods.
    EmptyDirData,
    /// No controller would recreate the pod, and the set keeps such pods.
    UnmanagedPod,
    /// A `PodDisruptionBudget` forbids the eviction.
    PodDisruptionBudget,
    /// The API server refuses the eviction for another reason, such as an admission webhook.
    EvictionRefused,
}

/// A pod that is not evicted, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blockage {
    /// Reason.
    pub obstacle: Obstacle,
    /// The pod.
    pub pod: PodId,
    /// Error message of the API server; empty if the obstacle explains itself.
    pub message: String,
}

/// Actions of one reconciliation of a drain, and the drain's progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainPlan {
    /// Pods to evict.
    pub evict: Vec<PodId>,
    /// Pods to delete regardless of obstacles, with a grace period of at most [`LAST_GRACE`].
    pub force: Vec<PodId>,
    /// Pods that are not evicted.
    pub blocked: Vec<Blockage>,
    /// Pods that keep the machine alive, sorted by name.
    pub left: Vec<PodId>,
    /// Pods bound to the Node that do not stay: the pods in `left`, and those whose termination no kubelet confirms.
    pub bound: Vec<PodId>,
    /// Pods in `bound` without a deletion timestamp.
    pub undeleted: Vec<PodId>,
    /// True if the timeout and the last grace period are over: the drain waits for nothing more.
    pub given_up: bool,
    /// True if the drain waits for attached volumes: no pod is left, the timeout is not over, and the kubelet
    /// that has to unmount the volumes is reachable.
    pub awaits_volumes: bool,
}

impl DrainPlan {
    /// Returns true if no pod keeps the machine alive.
    pub fn is_done(&self) -> bool {
        self.left.is_empty() || self.given_up
    }
}

/// Plans one reconciliation of a drain.
pub fn plan(pods: &[Pod], policy: &Drain, progress: DrainProgress, now: Timestamp) -> DrainPlan {
    let is_past = |time: Duration| left(progress.began, time, now).is_zero();
    let over = |grace| policy.timeout.is_some_and(|timeout| is_past(timeout.0.saturating_add(grace)));
    let bound: Vec<&Pod> = pods.iter().filter(|pod| pod.fate != Fate::Stays && !pod.finished).collect();
    // An unreachable kubelet confirms no termination, so a pod past its grace period does not delay the drain.
    let lost = |pod: &Pod| progress.unreachable && pod.gone_by.is_some_and(|by| by <= now);
    let waited_for: Vec<&Pod> = bound.iter().copied().filter(|pod| !lost(pod)).collect();
    let mut plan = DrainPlan {
        left: ids(waited_for.iter().copied()),
        undeleted: ids(bound.iter().copied().filter(|pod| pod.gone_by.is_none())),
        bound: ids(bound),
        given_up: over(LAST_GRACE),
        awaits_volumes: waited_for.is_empty() && !over(Duration::ZERO) && !progress.unreachable,
        ..DrainPlan::default()
    };
    if over(Duration::ZERO) {
        // Pods whose grace period ends soon are left to their kubelet.
        let later = |pod: &&Pod| pod.gone_by.is_none_or(|by| passed(now, by) > LAST_GRACE);
        plan.force = ids(waited_for.into_iter().filter(later));
        return plan;
    }
    let lowest = waited_for.iter().map(|pod| pod.priority).min();
    for pod in waited_for.into_iter().filter(|pod| pod.gone_by.is_none()) {
        match obstacle(pod, policy) {
            // Reported at once, whatever the pod's priority: the drain cannot end until somebody acts.
            Some(obstacle) => {
                plan.blocked.push(Blockage { obstacle, pod: pod.id.clone(), message: String::new() });
            }
            None if Some(pod.priority) == lowest => plan.evict.push(pod.id.clone()),
            None => {}
        }
    }
    plan.evict.sort();
    plan.blocked.sort();
    plan
}

/// Identities in the order of their names.
fn ids<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Vec<PodId> {
    let mut ids: Vec<PodId> = pods.into_iter().map(|pod| pod.id.clone()).collect();
    ids.sort();
    ids
}

fn obstacle(pod: &Pod, policy: &Drain) -> Option<Obstacle> {
    match pod {
        _ if pod.opted_out => Some(Obstacle::PodOptedOut),
        _ if pod.empty_dir && policy.delete_empty_dir_data == Some(false) => Some(Obstacle::EmptyDirData),
        _ if pod.fate == Fate::Ends && policy.unmanaged_pods == Some(UnmanagedPods::Keep) => {
            Some(Obstacle::UnmanagedPod)
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "drain_tests.rs"]
mod tests;
