//! Pod admission on a machine. The scheduler may have been mistaken, or a client has bound the pod directly,
//! so a kubelet checks again; order and messages are a kubelet's (pkg/kubelet/lifecycle/predicate.go).

use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;
use kube_node_api::Resources;
use kube_node_cache::{NodeTerm, PodSpecView, PodView, ResourceList, Toleration};
use kube_node_planner::label_map::LabelMap;

use super::preemption;

/// Operating system that hollow machines report.
const OS: &str = "linux";

/// Allocatable resources of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocatable {
    amounts: ResourceList,
    pods: i64,
}

impl Allocatable {
    /// Parses the allocatable resources of a Node.
    #[must_use]
    pub fn of(resources: &Resources) -> Self {
        // Parsed under another name than `pods`, so that it is counted in ones.
        let pods = ResourceList::of(resources.get("pods").map(|amount| ("count", amount.0.as_str())));
        Self {
            amounts: ResourceList::of(
                resources.iter().map(|(name, amount)| (name.as_str(), amount.0.as_str())),
            ),
            pods: pods.other("count").unwrap_or(0),
        }
    }

    /// Amount of a resource; None if the machine has no such resource.
    fn get(&self, resource: &str) -> Option<i64> {
        match resource {
            "pods" => Some(self.pods),
            other => amount(&self.amounts, other),
        }
    }
}

/// Amount of a resource; None if the list has no such resource.
fn amount(amounts: &ResourceList, resource: &str) -> Option<i64> {
    match resource {
        "cpu" => Some(amounts.milli_cpu),
        "memory" => Some(amounts.memory),
        "ephemeral-storage" => Some(amounts.ephemeral_storage),
        other => amounts.other(other),
    }
}

/// Amount of a resource that a pod takes.
pub fn taken(pod: &PodView, resource: &str) -> i64 {
    if resource == "pods" { 1 } else { amount(&pod.spec.requests, resource).unwrap_or(0) }
}

/// The machine to which a pod is bound.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// Labels of the Node.
    pub labels: &'a LabelMap,
    /// Taints of the Node.
    pub taints: &'a [Taint],
    /// Allocatable resources.
    pub allocatable: &'a Allocatable,
}

/// A pod admitted on the machine.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// The pod.
    pub pod: Arc<PodView>,
    /// True while the pod is being preempted.
    pub leaves: bool,
}

/// Result of pod admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pod may run.
    Admitted,
    /// The pod may not run.
    Rejected {
        /// Reason in one word.
        reason: String,
        /// Message.
        message: String,
        /// True if labels or taints of the Node are the cause, which the pod watch does not show.
        by_node: bool,
    },
    /// The pod may run once these pods (by UID) have been preempted.
    Preempts(Vec<Arc<str>>),
    /// The pod may run once the pods already being preempted are gone.
    Waits,
}

/// Shortage of a resource that a pod requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Name of the resource.
    pub resource: String,
    requested: i64,
    used: i64,
    capacity: i64,
}

impl Shortage {
    /// Missing amount.
    #[must_use]
    pub fn missing(&self) -> i64 {
        self.requested - (self.capacity - self.used)
    }
}

/// Decides whether `pod` may run beside `neighbours`.
#[must_use]
pub fn admit(pod: &PodView, machine: Machine<'_>, neighbours: &[Neighbour]) -> Verdict {
    if pod.spec.os.as_deref().is_some_and(|os| os != OS) {
        let message = "Failed to admit pod as the OS field doesn't match node OS".to_owned();
        return Verdict::Rejected { reason: "PodOSNotSupported".to_owned(), message, by_node: false };
    }
    let all: Vec<&PodView> = neighbours.iter().map(|neighbour| &*neighbour.pod).collect();
    let short = shortages(pod, machine.allocatable, &all);
    let unfit = unfit(&pod.spec, machine).map(|(predicate, words)| Verdict::Rejected {
        reason: predicate.to_owned(),
        message: format!("Predicate {predicate} failed: {words}"),
        by_node: true,
    });
    // A critical pod is not rejected for lack of resources.
    if pod.is_critical() && !short.is_empty() {
        return unfit.unwrap_or_else(|| preempted(pod, machine.allocatable, neighbours));
    }
    let Some(Shortage { resource, requested, used, capacity }) = short.first() else {
        return unfit.unwrap_or(Verdict::Admitted);
    };
    Verdict::Rejected {
        reason: format!("OutOf{resource}"),
        message: format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        ),
        by_node: false,
    }
}

