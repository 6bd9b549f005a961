//! Lifecycle of containers that are not being stopped: init containers one after another, sidecars beside
//! them, then the regular ones. An ended container restarts by its policy, after a kubelet's back-off. In a
//! pod that is over except for its sidecars, nothing starts any more.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::{ContainerDefaults, time};
use kube_node_cache::{
    CONFIG_ERROR, Container, ContainerState, ContainerView, InternedStr, PodSpecView, PodStatus, PodView,
    Terminated, intern,
};

use super::{
    SyncContext,
    container::{self, has_begun},
    missing::{self, Missing},
    output::{Found, containers},
    patch::whole_name,
    reasons,
    reboot::RebootState,
    script::{KILLED, Role, Script},
};
use crate::clock::to_seconds;

/// First back-off before a container restart or another image pull; doubles with each further one.
const BACK_OFF_FIRST: Duration = Duration::from_secs(10);
/// Longest back-off.
const BACK_OFF_LONGEST: Duration = Duration::from_mins(5);
/// Restarts in a row from which on the back-off is the longest one.
const MOST_CRASHES: u8 = 6;
/// Run time after which the back-off starts anew: the container no longer counts as crashing.
const BACK_OFF_FORGOTTEN: Duration = Duration::from_mins(10);
/// Time for which an image error shows before the back-off does.
const PULL_ERROR_SHOWN: Duration = Duration::from_secs(5);
/// Reason of a container between the end by a change of its image and its next start, which no status shows.
const REPLACED: &str = "";
/// Exit code of a container that could not be started, as in containerd.
const START_ERROR_CODE: i32 = 128;

/// Status of a pod at `now`, and the time of its next change. Its phase is final once the pod is over except for
/// its sidecars, which may still run.
///
/// `reboot`: reboot state, if the machine has booted meanwhile.
pub fn advance_pod(
    pod: &PodView,
    context: SyncContext<'_>,
    reboot: Option<RebootState>,
    now: Timestamp,
) -> (PodStatus, Option<Timestamp>) {
    if let Some(sandbox_at) = reboot.and_then(|reboot| reboot.sandbox_at).filter(|at| now < *at) {
        return (pod.status.clone(), Some(sandbox_at));
    }
    let spec = &*pod.spec;
    let start_time = pod.status.start_time.unwrap_or_else(|| to_seconds(now));
    let waits_as = container::initial_reason(spec);
    let mut inits = views(&spec.init_containers, &pod.status.init_containers, &waits_as);
    let mut regulars = views(&spec.containers, &pod.status.containers, &waits_as);
    if let Some(reboot) = reboot {
        for (Found { spec: container, role, .. }, view) in
            containers(pod).zip(inits.iter_mut().chain(&mut *regulars))
        {
            reboot.revive(view, &Script::of(spec, container, role, context.defaults), &waits_as);
        }
    }
    if missing::holds_volumes(pod, context.missing) {
        let status = PodStatus {
            start_time: Some(start_time),
            host_ip: Some(context.host_ip.to_string().into()),
            containers: regulars,
            init_containers: inits,
            ..pod.status.clone()
        };
        return (status, None);
    }
    let was_initialized = match reboot {
        Some(reboot) => reboot.has_begun(regulars.iter()),
        None => regulars.iter().any(has_begun),
    };
    let is_over = is_over(spec, (&*inits, &*regulars), context.defaults);
    let mut again = None;
    // True if the next container may start, and the earliest time for that.
    let (mut is_open, mut due) = (true, start_time);
    let mut failed = false;
    for (container, view) in spec.init_containers.iter().zip(&mut *inits) {
        let role = Role::of_init(container);
        let is_past = was_initialized && role == Role::Init;
        if is_past || !(is_open || was_initialized) {
            continue;
        }
        let script = Script::of(spec, container, role, context.defaults);
        if !is_over {
            again = earlier(
                again,
                advance(view, (container, &script), due, (&waits_as, context.missing), (context.booted, now)),
            );
        }
        match (&view.state, role) {
            (ContainerState::Running { since: Some(since) }, Role::Sidecar) if view.started => {
                due = due.max(time::after(*since, script.started_after));
            }
            (ContainerState::Terminated(end), Role::Init) if end.exit_code == 0 => {
                due = due.max(end.finished.unwrap_or(due));
            }
            (state, role) => {
                failed |= role == Role::Init && matches!(state, ContainerState::Terminated(_));
                is_open = false;
            }
        }
    }
    if (is_open || was_initialized) && !is_over {
        for (container, view) in spec.containers.iter().zip(&mut *regulars) {
            let script = Script::of(spec, container, Role::Regular, context.defaults);
            again = earlier(
                again,
                advance(view, (container, &script), due, (&waits_as, context.missing), (context.booted, now)),
            );
        }
    }
    let phase = if failed { "Failed" } else { phase(&regulars) };
    if matches!(phase, "Succeeded" | "Failed") {
        again = None;
    }
    let mut status = PodStatus {
        phase: intern(phase),
        start_time: Some(start_time),
        host_ip: Some(context.host_ip.to_string().into()),
        containers: regulars,
        init_containers: inits,
        ..pod.status.clone()
    };
    let has_sandbox = container::all(&status).any(container::needs_sandbox);
    if reboot.is_some_and(|reboot| reboot.is_remade(&status)) || (status.pod_ip.is_none() && has_sandbox) {
        status.pod_ip = Some(context.ip.to_string().into());
    } else if status.pod_ip.is_some() && spec.host_network {
        // The machine's current address, which may differ from the shown one.
        status.pod_ip.clone_from(&status.host_ip);
    }
    (status, again)
}

