//! Stopping of containers: their pod is deleted, was active for too long, or is being preempted.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::ContainerDefaults;
use kube_node_cache::{Container, ContainerState, ContainerView, PodStatus, PodView};
use kube_node_planner::time;

use super::{
    FailureReason,
    container::{self, has_begun, is_running},
    script::{KILLED, Role, Script},
};
use crate::clock::to_seconds;

/// Order to stop the containers of a pod.
#[derive(Clone, Debug)]
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
    let spec = &*pod.spec;
    let killed_at = time::after(termination.since, termination.grace);
    let shown = |views: &[ContainerView], container: &Container| {
        views.iter().find(|view| view.name == container.name).cloned()
    };
    let stops = |container: &Container, role, stopped_at: Timestamp| {
        let needed = time::after(stopped_at, Script::of(spec, container, role, defaults).stop_time);
        (needed.min(killed_at), if needed > killed_at { KILLED } else { 0 })
    };
    let regulars: Vec<_> = spec
        .containers
        .iter()
        .map(|container| {
            let end = stops(container, Role::Regular, termination.since);
            (container, shown(&pod.status.containers, container), end)
        })
        .collect();
    let running = regulars.iter().filter(|(_, view, _)| view.as_ref().is_some_and(is_running));
    // Sidecars are stopped once the regular containers have ended.
    let regulars_end = running.map(|(.., (at, _))| *at).max().unwrap_or(termination.since);
    let inits: Vec<_> = spec
        .init_containers
        .iter()
        .map(|container| {
            let role = Role::of_init(container);
            let stopped_at = if role == Role::Sidecar { regulars_end } else { termination.since };
            (container, shown(&pod.status.init_containers, container), stops(container, role, stopped_at))
        })
        .collect();
    let running = inits.iter().chain(&regulars).filter(|(_, view, _)| view.as_ref().is_some_and(is_running));
    if let Some(last) = running.map(|(.., (at, _))| *at).max().filter(|last| now < *last) {
        return Err(last);
    }
    let begun = |view: &Option<ContainerView>| view.as_ref().is_some_and(has_begun);
    // Last init container that a kubelet knows, or has to assume, to have begun.
    let last_begun = inits.iter().rposition(|(_, view, _)| begun(view)).unwrap_or(0);
    let is_initialized =
        inits.iter().all(|(_, view, _)| view.as_ref().is_some_and(|view| view.ready || view.started))
            || regulars.iter().any(|(_, view, _)| begun(view));
    let latest = to_seconds(now);
    let waits_as = container::initial_reason(spec);
    let end = |(spec, view, (at, code)): (&Container, Option<ContainerView>, (Timestamp, i32)), has_run| {
        let mut view = view.unwrap_or_else(|| container::waiting(&spec.name, &waits_as));
        container::stop(&mut view, to_seconds(at).min(latest), code, has_run);
        view
    };
    let init_containers: Box<[_]> =
        inits.into_iter().enumerate().map(|(at, init)| end(init, at <= last_begun)).collect();
    let containers: Box<[_]> = regulars.into_iter().map(|regular| end(regular, is_initialized)).collect();
    let succeeded =
        |view: &ContainerView| matches!(&view.state, ContainerState::Ended(end) if end.exit_code == 0);
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