/// Preempts pods for a critical pod.
fn preempted(pod: &PodView, allocatable: &Allocatable, neighbours: &[Neighbour]) -> Verdict {
    let stays: Vec<&PodView> =
        neighbours.iter().filter(|neighbour| !neighbour.leaves).map(|neighbour| &*neighbour.pod).collect();
    let short = shortages(pod, allocatable, &stays);
    if short.is_empty() {
        return Verdict::Waits;
    }
    match preemption::victims(pod, &stays, &short) {
        Ok(victims) => Verdict::Preempts(victims),
        Err(error) => Verdict::Rejected {
            reason: "UnexpectedAdmissionError".to_owned(),
            message: format!("Unexpected error while attempting to recover from admission failure: {error}"),
            by_node: false,
        },
    }
}

/// Resources of which too little is left.
fn shortages(pod: &PodView, allocatable: &Allocatable, neighbours: &[&PodView]) -> Vec<Shortage> {
    let others = pod.spec.requests.others.iter().map(|(name, _)| &**name);
    let names = ["pods", "cpu", "memory", "ephemeral-storage"].into_iter().chain(others);
    names
        .filter_map(|resource| {
            let capacity = allocatable.get(resource);
            // A kubelet leaves extended resources that it does not know to other components.
            if capacity.is_none() && is_extended(resource) {
                return None;
            }
            let (requested, capacity) = (taken(pod, resource), capacity.unwrap_or(0));
            let used = neighbours.iter().map(|other| taken(other, resource)).fold(0, i64::saturating_add);
            let fits = requested <= 0 || requested <= capacity.saturating_sub(used);
            (!fits).then(|| Shortage { resource: resource.to_owned(), requested, used, capacity })
        })
        .collect()
}

/// Returns true for an extended resource, which is not one of Kubernetes.
fn is_extended(resource: &str) -> bool {
    resource.contains('/') && !resource.contains("kubernetes.io/")
}

/// Predicate that the Node fails for the pod, with its message.
fn unfit(pod: &PodSpecView, machine: Machine<'_>) -> Option<(&'static str, &'static str)> {
    if !likes(pod, machine.labels) {
        return Some(("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"));
    }
    let is_tolerated = |taint: &Taint| pod.tolerations.iter().any(|toleration| tolerates(toleration, taint));
    let mut lasting = machine.taints.iter().filter(|taint| taint.effect == "NoExecute");
    (!lasting.all(is_tolerated))
        .then_some(("TaintToleration", "node(s) had taints that the pod didn't tolerate"))
}

fn likes(pod: &PodSpecView, labels: &LabelMap) -> bool {
    let selected = pod.node_selector.iter().all(|(key, wanted)| labels.get(key) == Some(&**wanted));
    let matches = |term: &NodeTerm| {
        term.possible
            && term.labels.iter().all(|requirement| requirement.matches(labels.get(&requirement.key)))
    };
    selected && pod.node_terms.as_ref().is_none_or(|terms| terms.iter().any(matches))
}

fn tolerates(Toleration { key, operator, value, effect }: &Toleration, taint: &Taint) -> bool {
    (effect.is_empty() || **effect == *taint.effect)
        && (key.is_empty() || **key == *taint.key)
        && match &**operator {
            "Exists" => true,
            "" | "Equal" => **value == *taint.value.as_deref().unwrap_or_default(),
            _ => false,
        }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
