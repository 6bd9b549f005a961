//! Programs of a machine's pod: the hollow node itself and the kubemark proxy.

pub mod commands;
pub mod hollow_node;
pub mod kubemark_proxy;
mod machine_args;
mod machine_dir;
