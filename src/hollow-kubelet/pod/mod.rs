//! Pod lifecycle on a hollow machine: the next status of a pod, from the observed pod and the time.
//!
//! Invariants: no I/O, no clock, no state between two syncs. Start times, addresses, restarts, images and
//! back-offs are read back from the status, as a restarted kubelet finds them; identifiers are functions of the pod.

pub mod admission;
pub mod allocatable;
mod conditions;
mod container;
pub mod events;
mod lifecycle;
pub mod missing;
pub mod output;
pub mod patch;
mod preemption;
mod reboot;
mod resources;
pub mod script;
mod termination;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::Ipv4Addr,
};

use events::PendingEvent;
use jiff::Timestamp;
use kube_node_api::ContainerDefaults;
use kube_node_cache::{PodStatus, PodView, intern};
use missing::Missing;
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
pub struct SyncResult {
    /// Status to write; None if the pod shows it.
    pub status: Option<PodStatus>,
    /// Reason of the pod's failure, if its containers do not show one.
    pub failure: Option<FailureReason>,
    /// True if the pod has a new sandbox in place of a lost one.
    pub sandbox_changed: bool,
    /// Containers that are being stopped.
    pub stopping: Stopping,
    /// True if the pod is then to be deleted: all its containers have ended.
    pub delete: bool,
    /// Time of the next sync, even without a change.
    pub again: Option<Timestamp>,
    /// Events about missing objects.
    pub missing: Vec<PendingEvent>,
}

/// Containers of a pod that are being stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stopping {
    /// No container.
    #[default]
    Nothing,
    /// The sidecars of a pod that is over otherwise.
    Sidecars,
    /// All containers.
    All,
}

/// Reason of a failure that the pod itself may not have caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureReason {
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

impl FailureReason {
    /// Reason and message of the pod's status.
    pub fn reason_and_message(&self) -> (&str, String) {
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
pub struct SyncContext<'a> {
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
    /// Objects without which the pod cannot start.
    pub missing: &'a [Missing<'a>],
}

/// Next result of an admitted `pod` at `now`.
pub fn sync_pod(pod: &PodView, context: SyncContext<'_>, now: Timestamp) -> SyncResult {
    if pod.is_finished() {
        return SyncResult { delete: pod.deleted_at.is_some(), ..SyncResult::default() };
    }
    let second = to_seconds(now);
    let found = reboot::found(pod, context.booted, now);
    let found = found.as_ref().unwrap_or(pod);
    let reboot = RebootState::of(found, context.booted);
    let termination = termination::of(found, context.preempted, now);
    let (status, again, failure, stopping) = if let Some(termination) = termination {
        let (status, again) = match termination::stop(found, &termination, context.defaults, now) {
            Ok(status) => (status, None),
            Err(stopped_at) => (found.status.clone(), Some(stopped_at)),
        };
        let failure = termination.failure.filter(|_| again.is_none());
        (status, again, failure, Stopping::All)
    } else {
        let (status, again, stopping) = lifecycle_of(found, context, reboot, now);
        let deadline = termination::deadline(found, status.start_time).filter(|_| !is_over(&status));
        (status, again.into_iter().chain(deadline).min(), None, stopping)
    };
    let status = conditions::with_conditions(found, status, (failure.as_ref(), reboot), second);
    let ended = is_over(&status);
    let missing = if stopping == Stopping::Nothing {
        missing::events(found, &status, context.missing)
    } else {
        Vec::new()
    };
    SyncResult {
        missing,
        delete: ended && pod.deleted_at.is_some(),
        again,
        failure,
        sandbox_changed: reboot.is_some_and(|reboot| reboot.is_remade(&status)),
        stopping,
        status: Some(status).filter(|status| !is_shown(status, &pod.status)),
    }
}

/// Status of a pod that may run on, and the time of its next change. Once it is over except for its sidecars, these stop;
/// its phase becomes final with the end of the last one.
fn lifecycle_of(
    pod: &PodView,
    context: SyncContext<'_>,
    reboot: Option<RebootState>,
    now: Timestamp,
) -> (PodStatus, Option<Timestamp>, Stopping) {
    let (status, again) = lifecycle::advance_pod(pod, context, reboot, now);
    if !is_over(&status) {
        return (status, again, Stopping::Nothing);
    }
    let pod = PodView { status, ..pod.clone() };
    match termination::stop(&pod, &termination::of_sidecars(&pod, now), context.defaults, now) {
        Ok(status) => (status, None, Stopping::Sidecars),
        Err(stopped_at) => {
            let has_begun = pod.status.containers.iter().any(container::has_begun);
            let phase = intern(if has_begun { "Running" } else { "Pending" });
            (PodStatus { phase, ..pod.status }, Some(stopped_at), Stopping::Sidecars)
        }
    }
}

/// Returns true if some container of a pod that runs on has never begun.
pub fn is_starting(pod: &PodView) -> bool {
    !pod.is_finished() && output::containers(pod).any(|found| !found.view.is_some_and(container::has_begun))
}

/// Returns true if a boot destroyed the pod's sandbox, so that it needs another one and another address.
pub fn needs_another_sandbox(pod: &PodView, booted: Option<Timestamp>) -> bool {
    RebootState::of(pod, booted).is_some_and(|reboot| reboot.is_fresh)
}

/// Result for a pod that pod admission has rejected.
pub fn rejected(pod: &PodView, reason: String, message: String, now: Timestamp) -> SyncResult {
    let status = PodStatus {
        phase: "Failed".into(),
        observed_generation: pod.generation,
        // A kubelet that did nothing for a pod sets no conditions of its own.
        conditions: conditions::of_others(&pod.status).cloned().collect(),
        start_time: pod.status.start_time.or(Some(to_seconds(now))),
        ..pod.status.clone()
    };
    SyncResult {
        status: Some(status),
        failure: Some(FailureReason::Rejected { reason, message }),
        ..SyncResult::default()
    }
}

fn is_over(status: &PodStatus) -> bool {
    matches!(&*status.phase, "Succeeded" | "Failed")
}

/// Returns true if `shown` has all of `status`, in any order of conditions.
fn is_shown(status: &PodStatus, shown: &PodStatus) -> bool {
    // The class of a pod never changes.
    status.phase == shown.phase
        && status.observed_generation == shown.observed_generation
        && status.conditions.iter().all(|condition| shown.condition(&condition.r#type) == Some(condition))
        && status.start_time == shown.start_time
        && status.host_ip == shown.host_ip
        && status.pod_ip == shown.pod_ip
        && status.containers == shown.containers
        && status.init_containers == shown.init_containers
}

/// Hash of those parts of a status that only kubelets write. It is equal for statuses of which [`is_shown`] compares these parts
/// as equal.
pub fn fingerprint(status: &PodStatus) -> u64 {
    let mut hasher = DefaultHasher::new();
    let PodStatus { phase, start_time, host_ip, pod_ip, containers, init_containers, .. } = status;
    (phase, start_time, host_ip, pod_ip, containers, init_containers).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
