//! What every process of ours needs around its work.

pub mod admin;
pub mod pause;
pub mod preflight;
pub mod queue;
pub mod telemetry;
