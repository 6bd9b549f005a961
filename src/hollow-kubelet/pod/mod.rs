//! The life of a pod on a hollow machine: from what is seen of it and the time to its next status.
//!
//! Nothing is remembered between two looks: start times, addresses, restarts and back-offs are read back from the status, as
//! a kubelet that was restarted finds them, and identifiers are functions of the pod. No I/O, no clock.

pub mod admission;
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

use super::node_status::to_seconds;

/// What kubelets and container runtimes call the states of containers.
pub mod reasons {
    /// It is about to start.
    pub const CREATING: &str = "ContainerCreating";
    /// It is about to start once the init containers are done.
    pub const INITIALIZING: &str = "PodInitializing";
    /// It ended, and starts again after a while.
    pub const CRASH_LOOP: &str = "CrashLoopBackOff";
    /// Its image could not be pulled.
    pub const PULL_FAILED: &str = "ErrImagePull";
    /// Its image is pulled again after a while.
    pub const PULL_BACK_OFF: &str = "ImagePullBackOff";
    /// It ended well.
    pub const COMPLETED: &str = "Completed";
    /// It failed.
    pub const ERROR: &str = "Error";
    /// It could not be started.
    pub const START_ERROR: &str = "StartError";
    /// It ended with its machine.
    pub const LOST: &str = "Unknown";
    /// Nobody knows.
    pub const UNKNOWN: &str = "ContainerStatusUnknown";
}

/// What is to be done about a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The status to write; None when the pod shows it.
    pub status: Option<PodStatus>,
    /// Why it fails, where its containers do not say so.
    pub why: Option<Why>,
    /// Whether it has a sandbox in the place of one that is gone.
    pub sandbox_changed: bool,
    /// Whether its containers are being stopped.
    pub stopping: bool,
    /// Whether to delete the pod then: all its containers have ended.
    pub delete: bool,
    /// When to look again, whatever happens.
    pub again: Option<Timestamp>,
}

/// Why a pod fails that may have done nothing wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was active for too long.
    Deadline,
    /// Its place is another's.
    Preempted,
    /// It may not run here.
    Rejected {
        /// In a word.
        reason: String,
        /// In more of them.
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

/// What a pod finds on its machine.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Address of the machine.
    pub host_ip: Ipv4Addr,
    /// The address that the pod has or is to get.
    pub ip: Ipv4Addr,
    /// What containers do unless their pod says otherwise.
    pub defaults: &'a ContainerDefaults,
    /// When the machine booted last, in whole seconds, where that was not its first time.
    pub booted: Option<Timestamp>,
    /// Since when it is to make room.
    pub preempted: Option<Timestamp>,
}

/// The next step of `pod` at `now`, once it was admitted.
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

/// Whether a pod needs a sandbox in the place of one that its machine's boot took, and so another address.
#[must_use]
pub fn needs_another_sandbox(pod: &PodView, booted: Option<Timestamp>) -> bool {
    RebootState::of(pod, booted).is_some_and(|anew| anew.is_fresh)
}

/// The step of a pod that may not run here.
#[must_use]
pub fn rejected(pod: &PodView, reason: String, message: String, now: Timestamp) -> Step {
    let status = PodStatus {
        phase: "Failed".into(),
        observed_generation: pod.generation,
        // A kubelet that did nothing for a pod says nothing of it.
        conditions: conditions::of_others(&pod.status).cloned().collect(),
        start_time: pod.status.start_time.or(Some(to_seconds(now))),
        ..pod.status.clone()
    };
    Step { status: Some(status), why: Some(Why::Rejected { reason, message }), ..Step::default() }
}

fn is_over(status: &PodStatus) -> bool {
    matches!(&*status.phase, "Succeeded" | "Failed")
}

/// Whether a container was started once.
fn has_begun(container: &ContainerView) -> bool {
    container.last.is_some() || !matches!(container.state, ContainerState::Waiting { .. })
}

/// Whether a container ended of which nobody knows whether it was ever made.
fn is_unknown(container: &ContainerView) -> bool {
    matches!(&container.state, ContainerState::Ended(end) if &*end.reason == reasons::UNKNOWN)
}

/// Whether a pod that shows `shown` shows `status`, in whatever order its conditions are.
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
