//! Events that a kubelet records for a step of a pod, with its reasons and messages
//! (pkg/kubelet/events/event.go).

use kube_node_api::{ContainerDefaults, GoDuration};
use kube_node_cache::{Container, ContainerState, ContainerView, InternedStr, PodView};

use super::{
    Step, Why, has_begun, is_unknown,
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

/// Events of a step of `pod`.
#[must_use]
pub fn of(pod: &PodView, step: &Step, defaults: &ContainerDefaults) -> Vec<PendingEvent> {
    let mut notes = Vec::new();
    match &step.why {
        Some(why @ Why::Deadline) => notes.push(of_pod(false, why.said().0, &why.said().1)),
        Some(why @ Why::Preempted) => notes.push(of_pod(true, why.said().0, &why.said().1)),
        Some(Why::Rejected { reason, message }) => notes.push(of_pod(true, reason, message)),
        None => {}
    }
    if step.sandbox_changed {
        // One event per boot. The containers restart with each boot, so their restarts give the count.
        let status = step.status.as_ref().unwrap_or(&pod.status);
        let all = status.init_containers.iter().chain(&status.containers);
        let count = all.map(|view| view.restarts).max().unwrap_or_default().max(1);
        notes.push(PendingEvent {
            count,
            ..of_pod(false, SANDBOX_CHANGED, "Pod sandbox changed, it will be killed and re-created.")
        });
    }
    let (before, now) = (&pod.status, step.status.as_ref().unwrap_or(&pod.status));
    let all = [
        (true, &pod.spec.init_containers, &before.init_containers, &now.init_containers),
        (false, &pod.spec.containers, &before.containers, &now.containers),
    ];
    for (is_init, specs, before, now) in all {
        for spec in specs {
            let of_it = |views: &'_ [ContainerView]| views.iter().position(|view| view.name == spec.name);
            let old = of_it(before).map(|at| &before[at]);
            let role = if is_init { Role::of_init(spec) } else { Role::Regular };
            let teller = Teller { pod, spec, script: Script::of(&pod.spec, spec, role, defaults), is_init };
            if step.stopping && old.is_some_and(is_running) {
                notes.push(teller.killing());
            } else if let Some(new) = of_it(now).map(|at| &now[at]) {
                teller.changed(old, new, &mut notes);
            }
        }
    }
    notes
}

fn is_running(container: &ContainerView) -> bool {
    matches!(container.state, ContainerState::Running { .. })
}

fn is_ended(container: &ContainerView) -> bool {
    matches!(container.state, ContainerState::Ended(_))
}

/// Event about a whole pod.
#[must_use]
pub fn of_pod(warns: bool, reason: &str, message: &str) -> PendingEvent {
    PendingEvent { warns, reason: reason.to_owned(), message: message.to_owned(), container: None, count: 1 }
}

/// Builder of the events about one container.
struct Teller<'a> {
    pod: &'a PodView,
    spec: &'a Container,
    script: Script<'a>,
    is_init: bool,
}

impl Teller<'_> {
    fn note(&self, warns: bool, reason: &str, message: String, count: i32) -> PendingEvent {
        let container = Some((InternedStr::clone(&self.spec.name), self.is_init));
        PendingEvent { warns, reason: reason.to_owned(), message, container, count }
    }

    fn killing(&self) -> PendingEvent {
        self.note(false, "Killing", format!("Stopping container {}", self.spec.name), 1)
    }

    fn changed(&self, old: Option<&ContainerView>, new: &ContainerView, notes: &mut Vec<PendingEvent>) {
        let (spec, script) = (self.spec, &self.script);
        let image = &spec.image;
        let had_begun = old.is_some_and(has_begun);
        let runs = new.restarts.saturating_add(1);
        // A sidecar ends for good once all regular containers have ended.
        if script.role == Role::Sidecar && old.is_some_and(is_running) && is_ended(new) {
            notes.push(self.killing());
        }
        if has_begun(new)
            && !is_unknown(new)
            && (!had_begun || old.is_some_and(|old| old.restarts < new.restarts))
        {
            let pulled = if !had_begun && !script.start_time.is_zero() {
                let time = GoDuration(script.start_time);
                notes.push(self.note(false, "Pulling", format!("Pulling image {image:?}"), 1));
                format!(
                    "Successfully pulled image {image:?} in {time} ({time} including waiting). Image size: 0 bytes."
                )
            } else {
                format!("Container image {image:?} already present on machine")
            };
            notes.push(self.note(false, "Pulled", pulled, runs));
            notes.push(self.note(false, "Created", "Container created".to_owned(), runs));
            notes.push(match script.start_error {
                Some(error) => self.note(true, "Failed", format!("Error: {error}"), runs),
                None => self.note(false, "Started", "Container started".to_owned(), runs),
            });
        }
        let ContainerState::Waiting { reason, .. } = &new.state else { return };
        let is_new = old.is_none_or(|old| old.state != new.state || old.restarts != new.restarts);
        match &**reason {
            _ if !is_new => {}
            reasons::CRASH_LOOP => {
                let (name, pod) = (&spec.name, full_name(self.pod));
                let message = format!("Back-off restarting failed container {name} in pod {pod}");
                notes.push(self.note(true, "BackOff", message, new.restarts.max(1)));
            }
            reasons::PULL_FAILED => {
                let error = script.image_error.unwrap_or_default();
                notes.push(self.note(false, "Pulling", format!("Pulling image {image:?}"), 1));
                notes.push(self.note(true, "Failed", format!("Failed to pull image {image:?}: {error}"), 1));
                notes.push(self.note(true, "Failed", format!("Error: {reason}"), 1));
            }
            reasons::PULL_BACK_OFF => {
                notes.push(self.note(false, "BackOff", format!("Back-off pulling image {image:?}"), 1));
                notes.push(self.note(true, "Failed", format!("Error: {reason}"), 1));
            }
            _ => {}
        }
    }
}