/// Returns true if a pod is over except for its sidecars: an init container has failed for good, or all regular containers
/// have ended for good.
fn is_over(
    spec: &PodSpecView,
    (inits, regulars): (&[ContainerView], &[ContainerView]),
    defaults: &ContainerDefaults,
) -> bool {
    // Exit code of a container that does not start again.
    let ended_with = |container: &Container, view: &ContainerView, role| {
        let ContainerState::Terminated(end) = &view.state else { return None };
        let script = Script::of(spec, container, role, defaults);
        Some(end.exit_code).filter(|code| !script.restarts_after(*code))
    };
    let mut inits = spec.init_containers.iter().zip(inits).filter(|(init, _)| !init.is_sidecar());
    let mut regulars = spec.containers.iter().zip(regulars);
    inits.any(|(init, view)| ended_with(init, view, Role::Init).is_some_and(|code| code != 0))
        || regulars.all(|(regular, view)| ended_with(regular, view, Role::Regular).is_some())
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// Container statuses in the order of the spec.
fn views(specs: &[Container], shown: &[ContainerView], waits_as: &InternedStr) -> Box<[ContainerView]> {
    let view = |container: &Container| {
        let shown = shown.iter().find(|shown| shown.name == container.name);
        match shown.cloned() {
            Some(begun) if has_begun(&begun) => begun,
            // The image may have changed meanwhile.
            Some(waiting) => ContainerView { image: intern(&container.image), ..waiting },
            None => container::waiting(container, waits_as),
        }
    };
    specs.iter().map(view).collect()
}

/// Phase that follows from the regular containers, as a kubelet computes it.
fn phase(regulars: &[ContainerView]) -> &'static str {
    let code = |container: &ContainerView| match &container.state {
        ContainerState::Terminated(end) => Some(end.exit_code),
        _ => None,
    };
    if !regulars.iter().all(has_begun) {
        "Pending"
    } else if regulars.iter().any(|container| code(container).is_none()) {
        "Running"
    } else if regulars.iter().all(|container| code(container) == Some(0)) {
        "Succeeded"
    } else {
        "Failed"
    }
}

