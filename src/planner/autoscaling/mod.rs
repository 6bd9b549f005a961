//! What cluster-autoscaler is told of NodeSets, and what its orders come to: pure decisions over what is known.
//!
//! - A set with `spec.autoscaling` is a node group of the same name; every Node of it is an instance, known by its
//!   providerID byte for byte.
//! - An order is one write of the set: its replicas, and with them the UIDs of the Nodes that are to go ([`Change`]). So
//!   no moment lies between «smaller» and «these»: nobody else is taken for them, and nobody is made in their place.
//! - Orders keep to the bounds of the set themselves; an order that was carried out already changes nothing.
//! - What was written counts before the watch shows it, and a write whose fate is not known is settled before the set
//!   is spoken of again ([`WriteCache`], [`ScaleRequest`]).

mod instance;
mod price;
mod refusal;
mod scale_request;
mod sizing;
mod template;
mod write_cache;

pub use instance::{
    ErrorClass, Instance, InstanceError, Machine, Rolling, State, Trouble, instances, staying, target_size,
    vacancy_of,
};
pub use price::{HOUR, Price, hours, least_pod_price, node_price};
pub use refusal::{Code, Refusal};
pub use scale_request::{ApiCall, ApiResponse, Failure, ScaleRequest, Step};
pub use sizing::{Change, MOST_VICTIMS, Target, Wanted, decrease, delete, increase, resolve};
pub use template::{Blueprint, gpu_types, node};
pub use write_cache::{SetSnapshot, WriteCache, record, victims};

/// Label that names the kind of a Node's GPUs: a Node that has it and shows no GPU yet is waited for. It is one of our own,
/// for templates of groups alone: where a Node that is in no group has it and shows none, cluster-autoscaler scales nothing
/// at all. Nodes exist before they show anything, so another's label, which every set may have, would bring that about.
pub const GPU_LABEL: &str = "autoscaler.kube-node.io/gpu";

/// Fewest and most replicas of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Fewest.
    pub min: i32,
    /// Most.
    pub max: i32,
}

#[cfg(test)]
mod tests;
