//! The cluster with a real node: kubelet, containerd, CNI and kube-proxy run for real, and so do pods of our own images.
//! Needs root and the packages that tests/real-node/install.sh installs; without them the start fails and says so.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../bed/mod.rs"]
mod bed;
mod disruptor;
mod fleet;
mod hosting;
mod kinds;
mod machines;
mod node;
mod provisioning;
mod reboot;
mod refusals;
mod trouble;

/// Held by every test that needs the node as it is, and alone by one that breaks it.
static NODE: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// What the cluster has besides.
const UP: &[&str] = &["--real-node", "--kubemark"];
