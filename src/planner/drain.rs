//! How a Node that leaves is emptied: which pods are evicted now, which stand in the way, and when the machine may go.
//!
//! One call plans one reconciliation; the same state and time give the same plan. Pods of DaemonSets and mirror pods stay and hold
//! nothing up. The others leave by priority, the lowest first; what the set's settings or the pod itself forbid to evict
//! holds the drain up until somebody acts, or until the set's timeout is over.

use std::{fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube_node_api::UnmanagedPods;

use super::node::until;

/// What pods get, at most, to end by themselves once the timeout is over.
pub const LAST_GRACE: Duration = Duration::from_secs(30);

/// A pod on the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Who it is.
    pub id: PodId,
    /// What becomes of it.
    pub fate: Fate,
    /// Whether it has run to its end.
    pub finished: bool,
    /// Whether it does not want to be evicted.
    pub opted_out: bool,
    /// Whether it has a volume of type emptyDir.
    pub empty_dir: bool,
    /// Its priority.
    pub priority: i32,
    /// When it is to be gone; None while nobody has asked for its deletion.
    pub gone_by: Option<Timestamp>,
}

/// What becomes of a pod when its Node leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It stays to the end: a DaemonSet controls it, or it mirrors a file of the Node.
    Stays,
    /// A controller makes it again somewhere else.
    #[default]
    Moves,
    /// Nobody makes it again.
    Ends,
}

/// Who a pod is. In the order of namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodId {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Arc<str>,
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What the Node's set says about its drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long the drain may take; None: as long as it needs.
    pub timeout: Option<Duration>,
    /// Whether pods with emptyDir volumes are evicted.
    pub delete_empty_dir_data: bool,
    /// Whether pods that no controller would make again are evicted.
    pub evict_unmanaged: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self { timeout: None, delete_empty_dir_data: true, evict_unmanaged: true }
    }
}

impl From<&kube_node_api::Drain> for Policy {
    fn from(drain: &kube_node_api::Drain) -> Self {
        Self {
            timeout: drain.timeout.map(|timeout| timeout.0),
            delete_empty_dir_data: drain.delete_empty_dir_data.unwrap_or(true),
            evict_unmanaged: drain.unmanaged_pods != Some(UnmanagedPods::Keep),
        }
    }
}

/// The Node as its drain sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    /// When the drain began.
    pub began: Timestamp,
    /// Whether nobody hears from the kubelet any more (Ready is Unknown): then no pod's end is confirmed.
    pub unreachable: bool,
}

/// Why a pod is not evicted. In the order in which they are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// The pod does not want it.
    OptedOut,
    /// It has an emptyDir volume, which the set keeps.
    EmptyDir,
    /// No controller would make it again, and the set keeps such pods.
    Unmanaged,
    /// A `PodDisruptionBudget` does not allow it.
    Budget,
    /// The API server refuses it for another reason, such as an admission webhook.
    Refused,
}

impl Obstacle {
    /// The reason for conditions and metric labels.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::OptedOut => "PodOptedOut",
            Self::EmptyDir => "EmptyDirData",
            Self::Unmanaged => "UnmanagedPod",
            Self::Budget => "PodDisruptionBudget",
            Self::Refused => "EvictionRefused",
        }
    }
}

/// A pod that is not evicted, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blockage {
    /// Why.
    pub obstacle: Obstacle,
    /// Which.
    pub pod: PodId,
    /// What the API server said; empty where the obstacle says all.
    pub said: String,
}

/// What the drain does now, and how far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// To be evicted.
    pub evict: Vec<PodId>,
    /// To be deleted, whatever stands in the way, with [`LAST_GRACE`] at most.
    pub force: Vec<PodId>,
    /// What is not evicted.
    pub blocked: Vec<Blockage>,
    /// Pods that hold the machine up, in the order of their names.
    pub left: Vec<PodId>,
    /// Pods that are bound to the Node and do not belong to it: those in `left`, and those whose end nobody confirms.
    pub bound: Vec<PodId>,
    /// Those of `bound` whose deletion nobody has asked for.
    pub undeleted: Vec<PodId>,
    /// Whether the timeout and the last grace are over: nothing is waited for any more.
    pub given_up: bool,
    /// Whether volumes that are attached still are to be waited for: no pod is left, the timeout is not over, and the
    /// kubelet that has to unmount them is heard from.
    pub awaits_volumes: bool,
}

impl Plan {
    /// Whether no pod holds the machine up.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.left.is_empty() || self.given_up
    }
}

/// Plans one reconciliation of a drain.
#[must_use]
pub fn plan(pods: &[Pod], policy: &Policy, course: Course, now: Timestamp) -> Plan {
    let over = |grace: Duration| {
        policy
            .timeout
            .is_some_and(|timeout| until(course.began, timeout.saturating_add(grace), now).is_zero())
    };
    let ids = |pods: &[&Pod]| {
        let mut ids: Vec<PodId> = pods.iter().map(|pod| pod.id.clone()).collect();
        ids.sort();
        ids
    };
    let bound: Vec<&Pod> = pods.iter().filter(|pod| pod.fate != Fate::Stays && !pod.finished).collect();
    // A kubelet that nobody hears from confirms no end, so a pod whose time is over holds nothing up.
    let lost = |pod: &Pod| course.unreachable && pod.gone_by.is_some_and(|by| by <= now);
    let left: Vec<&Pod> = bound.iter().copied().filter(|pod| !lost(pod)).collect();
    let mut plan = Plan {
        left: ids(&left),
        undeleted: ids(&bound.iter().copied().filter(|pod| pod.gone_by.is_none()).collect::<Vec<_>>()),
        bound: ids(&bound),
        given_up: over(LAST_GRACE),
        awaits_volumes: left.is_empty() && !over(Duration::ZERO) && !course.unreachable,
        ..Plan::default()
    };
    if over(Duration::ZERO) {
        // Those that are to be gone soon are left to it.
        let later = |pod: &&Pod| {
            pod.gone_by.is_none_or(|by| {
                Duration::try_from(by.duration_since(now)).is_ok_and(|left| left > LAST_GRACE)
            })
        };
        plan.force = ids(&left.into_iter().filter(later).collect::<Vec<_>>());
        return plan;
    }
    let lowest = left.iter().map(|pod| pod.priority).min();
    for pod in left.into_iter().filter(|pod| pod.gone_by.is_none()) {
        match obstacle(pod, policy) {
            // Named at once, of whatever priority: the drain cannot end without somebody's doing.
            Some(obstacle) => {
                plan.blocked.push(Blockage { obstacle, pod: pod.id.clone(), said: String::new() });
            }
            None if Some(pod.priority) == lowest => plan.evict.push(pod.id.clone()),
            None => {}
        }
    }
    plan.evict.sort();
    plan.blocked.sort();
    plan
}

fn obstacle(pod: &Pod, policy: &Policy) -> Option<Obstacle> {
    if pod.opted_out {
        Some(Obstacle::OptedOut)
    } else if pod.empty_dir && !policy.delete_empty_dir_data {
        Some(Obstacle::EmptyDir)
    } else if pod.fate == Fate::Ends && !policy.evict_unmanaged {
        Some(Obstacle::Unmanaged)
    } else {
        None
    }
}

#[cfg(test)]
#[path = "drain_tests.rs"]
mod tests;
