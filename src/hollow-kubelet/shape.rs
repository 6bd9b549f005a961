//! Properties that all machines of one revision share, and the sharing of equal values.

use std::sync::Arc;

use kube_node_api::Resources;

use super::pod::allocatable::Allocatable;

/// Properties of all machines of one revision, shared between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Capacity of the Node.
    pub capacity: Resources,
    /// Allocatable resources of the Node.
    pub allocatable: Resources,
    /// Allocatable resources in the form that pod admission counts with.
    pub parsed: Allocatable,
    /// Kubelet version.
    pub kubelet_version: String,
    /// Name and version of the container runtime.
    pub container_runtime: String,
}

/// `value` as an `Arc` shared by all owners of an equal one. Few differ: one per revision and per class.
pub fn shared<T: PartialEq>(pool: &mut Vec<Arc<T>>, value: T) -> Arc<T> {
    if let Some(known) = pool.iter().find(|known| ***known == value) {
        return Arc::clone(known);
    }
    pool.retain(|known| Arc::strong_count(known) > 1);
    let new = Arc::new(value);
    pool.push(Arc::clone(&new));
    new
}
