//! What every process of ours needs around its work.

pub mod admin;
pub mod connection;
pub mod connection_limiter;
pub mod files;
pub mod leader;
pub mod memory;
pub mod metrics;
pub mod pause;
pub mod preflight;
pub mod rate;
pub mod telemetry;
pub mod tls;
pub mod traces;
pub mod work_queue;
