//! The main job on a real control plane: all tests of this binary share one, each works on objects of its own.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../bed/mod.rs"]
mod bed;
mod classes;
mod commands;
mod credentials;
mod deletion;
mod disruptor;
mod drain;
mod endpoints;
mod fairness;
mod fidelity;
mod fleet;
mod foreign;
mod guard;
mod handwritten;
mod identity;
mod import;
mod kubectl;
mod kubemark;
mod listen;
mod load;
mod machine_pods;
mod machines;
mod pod_cidrs;
mod pods;
mod policies;
mod roles;
mod rollout;
mod rollout_commands;
mod scale;
mod taints;
mod templates;
mod validation;
mod watches;

/// What the cluster has besides.
const UP: &[&str] = &[];