/// Advances a container to `now`; returns the time of its next change. It starts no earlier than `due`, nor
/// than `booted`, the boot of its machine.
fn advance(
    view: &mut ContainerView,
    (container, script): (&Container, &Script<'_>),
    due: Timestamp,
    (waits_as, missing): (&InternedStr, &[Missing<'_>]),
    (booted, now): (Option<Timestamp>, Timestamp),
) -> Option<Timestamp> {
    // With a clock behind the boot, the boot time: an earlier start would count as ended by the boot.
    let start = to_seconds(now).max(booted.unwrap_or(Timestamp::MIN));
    let image = intern(&whole_name(&container.image));
    let has_changed = has_begun(view) && view.image != image && script.role != Role::Init;
    if has_changed && container::is_running(view) {
        replace(view, script, start);
    }
    loop {
        match (&view.state, &view.last) {
            (ContainerState::Waiting { .. }, None) => {
                let made = time::after(due, script.start_time);
                let (reason, again) = if now < made {
                    (InternedStr::clone(waits_as), made)
                } else if script.image_error.is_some() {
                    pull(made, now)
                } else if let Some(message) = missing::of_container(&container.name, missing) {
                    let (reason, missing) = (intern(CONFIG_ERROR), intern(&message));
                    view.state = ContainerState::Waiting { reason, back_off: None, missing };
                    return None;
                } else {
                    run(view, start, &image, 0);
                    continue;
                };
                view.state = ContainerState::waiting(reason, None);
                return Some(again);
            }
            (ContainerState::Waiting { reason, back_off, .. }, Some(last)) => {
                let ended = last.finished.unwrap_or(now);
                // A back-off is that of an image.
                let back_off = back_off.filter(|_| view.image == image).unwrap_or_default();
                let again = time::after(ended, back_off);
                if now < again {
                    return Some(again);
                }
                if view.image != image && script.image_error.is_some() {
                    let (reason, again) = pull(ended, now);
                    view.state = ContainerState::waiting(reason, None);
                    return Some(again);
                }
                let crashes = match (&**reason, back_off) {
                    (REPLACED, _) => 0,
                    (_, Duration::ZERO) => 1,
                    _ => last.crashes.saturating_add(1).min(MOST_CRASHES),
                };
                view.restarts = view.restarts.saturating_add(1);
                run(view, start, &image, crashes);
            }
            (ContainerState::Running { since: None }, _) => {
                view.state = ContainerState::Running { since: Some(start) };
            }
            (ContainerState::Running { since: Some(since) }, _) => {
                let since = *since;
                let run_time =
                    if script.start_error.is_some() { Some(Duration::ZERO) } else { script.run_time };
                let end = run_time.map(|span| time::after(since, span));
                if end.is_none_or(|end| now < end) {
                    return earlier(end, update_readiness(view, script, since, now));
                }
                ended(view, script, end_of(script, view.crashes, since, end));
            }
            (ContainerState::Terminated(end), _) => {
                if !script.restarts_after(end.exit_code) {
                    return None;
                }
                let end = end.clone();
                ended(view, script, end);
            }
        }
    }
}

/// Ends a container whose image has changed, so that it starts again from the other one, whatever its policy. It ends at
/// once: no status shows how long it has been told to stop.
fn replace(view: &mut ContainerView, script: &Script<'_>, now: Timestamp) {
    let is_killed = script.pre_stop.saturating_add(script.stop_time) > script.grace;
    container::stop(view, now, if is_killed { KILLED } else { script.stop_code }, true);
    if let ContainerState::Terminated(end) = &view.state {
        view.last = Some(Box::new(end.clone()));
        view.state = ContainerState::waiting(intern(REPLACED), None);
    }
}

fn run(view: &mut ContainerView, start: Timestamp, image: &InternedStr, crashes: u8) {
    (view.image, view.crashes) = (InternedStr::clone(image), crashes);
    view.state = ContainerState::Running { since: Some(start) };
}

/// Updates `started` and `ready` of a running container; returns the time of their next change.
fn update_readiness(
    view: &mut ContainerView,
    script: &Script<'_>,
    since: Timestamp,
    now: Timestamp,
) -> Option<Timestamp> {
    let started = time::after(since, script.started_after);
    let ready = script.ready_after.filter(|_| script.role != Role::Init);
    let ready = ready.map(|span| time::after(since, span));
    view.started = started <= now;
    view.ready = ready.is_some_and(|ready| ready <= now);
    [Some(started), ready].into_iter().flatten().filter(|at| now < *at).min()
}

fn end_of(script: &Script<'_>, crashes: u8, since: Timestamp, end: Option<Timestamp>) -> Terminated {
    let (exit_code, reason) = match (script.start_error, script.exit_reason) {
        (Some(_), _) => (START_ERROR_CODE, reasons::START_ERROR),
        (None, Some(reason)) => (script.exit_code, reason),
        (None, None) if script.exit_code == 0 => (0, reasons::COMPLETED),
        (None, None) => (script.exit_code, reasons::ERROR),
    };
    let (reason, started, finished) = (intern(reason), Some(since), end.map(to_seconds));
    Terminated { exit_code, crashes, reason, started, finished }
}

/// Records the end of a container: final, or followed by a restart.
fn ended(view: &mut ContainerView, script: &Script<'_>, end: Terminated) {
    view.started = false;
    if script.restarts_after(end.exit_code) {
        view.ready = false;
        let back_off = Some(back_off(&end));
        view.last = Some(Box::new(end));
        view.state = ContainerState::waiting(intern(reasons::CRASH_LOOP), back_off);
    } else {
        view.ready = script.role == Role::Init && end.exit_code == 0;
        view.state = ContainerState::Terminated(end);
    }
}

/// Back-off of a container that has ended: none the first time and after a long run.
fn back_off(end: &Terminated) -> Duration {
    let ran = end.started.zip(end.finished).map_or(Duration::ZERO, |(from, to)| time::passed(from, to));
    match end.crashes.min(MOST_CRASHES).checked_sub(1) {
        Some(doublings) if ran <= BACK_OFF_FORGOTTEN => {
            BACK_OFF_LONGEST.min(BACK_OFF_FIRST * (1 << doublings))
        }
        _ => Duration::ZERO,
    }
}

/// Waiting reason of a container whose image cannot be pulled since `from`, and the time of its next change.
fn pull(from: Timestamp, now: Timestamp) -> (InternedStr, Timestamp) {
    // `from` may be any time: the loop must not count a distant past back-off by back-off.
    let mut left = time::passed(from, now);
    let mut back_off = BACK_OFF_FIRST;
    while back_off <= left && back_off < BACK_OFF_LONGEST {
        left -= back_off;
        back_off = BACK_OFF_LONGEST.min(back_off * 2);
    }
    let left = Duration::from_nanos_u128(left.as_nanos() % back_off.as_nanos());
    let tried = time::before(now, left);
    if left < PULL_ERROR_SHOWN {
        (intern(reasons::PULL_FAILED), time::after(tried, PULL_ERROR_SHOWN))
    } else {
        (intern(reasons::PULL_BACK_OFF), time::after(tried, back_off))
    }
}
