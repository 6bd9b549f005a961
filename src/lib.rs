//! kube-node: Kubernetes that manages its own nodes.
//!
//! An admin describes kinds of nodes ([`api::NodeClass`]), a developer says how many ([`api::NodeSet`]). Rooms, and
//! which may use which: `cli` → `autoscaler`, `runtime`, `hollow` → `cache`, `wire`, `core` → [`api`]; `core` and `api` know no client, no clock and no runtime.

pub mod api;
pub mod autoscaler;
pub mod cache;
pub mod cli;
pub mod cluster;
pub mod controllers;
pub mod core;
pub mod error;
pub mod guard;
pub mod hollow;
pub mod hollow_node;
pub mod hosts;
pub mod identity;
pub mod images;
pub mod load;
pub mod machine_dir;
pub mod operator;
pub mod providers;
pub mod runtime;
pub mod watch;
pub mod wire;
