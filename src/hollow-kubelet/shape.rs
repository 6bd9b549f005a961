//! Properties that all machines of one revision share.

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
