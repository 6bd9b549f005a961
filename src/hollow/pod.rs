//! The life of a pod on a hollow machine: from what is seen of it and the time to its next status.
//!
//! Nothing is remembered between two looks: start times, addresses and restarts are read back from the status, as a
//! kubelet that was restarted finds them, and identifiers are functions of the pod.

use std::{net::Ipv4Addr, time::Duration};

use jiff::Timestamp;

use super::{script::Script, status::to_seconds};
use crate::cache::{
    Container, ContainerState, ContainerView, PodCondition, PodStatus, PodView, RestartPolicy,
};

/// Exit code of a container that was killed: 128 + SIGKILL.
const KILLED: i32 = 137;
/// Least time between two starts of a container that starts again; a kubelet would back off from 10 s on.
const RESTART_PACE: Duration = Duration::from_secs(10);
/// Conditions that a kubelet sets, in its order.
pub const CONDITIONS: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// What is to be done about a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The status to write; None when the pod shows it.
    pub status: Option<PodStatus>,
    /// Whether to delete the pod then: all its containers have ended.
    pub delete: bool,
    /// When to look again, whatever happens.
    pub again: Option<Timestamp>,
}

/// The next step of `pod` at `now`. `ip` is the address it has or is to get.
#[must_use]
pub fn step(pod: &PodView, script: &Script, host_ip: Ipv4Addr, ip: Ipv4Addr, now: Timestamp) -> Step {
    let now = to_seconds(now);
    if pod.is_finished() {
        return Step { delete: pod.deleted_at.is_some(), ..Step::default() };
    }
    let (status, again) = match pod.deleted_at {
        Some(deadline) => {
            let grace = Duration::from_secs(u64::try_from(pod.grace_seconds.unwrap_or(0)).unwrap_or(0));
            let stopped = deadline - grace + script.stop_time.min(grace);
            if has_started(&pod.status) && now < stopped {
                return Step { again: Some(stopped), ..Step::default() };
            }
            let code = if script.stop_time > grace { KILLED } else { 0 };
            (ended(pod, code, now), None)
        }
        None if has_started(&pod.status) => went_on(pod, script, now),
        None => {
            let again = script.run_time.map(|time| now + paced(pod, script, time));
            (started(pod, host_ip, ip, now), again)
        }
    };
    let status = with_conditions(pod, status, now);
    Step {
        delete: pod.deleted_at.is_some(),
        again,
        status: Some(status).filter(|status| !is_shown(status, &pod.status)),
    }
}

/// Whether its containers were started once.
fn has_started(status: &PodStatus) -> bool {
    let begun = |container: &ContainerView| container.state != ContainerState::Waiting;
    !status.containers.is_empty() && status.containers.iter().all(begun)
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy == Some(RestartPolicy::Always)
}

/// All containers running, the init containers done.
fn started(pod: &PodView, host_ip: Ipv4Addr, ip: Ipv4Addr, now: Timestamp) -> PodStatus {
    let running = ContainerState::Running { since: Some(now) };
    let done = ContainerState::Ended { exit_code: 0, started: Some(now), finished: Some(now) };
    let view = |container: &Container, state: &ContainerState| ContainerView {
        name: container.name.clone(),
        ready: true,
        restarts: 0,
        state: state.clone(),
    };
    PodStatus {
        phase: "Running".into(),
        start_time: pod.status.start_time.or(Some(now)),
        host_ip: Some(host_ip.to_string().into()),
        pod_ip: Some(ip.to_string().into()),
        containers: pod.containers.iter().map(|container| view(container, &running)).collect(),
        init_containers: pod
            .init_containers
            .iter()
            .map(|init| view(init, if is_sidecar(init) { &running } else { &done }))
            .collect(),
        ..pod.status.clone()
    }
}

/// What has become of the containers of a pod that nobody deletes, and when that changes.
fn went_on(pod: &PodView, script: &Script, now: Timestamp) -> (PodStatus, Option<Timestamp>) {
    let mut status = PodStatus { phase: "Running".into(), ..pod.status.clone() };
    let mut again: Option<Timestamp> = None;
    for container in &mut status.containers {
        container.ready = matches!(container.state, ContainerState::Running { .. });
        let (ContainerState::Running { since: Some(since) }, Some(run_time)) =
            (&container.state, script.run_time)
        else {
            continue;
        };
        let lasts = paced(pod, script, run_time);
        let end = *since + lasts;
        let next = if now < end {
            Some(end)
        } else if starts_again(pod, script) {
            container.restarts = container.restarts.saturating_add(1);
            container.state = ContainerState::Running { since: Some(now) };
            Some(now + lasts)
        } else {
            let (started, finished) = (Some(*since), Some(to_seconds(end)));
            *container = end_of(container, script.exit_code, started, finished);
            None
        };
        again = again.into_iter().chain(next).min();
    }
    if status.containers.iter().all(|container| exit_code(container).is_some()) {
        return (ended(&PodView { status, ..pod.clone() }, 0, now), None);
    }
    (status, again)
}

