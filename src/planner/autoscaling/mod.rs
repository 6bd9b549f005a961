//! NodeSets as node groups of cluster-autoscaler: pure decisions over observed state.
//!
//! - A set with `spec.autoscaling` is a node group of the same name. Each of its Nodes is an instance,
//!   identified by its providerID byte for byte.
//! - A scale request is one write of the set: the replicas together with the UIDs of the victims ([`ReplicaChange`]). There
//!   is no moment between «smaller» and «these Nodes», so no other Node is deleted and none is created in their place.
//! - Scale requests respect the bounds of the set; a repeated request changes nothing.
//! - A write counts before the watch shows it. A write with an unknown outcome is settled before the set is
//!   used again ([`WriteCache`], [`ScaleRequest`]).

mod instance;
mod price;
mod refusal;
mod scale_request;
mod sizing;
mod template;
mod write_cache;

pub use crate::node_builder::Blueprint;
pub use instance::{
    GroupNode, Instance, InstanceState, Rolling, Trouble, instances, placeholder_group, serving, staying,
    target_size,
};
pub use price::{ClassPrice, HOUR, hours, least_pod_price, node_price};
pub use refusal::{Code, ScaleRefusal};
pub use scale_request::{ApiCall, ApiResponse, ScaleFailure, ScaleRequest, ScaleStep};
pub use sizing::{NodeRef, ReplicaChange, VictimState, decrease, delete, increase, resolve};
pub use template::{gpu_types, node};
pub use write_cache::{MOST_VICTIMS, SetSnapshot, WriteCache, record, victims};

/// Label with the GPU type of a Node: cluster-autoscaler waits for the GPU of a Node with this label. The
/// label is our own, for templates of node groups only: while a Node outside all groups has it and no GPU,
/// cluster-autoscaler scales nothing at all. Nodes exist before they report resources, so a common label,
/// which any set may use, would cause that.
pub const GPU_LABEL: &str = "autoscaler.kube-node.io/gpu";

/// Minimum and maximum replicas of a node group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Minimum.
    pub min: i32,
    /// Maximum.
    pub max: i32,
}

#[cfg(test)]
mod tests;
