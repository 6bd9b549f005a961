//! Pod conditions that a kubelet sets, in its order and with its messages (pkg/kubelet/status/generate.go).

use jiff::Timestamp;
use kube_node_cache::{ContainerView, PodCondition, PodStatus, PodView, intern};

use super::{
    FailureReason,
    container::{all, has_begun, is_unknown, needs_sandbox},
    is_over,
    reboot::RebootState,
};

/// Conditions that a kubelet sets, in its order.
pub const CONDITIONS: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
/// Condition of a pod that is being taken away; other components than its kubelet set it too.
const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// Reason of that condition when the kubelet sets it.
const BY_KUBELET: &str = "TerminationByKubelet";
/// Reasons of conditions that are False.
const NOT_READY: &str = "ContainersNotReady";
const NOT_INITIALIZED: &str = "ContainersNotInitialized";
const GATES_NOT_READY: &str = "ReadinessGatesNotReady";

/// Returns true if the kubelet writes the condition.
pub fn is_ours(condition: &PodCondition) -> bool {
    CONDITIONS.contains(&&*condition.r#type)
        || (&*condition.r#type == DISRUPTION_TARGET && &*condition.reason == BY_KUBELET)
}

/// Conditions of other types than a kubelet's.
pub fn of_others(status: &PodStatus) -> impl Iterator<Item = &PodCondition> {
    status.conditions.iter().filter(|condition| !CONDITIONS.contains(&&*condition.r#type))
}

/// Adds the kubelet's conditions that follow from `status`, after the conditions of other writers.
pub fn with_conditions(
    pod: &PodView,
    mut status: PodStatus,
    (failure, reboot): (Option<&FailureReason>, Option<RebootState>),
    second: Timestamp,
) -> PodStatus {
    let is_over = is_over(&status);
    let over = match &*status.phase {
        "Succeeded" => Some("PodCompleted"),
        // A pod with containers that were never created keeps the reasons from before its end.
        "Failed" if failure.is_some() || !status.containers.iter().any(is_unknown) => Some("PodFailed"),
        _ => None,
    };
    let succeeded = over.filter(|_| &*status.phase == "Succeeded");
    let is_ready = !is_over && unready(pod, &status).is_empty();
    // A lost sandbox takes with it everything that was done in it.
    let is_stale = |view: &ContainerView| reboot.is_some_and(|reboot| reboot.is_stale(view));
    let was_initialized = match reboot {
        Some(reboot) => reboot.has_begun(status.containers.iter()),
        None => status.has("Initialized") || status.containers.iter().any(has_begun),
    };
    let is_initialized = succeeded.is_some() || was_initialized || incomplete(pod, &status).is_empty();
    let mut gates = pod.spec.readiness_gates.iter();
    let unready = over.unwrap_or(NOT_READY);
    let ours = CONDITIONS.map(|r#type| {
        // True if the condition is True, and the reason of that value.
        let (holds, reason) = match r#type {
            "PodReadyToStartContainers" => {
                (!is_over && all(&status).any(|view| needs_sandbox(view) && !is_stale(view)), "")
            }
            "Initialized" if is_initialized => (true, succeeded.unwrap_or("")),
            "Initialized" => (false, NOT_INITIALIZED),
            "ContainersReady" if is_ready => (true, ""),
            "Ready" if is_ready && gates.all(|gate| status.has(gate)) => (true, ""),
            "Ready" if is_ready => (false, GATES_NOT_READY),
            "ContainersReady" | "Ready" => (false, unready),
            _ => (true, ""),
        };
        let value = if holds { "True" } else { "False" };
        condition(pod, &status, (r#type, value, reason), second)
    });
    let target = (failure == Some(&FailureReason::Preempted))
        .then(|| condition(pod, &status, (DISRUPTION_TARGET, "True", BY_KUBELET), second));
    let others =
        of_others(&status).filter(|other| target.as_ref().is_none_or(|own| own.r#type != other.r#type));
    status.conditions = others.cloned().chain(target.clone()).chain(ours).collect();
    status.observed_generation = pod.generation;
    status
}

fn condition(
    pod: &PodView,
    before: &PodStatus,
    (r#type, status, reason): (&str, &str, &str),
    second: Timestamp,
) -> PodCondition {
    let before = before.condition(r#type).filter(|before| &*before.status == status);
    PodCondition {
        r#type: intern(r#type),
        status: intern(status),
        reason: intern(reason),
        observed_generation: pod.generation,
        since: before.and_then(|before| before.since).or(Some(second)),
    }
}

/// Message of a condition.
pub fn message(pod: &PodView, status: &PodStatus, condition: &PodCondition) -> Option<String> {
    match &*condition.reason {
        NOT_READY => Some(format!("containers with unready status: [{}]", unready(pod, status).join(" "))),
        NOT_INITIALIZED => {
            Some(format!("containers with incomplete status: [{}]", incomplete(pod, status).join(" ")))
        }
        GATES_NOT_READY => {
            let closed = pod.spec.readiness_gates.iter().filter(|gate| !status.has(gate));
            let closed = closed.map(|gate| match status.condition(gate) {
                None => format!("corresponding condition of pod readiness gate {gate:?} does not exist."),
                Some(PodCondition { status, .. }) => {
                    format!("the status of pod readiness gate {gate:?} is not \"True\", but {status}")
                }
            });
            Some(closed.collect::<Vec<_>>().join(", "))
        }
        BY_KUBELET => Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned()),
        _ => None,
    }
}

/// Containers that are not ready, sidecars first.
fn unready<'a>(pod: &PodView, status: &'a PodStatus) -> Vec<&'a str> {
    let sidecars = status.init_containers.iter().zip(&pod.spec.init_containers);
    let sidecars = sidecars.filter(|(_, spec)| spec.is_sidecar()).map(|(view, _)| view);
    sidecars.chain(&status.containers).filter(|view| !view.ready).map(|view| &*view.name).collect()
}

/// Init containers for which others wait.
fn incomplete<'a>(pod: &PodView, status: &'a PodStatus) -> Vec<&'a str> {
    let inits = status.init_containers.iter().zip(&pod.spec.init_containers);
    let waits = inits.filter(|(view, spec)| if spec.is_sidecar() { !view.started } else { !view.ready });
    waits.map(|(view, _)| &*view.name).collect()
}
