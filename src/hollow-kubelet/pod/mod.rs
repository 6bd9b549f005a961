//! Pod lifecycle on a hollow machine: the next status of a pod, from the observed pod and the time.
//!
//! Invariants: no I/O, no clock, no state between two syncs. Start times, addresses, restarts and back-offs
//! are read back from the status, as a restarted kubelet finds them; identifiers are functions of the pod.

pub mod admission;
pub mod allocatable;
mod conditions;
mod ending;
pub mod events;
mod lifecycle;
pub mod output;
pub mod patch;
mod preemption;
mod reboot;
mod resources;
pub mod script;

use std::net::Ipv4Addr;

use jiff::Timestamp;
use kube_node_api::ContainerDefaults;
use kube_node_cache::{ContainerState, ContainerView, PodStatus, PodView};
use reboot::RebootState;

use super::clock::to_seconds;

/// Reasons of container states, as kubelets and container runtimes name them.
pub mod reasons {
    /// The container is about to start.
    pub const CREATING: &str = "ContainerCreating";
    /// The container waits for the init containers.
    pub const INITIALIZING: &str = "PodInitializing";
    /// The container ended and restarts after a back-off.
    pub const CRASH_LOOP: &str = "CrashLoopBackOff";
    /// The image could not be pulled.
    pub const PULL_FAILED: &str = "ErrImagePull";
    /// The image is pulled again after a back-off.
    pub const PULL_BACK_OFF: &str = "ImagePullBackOff";
    /// The container ended with exit code 0.
    pub const COMPLETED: &str = "Completed";
    /// The container failed.
    pub const ERROR: &str = "Error";
    /// The container could not be started.
    pub const START_ERROR: &str = "StartError";
    /// The container ended with its machine.
    pub const LOST: &str = "Unknown";
    /// The fate of the container is unknown.
    pub const UNKNOWN: &str = "ContainerStatusUnknown";
}

/// Outcome of one pod sync.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Status to write; None if the pod shows it.
    pub status: Option<PodStatus>,
    /// Reason of the pod's failure, if its containers do not show one.
    pub why: Option<Why>,
    /// True if the pod has a new sandbox in place of a lost one.
    pub sandbox_changed: bool,
    /// True while the containers are being stopped.
    pub stopping: bool,
    /// True if the pod is then to be deleted: all its containers have ended.
    pub delete: bool,
    /// Time of the next sync, even without a change.
    pub again: Option<Timestamp>,
}

/// Reason of a failure that the pod itself may not have caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The pod was active for too long.
    Deadline,
    /// The pod makes room for a critical one.
    Preempted,
    /// The pod may not run on this machine.
    Rejected {
        /// Reason in one word.
        reason: String,
        /// Message.
        message: String,
    },
}

impl Why {
    /// Reason and message of the pod's status.
    #[must_use]
    pub fn said(&self) -> (&str, String) {
        match self {
            Self::Deadline => {
                let message = "Pod was active on the node longer than the specified deadline";
                ("DeadlineExceeded", message.to_owned())
            }
            Self::Preempted => ("Preempting", "Preempted in order to admit critical pod".to_owned()),
            Self::Rejected { reason, message } => (reason, format!("Pod was rejected: {message}")),
        }
    }
}

/// Properties of the machine that a pod sync needs.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Address of the machine.
    pub host_ip: Ipv4Addr,
    /// Address that the pod has or will get.
    pub ip: Ipv4Addr,
    /// Container behaviour where the pod does not override it.
    pub defaults: &'a ContainerDefaults,
    /// Time of the last boot, in whole seconds; None if that was the first boot.
    pub booted: Option<Timestamp>,
    /// Time since which the pod is being preempted.
    pub preempted: Option<Timestamp>,
}

/// Next step of an admitted `pod` at `now`.
#[must_use]
pub fn step(pod: &PodView, place: Place<'_>, now: Timestamp) -> Step {
    if pod.is_finished() {
        return Step { delete: pod.deleted_at.is_some(), ..Step::default() };
    }
    let second = to_seconds(now);
    let found = reboot::found(pod, place.booted, now);
    let seen = found.as_ref().unwrap_or(pod);
    let anew = RebootState::of(seen, place.booted);
    let ending = ending::of(seen, place.preempted, now);
    let stopping = ending.is_some();
    let (status, again, why) = if let Some(ending) = ending {
        match ending::stop(seen, &ending, place.defaults, now) {
            Ok(status) => (status, None, ending.why),
            Err(stopped_at) => (seen.status.clone(), Some(stopped_at), None),
        }
    } else {
        let (status, again) = lifecycle::lived(seen, place, anew, now);
        let deadline = ending::deadline(seen, status.start_time).filter(|_| !is_over(&status));
        (status, again.into_iter().chain(deadline).min(), None)
    };
    let status = conditions::with_conditions(seen, status, (why.as_ref(), anew), second);
    let ended = is_over(&status);
    Step {
        delete: ended && pod.deleted_at.is_some(),
        again,
        why,
        sandbox_changed: anew.is_some_and(|anew| anew.is_remade(&status)),
        stopping,
        status: Some(status).filter(|status| !is_shown(status, &pod.status)),
    }
}

/// Returns true if a boot destroyed the pod's sandbox, so that it needs another one and another address.
#[must_use]
pub fn needs_another_sandbox(pod: &PodView, booted: Option<Timestamp>) -> bool {
    RebootState::of(pod, booted).is_some_and(|anew| anew.is_fresh)
}

/// Step of a pod that pod admission has rejected.
#[must_use]
pub fn rejected(pod: &PodView, reason: String, message: String, now: Timestamp) -> Step {
    let status = PodStatus {
        phase: "Failed".into(),
        observed_generation: pod.generation,
        // A kubelet that did nothing for a pod sets no conditions of its own.
        conditions: conditions::of_others(&pod.status).cloned().collect(),
        start_time: pod.status.start_time.or(Some(to_seconds(now))),
        ..pod.status.clone()
    };
    Step { status: Some(status), why: Some(Why::Rejected { reason, message }), ..Step::default() }
}

fn is_over(status: &PodStatus) -> bool {
    matches!(&*status.phase, "Succeeded" | "Failed")
}

/// Returns true if a container has started at least once.
fn has_begun(container: &ContainerView) -> bool {
    container.last.is_some() || !matches!(container.state, ContainerState::Waiting { .. })
}

/// Returns true if a container ended that may never have been created.
fn is_unknown(container: &ContainerView) -> bool {
    matches!(&container.state, ContainerState::Ended(end) if &*end.reason == reasons::UNKNOWN)
}

/// Returns true if `shown` has all of `status`, in any order of conditions.
fn is_shown(status: &PodStatus, shown: &PodStatus) -> bool {
    let PodStatus {
        phase,
        qos: _,
        observed_generation,
        conditions,
        start_time,
        host_ip,
        pod_ip,
        containers,
        init_containers,
    } = status;
    *phase == shown.phase
        && *observed_generation == shown.observed_generation
        && conditions.iter().all(|condition| shown.condition(&condition.r#type) == Some(condition))
        && *start_time == shown.start_time
        && *host_ip == shown.host_ip
        && *pod_ip == shown.pod_ip
        && *containers == shown.containers
        && *init_containers == shown.init_containers
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
