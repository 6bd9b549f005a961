//! The chart installed by helm on the local cluster with a real node, where the operator runs as a pod of our own image.

#[path = "../bed/mod.rs"]
mod bed;
#[path = "../autoscaler/channel.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod channel;
mod cluster;
mod growth;
mod hosts;
#[allow(dead_code, reason = "a part of it is for the rendered chart")]
mod program;
pub mod release;

use bed::go_program;

/// Arguments of `up`. The operator is the chart's.
const UP: &[&str] = &["--real-node", "--without-operator"];
