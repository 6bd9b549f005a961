//! The chart: linted and rendered for tables of values, and installed by helm on the local cluster with a real node, where
//! the operator runs as a pod of our own image. The latter needs root, as `tests/real_node` does.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../bed/mod.rs"]
mod bed;
#[path = "../autoscaler/channel.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod channel;
mod cluster;
mod growth;
mod hosts;
mod program;
mod refused;
mod release;
mod render;
mod rendered;
mod values;

/// What the cluster has besides. The operator is the chart's.
const UP: &[&str] = &["--real-node", "--without-operator"];
