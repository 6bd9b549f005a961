//! The tests on a real control plane that all of them share: each works on objects of its own.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attacks;
mod classes;
mod commands;
#[path = "../conformance/mod.rs"]
mod conformance;
mod convert;
mod credentials;
mod csi_nodes;
mod data_folder;
mod deletion;
#[path = "../docs/mod.rs"]
mod docs;
mod drain;
mod endpoints;
mod failed_waits;
mod fairness;
mod fault_injection;
mod fidelity;
mod fleet;
mod foreign;
mod gitops;
mod handwritten;
mod identity;
mod import;
mod kubectl;
mod kubelet_watches;
mod kubemark;
mod kubemark_proxy;
mod listen;
mod machine_faults;
mod machine_limit;
mod machine_pods;
mod machines;
#[path = "../metrics_server/mod.rs"]
mod metrics_server;
mod node_status;
mod odd_pods;
mod pod_cidrs;
mod pods;
mod policies;
mod promises;
mod refusals;
mod roles;
mod rollout;
mod rollout_commands;
mod scale;
mod secrets;
mod setup_operator;
mod taints;
mod templates;
mod validation;
mod watches;

use kube_node_testing::{TestCluster, test_target};
use std::sync::LazyLock;

/// The cluster of this suite.
static CLUSTER: LazyLock<TestCluster> = LazyLock::new(|| TestCluster::shared(test_target!(), "e2e", &[]));
