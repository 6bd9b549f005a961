//! Pod admission on a node. The scheduler may have been mistaken, or a client has bound the pod directly,
//! so a kubelet checks again; order and messages are a kubelet's (pkg/kubelet/lifecycle/predicate.go).

use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;
use kube_node_api::label_map::LabelMap;
use kube_node_cache::{NodeSelectorTerm, PodSpecView, PodView, Toleration};

use super::{
    allocatable::{Allocatable, Shortage, shortages},
    preemption,
};

/// Operating system of a Node without the label.
const OS: &str = "linux";

/// The Node to which a pod is bound.
#[derive(Clone, Copy, Debug)]
pub struct NodeInfo<'a> {
    /// Labels of the Node.
    pub labels: &'a LabelMap,
    /// Taints of the Node.
    pub taints: &'a [Taint],
    /// Allocatable resources.
    pub allocatable: &'a Allocatable,
}

/// A pod admitted on the node.
pub struct AdmittedPod {
    /// The pod.
    pub pod: Arc<PodView>,
    /// True while the pod is being preempted.
    pub is_preempted: bool,
}

/// Result of pod admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmitResult {
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

/// Decides whether `pod` may run beside `others`.
pub fn admit(pod: &PodView, node: NodeInfo<'_>, others: &[AdmittedPod]) -> AdmitResult {
    let os = node.labels.get("kubernetes.io/os").unwrap_or(OS);
    if pod.spec.os.as_deref().is_some_and(|wanted| wanted != os) {
        let message = "Failed to admit pod as the OS field doesn't match node OS".to_owned();
        return rejected("PodOSNotSupported".to_owned(), message);
    }
    let all: Vec<&PodView> = others.iter().map(|other| &*other.pod).collect();
    let short = shortages(pod, node.allocatable, &all);
    let unfit = unfit(&pod.spec, node).map(|(predicate, message)| AdmitResult::Rejected {
        reason: predicate.to_owned(),
        message: format!("Predicate {predicate} failed: {message}"),
        by_node: true,
    });
    // A critical pod is not rejected for lack of resources.
    if pod.is_critical() && !short.is_empty() {
        return unfit.unwrap_or_else(|| preempted(pod, node.allocatable, others));
    }
    let Some(Shortage { resource, requested, used, capacity }) = short.first() else {
        return unfit.unwrap_or(AdmitResult::Admitted);
    };
    let message = format!(
        "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
    );
    rejected(format!("OutOf{resource}"), message)
}

/// A rejection for a cause that the Node in the cache cannot change.
fn rejected(reason: String, message: String) -> AdmitResult {
    AdmitResult::Rejected { reason, message, by_node: false }
}

/// Preempts pods for a critical pod.
fn preempted(pod: &PodView, allocatable: &Allocatable, others: &[AdmittedPod]) -> AdmitResult {
    let stays: Vec<&PodView> =
        others.iter().filter(|other| !other.is_preempted).map(|other| &*other.pod).collect();
    let short = shortages(pod, allocatable, &stays);
    if short.is_empty() {
        return AdmitResult::Waits;
    }
    match preemption::victims(pod, &stays, &short) {
        Ok(victims) => AdmitResult::Preempts(victims),
        Err(error) => rejected(
            "UnexpectedAdmissionError".to_owned(),
            format!("Unexpected error while attempting to recover from admission failure: {error}"),
        ),
    }
}

/// Predicate that the Node fails for the pod, with its message.
fn unfit(pod: &PodSpecView, node: NodeInfo<'_>) -> Option<(&'static str, &'static str)> {
    if !matches_affinity(pod, node.labels) {
        return Some(("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"));
    }
    let is_tolerated = |taint: &Taint| pod.tolerations.iter().any(|toleration| tolerates(toleration, taint));
    let mut lasting = node.taints.iter().filter(|taint| taint.effect == "NoExecute");
    (!lasting.all(is_tolerated))
        .then_some(("TaintToleration", "node(s) had taints that the pod didn't tolerate"))
}

fn matches_affinity(pod: &PodSpecView, labels: &LabelMap) -> bool {
    let selected = pod.node_selector.iter().all(|(key, wanted)| labels.get(key) == Some(&**wanted));
    let matches = |term: &NodeSelectorTerm| {
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
