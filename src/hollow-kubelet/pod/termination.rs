//! Stopping of containers: their pod is deleted, was active for too long, is being preempted, or is over except
//! for its sidecars.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::{ContainerDefaults, time};
use kube_node_cache::{ContainerState, ContainerView, PodStatus, PodView};

use super::{
    FailureReason,
    container::{self, has_begun, is_running},
    output::{Found, containers},
    script::{KILLED, Role, Script},
};
use crate::clock::to_seconds;

/// Order to stop the containers of a pod.
pub struct Termination {
    /// Start of the grace period.
    since: Timestamp,
    /// Grace period; containers that need longer are killed.
    grace: Duration,
    /// Reason of the pod's failure, if it fails.
    pub failure: Option<FailureReason>,
}

/// End of a container that is told to stop.
#[derive(Clone, Copy)]
struct End {
    at: Timestamp,
    exit_code: i32,
}

impl Termination {
    /// Ends of `all` containers of a pod. Sidecars stop one after another, the last one first, once the regular
    /// containers have ended (`pkg/kubelet/kuberuntime/kuberuntime_termination_order.go`).
    fn ends(&self, pod: &PodView, all: &[Found<'_>], defaults: &ContainerDefaults) -> Vec<End> {
        let killed_at = time::after(self.since, self.grace);
        let mut turn = self.since;
        let mut ends: Vec<End> = Vec::with_capacity(all.len());
        for container in all.iter().rev() {
            let script = Script::of(&pod.spec, container.spec, container.role, defaults);
            let told = if container.role == Role::Sidecar { turn } else { self.since };
            // The hook runs at once, also that of a container that waits for its turn.
            let told = told.max(time::after(self.since, script.pre_stop));
            let needed = time::after(told, script.stop_time);
            let end = if needed > killed_at {
                End { at: killed_at, exit_code: KILLED }
            } else {
                End { at: needed, exit_code: script.stop_code }
            };
            if container.role != Role::Init && container.view.is_some_and(is_running) {
                turn = turn.max(end.at);
            }
            ends.push(end);
        }
        ends.reverse();
        ends
    }
}

/// Order to stop the containers of a pod; None if they may run on.
pub fn of(pod: &PodView, preempted: Option<Timestamp>, now: Timestamp) -> Option<Termination> {
    if let Some(deadline) = pod.deleted_at {
        let grace = Duration::from_secs(u64::try_from(pod.grace_seconds.unwrap_or(0)).unwrap_or(0));
        return Some(Termination { since: time::before(deadline, grace), grace, failure: None });
    }
    let grace = pod.spec.grace;
    if let Some(since) = preempted {
        return Some(Termination { since, grace, failure: Some(FailureReason::Preempted) });
    }
    let since = deadline(pod, pod.status.start_time).filter(|deadline| *deadline <= now)?;
    Some(Termination { since, grace, failure: Some(FailureReason::Deadline) })
}

/// Order to stop the sidecars of a pod that is over otherwise, since the last end of its other containers.
pub fn of_sidecars(pod: &PodView, now: Timestamp) -> Termination {
    let ends = containers(pod).filter(|container| container.role != Role::Sidecar);
    let ends = ends.filter_map(|container| match &container.view?.state {
        ContainerState::Terminated(end) => end.finished,
        _ => None,
    });
    Termination { since: ends.max().unwrap_or(now), grace: pod.spec.grace, failure: None }
}

/// End of the active deadline of a pod that began at `start_time`.
pub fn deadline(pod: &PodView, start_time: Option<Timestamp>) -> Option<Timestamp> {
    Some(time::after(start_time?, pod.spec.active_deadline?))
}

/// Status of a pod whose containers have all stopped; otherwise the time at which they will have.
pub fn stop(
    pod: &PodView,
    termination: &Termination,
    defaults: &ContainerDefaults,
    now: Timestamp,
) -> Result<PodStatus, Timestamp> {
    let all: Vec<Found<'_>> = containers(pod).collect();
    let ends = termination.ends(pod, &all, defaults);
    let running = all.iter().zip(&ends).filter(|(container, _)| container.view.is_some_and(is_running));
    if let Some(last) = running.map(|(_, end)| end.at).max().filter(|last| now < *last) {
        return Err(last);
    }
    let begun = |container: &Found<'_>| container.view.is_some_and(has_begun);
    let (inits, regulars) = all.split_at(pod.spec.init_containers.len());
    let (init_ends, regular_ends) = ends.split_at(inits.len());
    // Last init container that a kubelet knows, or has to assume, to have begun.
    let last_begun = inits.iter().rposition(begun).unwrap_or(0);
    let is_initialized = inits.iter().all(|init| init.view.is_some_and(|view| view.ready || view.started))
        || regulars.iter().any(begun);
    let latest = to_seconds(now);
    let waits_as = container::initial_reason(&pod.spec);
    let stopped = |container: &Found<'_>, end: &End, has_run| {
        let unseen = || container::waiting(container.spec, &waits_as);
        let mut view = container.view.cloned().unwrap_or_else(unseen);
        container::stop(&mut view, to_seconds(end.at).min(latest), end.exit_code, has_run);
        view
    };
    let inits = inits.iter().zip(init_ends).enumerate();
    let init_containers = inits.map(|(at, (init, end))| stopped(init, end, at <= last_begun)).collect();
    let regulars = regulars.iter().zip(regular_ends);
    let containers: Box<[_]> = regulars.map(|(regular, end)| stopped(regular, end, is_initialized)).collect();
    let succeeded =
        |view: &ContainerView| matches!(&view.state, ContainerState::Terminated(end) if end.exit_code == 0);
    // A kubelet drops the reason to stop a pod that ended well, unless the reason still applies.
    let has_failed =
        termination.failure == Some(FailureReason::Deadline) || !containers.iter().all(succeeded);
    Ok(PodStatus {
        phase: if has_failed { "Failed" } else { "Succeeded" }.into(),
        start_time: pod.status.start_time.or(Some(latest)),
        containers,
        init_containers,
        ..pod.status.clone()
    })
}
