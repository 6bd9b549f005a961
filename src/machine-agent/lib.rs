//! What runs in the pod of one machine: its identity, the hollow node itself, and the proxy beside an upstream kubemark.

pub mod commands;
pub mod guard;
pub mod hollow_node;
pub mod identity;
pub mod machine_dir;
