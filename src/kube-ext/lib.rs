//! Parts for any operator that kube-rs does not have: protobuf transport and watch, work queue, leader
//! election with fencing, reloadable TLS, and process services (health, metrics, traces, signals).
//!
//! Three jobs have one way each in all crates: [`backoff`] between retries, [`log_once`] for failures that
//! repeat, and [`call`] for API calls with a time limit.

pub mod admin;
pub mod backoff;
pub mod call;
pub mod connection;
pub mod connection_limiter;
pub mod environment;
pub mod error;
pub mod files;
pub mod leader;
pub mod log_once;
pub mod memory;
pub mod metrics;
pub mod objects;
pub mod pause;
pub mod printable;
pub mod process;
pub mod proxy;
pub mod rate;
pub mod server_time;
pub mod telemetry;
pub mod tls;
pub mod traces;
pub mod transport;
pub mod watch;
pub mod work_queue;