/// Whether a container that ends starts again.
fn starts_again(pod: &PodView, script: &Script) -> bool {
    match pod.restart_policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => script.exit_code != 0,
        RestartPolicy::Never => false,
    }
}

/// How long a container really runs that is to run for `run_time`.
fn paced(pod: &PodView, script: &Script, run_time: Duration) -> Duration {
    if starts_again(pod, script) { run_time.max(RESTART_PACE) } else { run_time }
}

/// All containers ended; those that still ran with `code`.
fn ended(pod: &PodView, code: i32, now: Timestamp) -> PodStatus {
    let end = |container: &Container, shown: &[ContainerView], code| {
        let shown = shown.iter().find(|shown| shown.name == container.name);
        let unknown = ContainerView {
            name: container.name.clone(),
            ready: false,
            restarts: 0,
            state: ContainerState::Waiting,
        };
        let shown = shown.unwrap_or(&unknown);
        match shown.state {
            ContainerState::Ended { .. } => shown.clone(),
            ContainerState::Running { since } => end_of(shown, code, since, Some(now)),
            // Nobody can say that it ran: a kubelet reports it as killed.
            ContainerState::Waiting => end_of(shown, KILLED, None, None),
        }
    };
    let containers: Vec<ContainerView> =
        pod.containers.iter().map(|container| end(container, &pod.status.containers, code)).collect();
    let failed = containers.iter().any(|container| exit_code(container) != Some(0));
    PodStatus {
        phase: if failed { "Failed" } else { "Succeeded" }.into(),
        init_containers: pod
            .init_containers
            .iter()
            .map(|init| end(init, &pod.status.init_containers, 0))
            .collect(),
        containers,
        ..pod.status.clone()
    }
}

fn end_of(
    container: &ContainerView,
    exit_code: i32,
    started: Option<Timestamp>,
    finished: Option<Timestamp>,
) -> ContainerView {
    ContainerView {
        ready: false,
        state: ContainerState::Ended { exit_code, started, finished },
        ..container.clone()
    }
}

fn exit_code(container: &ContainerView) -> Option<i32> {
    match container.state {
        ContainerState::Ended { exit_code, .. } => Some(exit_code),
        ContainerState::Running { .. } | ContainerState::Waiting => None,
    }
}

/// `status` with the kubelet's conditions that follow from it; the conditions of others stay, and come first.
fn with_conditions(pod: &PodView, mut status: PodStatus, now: Timestamp) -> PodStatus {
    let over = match &*status.phase {
        "Succeeded" => Some("PodCompleted"),
        "Failed" => Some("PodFailed"),
        _ => None,
    };
    let sidecars =
        status.init_containers.iter().zip(&pod.init_containers).filter(|(_, spec)| is_sidecar(spec));
    let ready =
        status.containers.iter().chain(sidecars.map(|(view, _)| view)).all(|container| container.ready);
    let gates = pod.readiness_gates.iter();
    let open =
        gates.map(|gate| status.condition(gate)).all(|gate| gate.is_some_and(|gate| &*gate.status == "True"));
    let unready = over.unwrap_or("ContainersNotReady");
    let ours = CONDITIONS.map(|r#type| {
        let (holds, reason) = match r#type {
            "PodReadyToStartContainers" => (over.is_none(), ""),
            "Initialized" => (true, over.filter(|_| &*status.phase == "Succeeded").unwrap_or("")),
            "ContainersReady" => (over.is_none() && ready, unready),
            "Ready" if over.is_none() && ready => (open, "ReadinessGatesNotReady"),
            "Ready" => (false, unready),
            _ => (true, ""),
        };
        let shown = if holds { "True" } else { "False" };
        let keeps = !holds || r#type == "Initialized";
        let before = status.condition(r#type).filter(|before| &*before.status == shown);
        PodCondition {
            r#type: r#type.into(),
            status: shown.into(),
            reason: if keeps { reason.into() } else { "".into() },
            observed_generation: pod.generation,
            since: before.and_then(|before| before.since).or(Some(now)),
        }
    });
    status.conditions.retain(|condition| !CONDITIONS.contains(&&*condition.r#type));
    status.conditions.extend(ours);
    status.observed_generation = pod.generation;
    status
}

/// Whether a pod that shows `shown` shows `status`, in whatever order its conditions are.
fn is_shown(status: &PodStatus, shown: &PodStatus) -> bool {
    let PodStatus {
        phase,
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
#[path = "pod_tests.rs"]
mod tests;
