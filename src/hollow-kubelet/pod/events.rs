//! Events that a kubelet records for a result of a pod, with its reasons and messages
//! (pkg/kubelet/events/event.go).

use kube_node_api::{ContainerDefaults, GoDuration};
use kube_node_cache::{Container, ContainerState, ContainerView, InternedStr, PodView};

use super::{
    FailureReason, SyncResult,
    container::{self, has_begun, is_running, is_unknown},
    output::{Found, containers},
    patch::full_name,
    reasons,
    script::{Role, Script},
};

/// Event reason for a pod whose sandbox was lost.
const SANDBOX_CHANGED: &str = "SandboxChanged";

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
            events.push(of_pod(*failure == FailureReason::Preempted, reason, &message));
        }
        None => {}
    }
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
        let script = Script::of(&pod.spec, spec, role, defaults);
        let container = ContainerEvents { pod, spec, script, is_init };
        if result.stopping && old.is_some_and(is_running) {
            events.push(container.killing());
        } else if let Some(new) = views.iter().find(|view| view.name == spec.name) {
            container.changed(old, new, &mut events);
        }
    }
    events
}

fn is_ended(container: &ContainerView) -> bool {
    matches!(container.state, ContainerState::Ended(_))
}

/// Event about a whole pod.
pub fn of_pod(warns: bool, reason: &str, message: &str) -> PendingEvent {
    PendingEvent { warns, reason: reason.to_owned(), message: message.to_owned(), container: None, count: 1 }
}

/// Builder of the events about one container.
struct ContainerEvents<'a> {
    pod: &'a PodView,
    spec: &'a Container,
    script: Script<'a>,
    is_init: bool,
}

impl ContainerEvents<'_> {
    fn event(&self, warns: bool, reason: &str, message: String, count: i32) -> PendingEvent {
        let container = Some((InternedStr::clone(&self.spec.name), self.is_init));
        PendingEvent { warns, reason: reason.to_owned(), message, container, count }
    }

    fn killing(&self) -> PendingEvent {
        self.event(false, "Killing", format!("Stopping container {}", self.spec.name), 1)
    }

    fn changed(&self, old: Option<&ContainerView>, new: &ContainerView, events: &mut Vec<PendingEvent>) {
        let (spec, script) = (self.spec, &self.script);
        let image = &spec.image;
        let had_begun = old.is_some_and(has_begun);
        let runs = new.restarts.saturating_add(1);
        // A sidecar ends for good once all regular containers have ended.
        if script.role == Role::Sidecar && old.is_some_and(is_running) && is_ended(new) {
            events.push(self.killing());
        }
        if has_begun(new)
            && !is_unknown(new)
            && (!had_begun || old.is_some_and(|old| old.restarts < new.restarts))
        {
            let pulled = if !had_begun && !script.start_time.is_zero() {
                let time = GoDuration(script.start_time);
                events.push(self.event(false, "Pulling", format!("Pulling image {image:?}"), 1));
                format!(
                    "Successfully pulled image {image:?} in {time} ({time} including waiting). Image size: 0 bytes."
                )
            } else {
                format!("Container image {image:?} already present on machine")
            };
            events.push(self.event(false, "Pulled", pulled, runs));
            events.push(self.event(false, "Created", "Container created".to_owned(), runs));
            events.push(match script.start_error {
                Some(error) => self.event(true, "Failed", format!("Error: {error}"), runs),
                None => self.event(false, "Started", "Container started".to_owned(), runs),
            });
        }
        let ContainerState::Waiting { reason, .. } = &new.state else { return };
        let is_new = old.is_none_or(|old| old.state != new.state || old.restarts != new.restarts);
        match &**reason {
            _ if !is_new => {}
            reasons::CRASH_LOOP => {
                let (name, pod) = (&spec.name, full_name(self.pod));
                let message = format!("Back-off restarting failed container {name} in pod {pod}");
                events.push(self.event(true, "BackOff", message, new.restarts.max(1)));
            }
            reasons::PULL_FAILED => {
                let error = script.image_error.unwrap_or_default();
                events.push(self.event(false, "Pulling", format!("Pulling image {image:?}"), 1));
                events.push(self.event(
                    true,
                    "Failed",
                    format!("Failed to pull image {image:?}: {error}"),
                    1,
                ));
                events.push(self.event(true, "Failed", format!("Error: {reason}"), 1));
            }
            reasons::PULL_BACK_OFF => {
                events.push(self.event(false, "BackOff", format!("Back-off pulling image {image:?}"), 1));
                events.push(self.event(true, "Failed", format!("Error: {reason}"), 1));
            }
            _ => {}
        }
    }
}
