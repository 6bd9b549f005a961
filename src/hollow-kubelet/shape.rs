//! Properties that all machines of one revision share, and the sharing of equal values.

use std::{borrow::Cow, sync::Arc};

use kube_node_api::Resources;
use kube_node_cache::NodeView;

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

impl Shape {
    /// Allocatable resources for pod admission, with those that other clients have added to the Node.
    pub fn allocatable_on(&self, node: &NodeView) -> Cow<'_, Allocatable> {
        let shown = node.amounts.iter().flat_map(|amounts| &amounts.allocatable);
        let mut added = shown.filter(|(name, _)| !self.capacity.contains_key(*name)).peekable();
        if added.peek().is_none() {
            return Cow::Borrowed(&self.parsed);
        }
        Cow::Owned(self.parsed.with(added.map(|(name, amount)| (&**name, &*amount.text))))
    }
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
