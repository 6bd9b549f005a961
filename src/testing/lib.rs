//! What the integration tests and benchmarks share: test clusters, fixtures, fault injection.
//!
//! A suite declares its cluster, which starts when the first test uses it, by the command that users start theirs with, and
//! ends with the process:
//!
//! ```ignore
//! static CLUSTER: LazyLock<TestCluster> = LazyLock::new(|| TestCluster::shared(test_target!(), "e2e", &[]));
//! ```

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::missing_panics_doc)]

pub mod api_server;
mod audit;
mod cluster;
pub mod fault_injection;
mod fixture;
pub mod go_program;
pub mod harness;
pub mod history;
pub mod http;
pub mod logs;
mod objects;
pub mod operator;
mod ports;
pub mod real_node;
mod release;
pub mod seeds;
pub mod simulated_time;
mod wait;
mod workload;

pub use audit::POLICY as AUDIT_POLICY;
pub use cluster::{TemporaryCluster, TestCluster, TestTarget};
pub use fixture::{Fixture, ROLLED, class_spec};
pub use objects::{condition, create, delete, is_ready, name, phase, summary, taints};
pub use ports::free_port;
pub use release::{git_version, kubemark_image, release};
pub use wait::{Check, LONG, always, eventually};
