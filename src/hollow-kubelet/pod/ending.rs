//! Stopping of containers: their pod is deleted, was active for too long, or is being preempted.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::ContainerDefaults;
use kube_node_cache::{Container, ContainerState, ContainerView, Ended, PodStatus, PodView, intern};
use kube_node_planner::time;

use super::{
    Why, has_begun, reasons,
    script::{KILLED, Role, Script},
};
use crate::clock::to_seconds;

/// Order to stop the containers of a pod.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Start of the grace period.
    since: Timestamp,
    /// Grace period; containers that need longer are killed.
    grace: Duration,
    /// Reason of the pod's failure, if it fails.
    pub why: Option<Why>,
}

/// Order to stop the containers of a pod; None if they may run on.
pub fn of(pod: &PodView, preempted: Option<Timestamp>, now: Timestamp) -> Option<Ending> {
    if let Some(deadline) = pod.deleted_at {
        let grace = Duration::from_secs(u64::try_from(pod.grace_seconds.unwrap_or(0)).unwrap_or(0));
        return Some(Ending { since: time::before(deadline, grace), grace, why: None });
    }
    let grace = pod.spec.grace;
    if let Some(since) = preempted {
        return Some(Ending { since, grace, why: Some(Why::Preempted) });
    }
    let since = deadline(pod, pod.status.start_time).filter(|deadline| *deadline <= now)?;
    Some(Ending { since, grace, why: Some(Why::Deadline) })
}

/// End of the active deadline of a pod that began at `start_time`.
pub fn deadline(pod: &PodView, start_time: Option<Timestamp>) -> Option<Timestamp> {
    Some(time::after(start_time?, pod.spec.active_deadline?))
}

/// Status of a pod whose containers have all stopped; otherwise the time at which they will have.
pub fn stop(
    pod: &PodView,
    ending: &Ending,
    defaults: &ContainerDefaults,
    now: Timestamp,
) -> Result<PodStatus, Timestamp> {
    let spec = &*pod.spec;
    let killed_at = time::after(ending.since, ending.grace);
    let shown = |views: &[ContainerView], container: &Container| {
        views.iter().find(|view| view.name == container.name).cloned()
    };
    let stops = |container: &Container, role, told_at: Timestamp| {
        let needed = time::after(told_at, Script::of(spec, container, role, defaults).stop_time);
        (needed.min(killed_at), if needed > killed_at { KILLED } else { 0 })
    };
    let runs = |view: &ContainerView| matches!(view.state, ContainerState::Running { .. });
    let regulars: Vec<_> = spec
        .containers
        .iter()
        .map(|container| {
            let end = stops(container, Role::Regular, ending.since);
            (container, shown(&pod.status.containers, container), end)
        })
        .collect();
    let running = regulars.iter().filter(|(_, view, _)| view.as_ref().is_some_and(runs));
    // Sidecars are stopped once the regular containers have ended.
    let regulars_end = running.map(|(.., (at, _))| *at).max().unwrap_or(ending.since);
    let inits: Vec<_> = spec
        .init_containers
        .iter()
        .map(|container| {
            let role = Role::of_init(container);
            let told_at = if role == Role::Sidecar { regulars_end } else { ending.since };
            (container, shown(&pod.status.init_containers, container), stops(container, role, told_at))
        })
        .collect();
    let running = inits.iter().chain(&regulars).filter(|(_, view, _)| view.as_ref().is_some_and(runs));
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
    let end =
        |(container, view, (at, code)): (&Container, Option<ContainerView>, (Timestamp, i32)),
         counts: bool| { ended(container, view, to_seconds(at).min(latest), code, counts, pod) };
    let init_containers: Box<[_]> =
        inits.into_iter().enumerate().map(|(at, init)| end(init, at <= last_begun)).collect();
    let containers: Box<[_]> = regulars.into_iter().map(|regular| end(regular, is_initialized)).collect();
    let succeeded =
        |view: &ContainerView| matches!(&view.state, ContainerState::Ended(end) if end.exit_code == 0);
    // A kubelet drops the reason to stop a pod that ended well, unless the reason still applies.
    let has_failed = ending.why == Some(Why::Deadline) || !containers.iter().all(succeeded);
    Ok(PodStatus {
        phase: if has_failed { "Failed" } else { "Succeeded" }.into(),
        start_time: pod.status.start_time.or(Some(latest)),
        containers,
        init_containers,
        ..pod.status.clone()
    })
}

/// An ended container. `counts`: a container without any trace counts as having run.
fn ended(
    container: &Container,
    view: Option<ContainerView>,
    finished: Timestamp,
    exit_code: i32,
    counts: bool,
    pod: &PodView,
) -> ContainerView {
    let waits_as =
        if pod.spec.init_containers.is_empty() { reasons::CREATING } else { reasons::INITIALIZING };
    let mut view = view.unwrap_or_else(|| ContainerView {
        name: container.name.clone(),
        ready: false,
        started: false,
        restarts: 0,
        state: ContainerState::Waiting { reason: intern(waits_as), back_off: None },
        last: None,
    });
    let end = match (&view.state, view.last.take()) {
        (ContainerState::Running { since }, last) => {
            view.last = last;
            let reason = intern(if exit_code == 0 { reasons::COMPLETED } else { reasons::ERROR });
            Ended { exit_code, reason, started: *since, finished: Some(finished) }
        }
        // The container does not restart, so its last end is final.
        (ContainerState::Waiting { .. }, Some(last)) => *last,
        (ContainerState::Waiting { .. }, None) if counts => {
            Ended { exit_code: KILLED, reason: intern(reasons::UNKNOWN), started: None, finished: None }
        }
        (ContainerState::Waiting { .. } | ContainerState::Ended(_), last) => {
            view.last = last;
            return view;
        }
    };
    (view.ready, view.started, view.state) = (false, false, ContainerState::Ended(end));
    view
}
