//! Events that a kubelet records for a result of a pod, with its reasons and messages
//! (pkg/kubelet/events/event.go).

use kube_node_api::{ContainerDefaults, GoDuration};
use kube_node_cache::{CONFIG_ERROR, Container, ContainerState, ContainerView, InternedStr, PodView};

use super::{
    FailureReason, Stopping, SyncResult,
    container::{self, has_begun, is_running, is_unknown},
    output::{Found, containers},
    patch::full_name,
    reasons,
    script::{Role, Script},
};

/// Event reason for a pod whose sandbox was lost.
const SANDBOX_CHANGED: &str = "SandboxChanged";
/// Event reason for a container that is told to stop.
const KILLING: &str = "Killing";

/// An event to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingEvent {
    /// True for a warning.
    pub warns: bool,
    /// Reason of the event.
    pub reason: String,
    /// Message of the event.
    pub message: String,
    /// Container that the event is about, and true if it is an init container.
    pub container: Option<(InternedStr, bool)>,
    /// Number of occurrences, this one included.
    pub count: i32,
}

/// Events of a result of `pod`.
pub fn of(pod: &PodView, result: &SyncResult, defaults: &ContainerDefaults) -> Vec<PendingEvent> {
    let mut events = Vec::new();
    match &result.failure {
        Some(FailureReason::Rejected { reason, message }) => events.push(of_pod(true, reason, message)),
        Some(failure) => {
            let (reason, message) = failure.reason_and_message();
            events.push(of_pod(*failure == FailureReason::Preempted, reason, message));
        }
        None => {}
    }
    events.extend(result.missing.iter().cloned());
    let now = result.status.as_ref().unwrap_or(&pod.status);
    if result.sandbox_changed {
        // One event per boot. The containers restart with each boot, so their restarts give the count.
        let count = container::all(now).map(|view| view.restarts).max().unwrap_or_default().max(1);
        events.push(PendingEvent {
            count,
            ..of_pod(false, SANDBOX_CHANGED, "Pod sandbox changed, it will be killed and re-created.")
        });
    }
    for Found { spec, role, view: old } in containers(pod) {
        let is_init = role != Role::Regular;
        let views = if is_init { &now.init_containers } else { &now.containers };
        let add = |warns, reason: &str, message: String, count| {
            let container = Some((InternedStr::clone(&spec.name), is_init));
            events.push(PendingEvent { container, count, ..of_pod(warns, reason, message) });
        };
        let is_told = match result.stopping {
            Stopping::Nothing => false,
            Stopping::Sidecars => role == Role::Sidecar,
            Stopping::All => true,
        };
        if is_told && old.is_some_and(is_running) {
            let message = format!("Stopping container {}", spec.name);
            events.push(PendingEvent {
                container: Some((InternedStr::clone(&spec.name), is_init)),
                ..of_pod(false, KILLING, message)
            });
        } else if let Some(new) = views.iter().find(|view| view.name == spec.name) {
            let script = Script::of(&pod.spec, spec, role, defaults);
            changed(pod, (spec, &script), (old, new), add);
        }
    }
    events
}

/// Event about a whole pod.
pub fn of_pod(warns: bool, reason: &str, message: impl Into<String>) -> PendingEvent {
    PendingEvent { warns, reason: reason.to_owned(), message: message.into(), container: None, count: 1 }
}

/// Adds the events about a container whose status changes from `old` to `new`.
fn changed(
    pod: &PodView,
    (spec, script): (&Container, &Script<'_>),
    (old, new): (Option<&ContainerView>, &ContainerView),
    mut add: impl FnMut(bool, &str, String, i32),
) {
    let image = &spec.image;
    let had_begun = old.is_some_and(has_begun);
    let has_other_image = had_begun && old.is_some_and(|old| old.image != new.image);
    let runs = new.restarts.saturating_add(1);
    if has_other_image && old.is_some_and(is_running) {
        let message = if script.role == Role::Sidecar {
            format!("Init container {} definition changed", spec.name)
        } else {
            format!("Container {} definition changed, will be restarted", spec.name)
        };
        add(false, KILLING, message, 1);
    }
    if has_begun(new)
        && !is_unknown(new)
        && (!had_begun || old.is_some_and(|old| old.restarts < new.restarts))
    {
        pulled(image, script, if !had_begun || has_other_image { 1 } else { runs }, &mut add);
        add(false, "Created", "Container created".to_owned(), runs);
        match script.start_error {
            Some(error) => add(true, "Failed", format!("Error: {error}"), runs),
            None => add(false, "Started", "Container started".to_owned(), runs),
        }
    }
    let ContainerState::Waiting { reason, .. } = &new.state else { return };
    if old.is_some_and(|old| old.state == new.state && old.restarts == new.restarts) {
        return;
    }
    match &**reason {
        reasons::CRASH_LOOP => {
            let (name, pod) = (&spec.name, full_name(pod));
            let message = format!("Back-off restarting failed container {name} in pod {pod}");
            add(true, "BackOff", message, new.restarts.max(1));
        }
        CONFIG_ERROR => pulled(image, script, 1, &mut add),
        reasons::PULL_FAILED => {
            let error = script.image_error.unwrap_or_default();
            add(false, "Pulling", format!("Pulling image {image:?}"), 1);
            add(true, "Failed", format!("Failed to pull image {image:?}: {error}"), 1);
            add(true, "Failed", format!("Error: {reason}"), 1);
        }
        reasons::PULL_BACK_OFF => {
            add(false, "BackOff", format!("Back-off pulling image {image:?}"), 1);
            add(true, "Failed", format!("Error: {reason}"), 1);
        }
        _ => {}
    }
}

/// Adds the events about the image of a container that is about to start for this time.
fn pulled(image: &str, script: &Script<'_>, time: i32, mut add: impl FnMut(bool, &str, String, i32)) {
    let message = if time == 1 && !script.start_time.is_zero() {
        let took = GoDuration(script.start_time);
        add(false, "Pulling", format!("Pulling image {image:?}"), 1);
        format!(
            "Successfully pulled image {image:?} in {took} ({took} including waiting). Image size: 0 bytes."
        )
    } else {
        format!("Container image {image:?} already present on machine")
    };
    add(false, "Pulled", message, time);
}
