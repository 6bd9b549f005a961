//! Allocatable resources of a machine, and the shortages when one more pod is to run on it.

use kube_node_api::Resources;
use kube_node_cache::{PodView, ResourceList};

/// Name of the number of pods in a resource list. No resource outside the domain of Kubernetes has such a name.
const PODS: &str = "count";

/// Allocatable resources of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocatable(ResourceList);

impl Allocatable {
    /// Parses the allocatable resources of a Node.
    pub fn of(resources: &Resources) -> Self {
        // A resource list has no pods, which are therefore counted under another name.
        let name = |name| if name == "pods" { PODS } else { name };
        Self(ResourceList::of(
            resources.iter().map(|(resource, amount)| (name(resource.as_str()), amount.0.as_str())),
        ))
    }

    /// Allocatable resources with `added` ones, which the machine does not have by itself.
    pub fn with<'a>(&self, added: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(self.0.plus(&ResourceList::of(added)))
    }
}

/// Amount of a resource; None if the list has no such resource.
fn amount(amounts: &ResourceList, resource: &str) -> Option<i64> {
    match resource {
        "cpu" => Some(amounts.milli_cpu),
        "memory" => Some(amounts.memory),
        "ephemeral-storage" => Some(amounts.ephemeral_storage),
        "pods" => amounts.other(PODS),
        other => amounts.other(other),
    }
}

/// Amount of a resource that a pod takes.
pub fn request_of(pod: &PodView, resource: &str) -> i64 {
    if resource == "pods" { 1 } else { amount(&pod.spec.requests, resource).unwrap_or(0) }
}

/// Shortage of a resource that a pod requests.
pub struct Shortage {
    /// Name of the resource.
    pub resource: String,
    /// Amount that the pod requests.
    pub requested: i64,
    /// Amount that other pods use.
    pub used: i64,
    /// Amount that the machine has.
    pub capacity: i64,
}

impl Shortage {
    /// Missing amount.
    pub fn missing(&self) -> i64 {
        self.requested - (self.capacity - self.used)
    }
}

/// Resources of which too little is left.
pub fn shortages(pod: &PodView, allocatable: &Allocatable, others: &[&PodView]) -> Vec<Shortage> {
    let extended = pod.spec.requests.others.iter().map(|(name, _)| &**name);
    let names = ["pods", "cpu", "memory", "ephemeral-storage"].into_iter().chain(extended);
    names
        .filter_map(|resource| {
            let capacity = amount(&allocatable.0, resource);
            // A kubelet leaves extended resources that it does not know to other components.
            if capacity.is_none() && is_extended(resource) {
                return None;
            }
            let (requested, capacity) = (request_of(pod, resource), capacity.unwrap_or(0));
            let used = others.iter().map(|other| request_of(other, resource)).fold(0, i64::saturating_add);
            let fits = requested <= 0 || requested <= capacity.saturating_sub(used);
            (!fits).then(|| Shortage { resource: resource.to_owned(), requested, used, capacity })
        })
        .collect()
}

/// Returns true for an extended resource, which is not one of Kubernetes.
pub fn is_extended(resource: &str) -> bool {
    resource.contains('/') && !resource.contains("kubernetes.io/")
}
