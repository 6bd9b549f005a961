//! Stopping of containers: their pod is deleted, was active for too long, or is being preempted.

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
    let since = termination.since;
    let killed_at = time::after(since, termination.grace);
    // End of a container that is told to stop at this time, and its exit code.
    let end = |container: &Found<'_>, stopped_at| {
        let script = Script::of(&pod.spec, container.spec, container.role, defaults);
        let needed = time::after(stopped_at, script.stop_time);
        (needed.min(killed_at), if needed > killed_at { KILLED } else { 0 })
    };
    let all: Vec<Found<'_>> = containers(pod).collect();
    let running = || all.iter().filter(|container| container.view.is_some_and(is_running));
    // Sidecars are stopped once the regular containers have ended.
    let regulars_end = running().filter(|container| container.role == Role::Regular);
    let regulars_end = regulars_end.map(|container| end(container, since).0).max().unwrap_or(since);
    let end = |container: &Found<'_>| {
        end(container, if container.role == Role::Sidecar { regulars_end } else { since })
    };
    if let Some(last) = running().map(|container| end(container).0).max().filter(|last| now < *last) {
        return Err(last);
    }
    let begun = |container: &Found<'_>| container.view.is_some_and(has_begun);
    let (regulars, inits): (Vec<_>, Vec<_>) =
        all.iter().copied().partition(|container| container.role == Role::Regular);
    // Last init container that a kubelet knows, or has to assume, to have begun.
    let last_begun = inits.iter().rposition(begun).unwrap_or(0);
    let is_initialized = inits.iter().all(|init| init.view.is_some_and(|view| view.ready || view.started))
        || regulars.iter().any(begun);
    let latest = to_seconds(now);
    let waits_as = container::initial_reason(&pod.spec);
    let stopped = |container: &Found<'_>, has_run| {
        let unseen = || container::waiting(&container.spec.name, &waits_as);
        let mut view = container.view.cloned().unwrap_or_else(unseen);
        let (at, exit_code) = end(container);
        container::stop(&mut view, to_seconds(at).min(latest), exit_code, has_run);
        view
    };
    let init_containers =
        inits.iter().enumerate().map(|(at, init)| stopped(init, at <= last_begun)).collect();
    let containers: Box<[_]> = regulars.iter().map(|regular| stopped(regular, is_initialized)).collect();
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
