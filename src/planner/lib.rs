//! All decisions of the operator as synchronous functions, without a client, a clock or a runtime.
//!
//! Input: the observed state, the current time, random numbers. Output: the actions to take and the reason for each.

pub mod approval;
pub mod autoscaling;
mod backoff;
pub mod budget;
pub mod conditions;
pub mod disruption;
pub mod drain;
pub mod expectations;
pub mod failed_writes;
pub mod foreign_times;
pub mod history;
pub mod machine_backoff;
pub mod node;
pub mod node_builder;
pub mod node_state;
pub mod pod_cidrs;
pub mod revision;
pub mod rollout;
pub mod set;
pub mod set_planner;
pub mod set_wait;
pub mod startup_taints;
pub mod taints;
pub mod template;
pub mod wait;

#[cfg(test)]
mod test_fixtures;
