//! All decisions of the operator as synchronous functions, without a client, a clock or a runtime.
//!
//! Input: the observed state, the current time, random numbers. Output: the actions to take and the reason for each.

pub mod approval;
pub mod autoscaling;
mod backoff;
pub mod boot;
pub mod budget;
pub mod conditions;
pub mod disruption;
pub mod drain;
pub mod expectations;
pub mod failed_writes;
pub mod fault_injection;
pub mod health;
pub mod history;
pub mod label_map;
pub mod machine_backoff;
pub mod node;
pub mod node_builder;
pub mod node_state;
pub mod pod_cidrs;
pub mod quantity;
pub mod revision;
pub mod rollout;
pub mod set;
pub mod set_planner;
pub mod set_wait;
pub mod taints;
pub mod template;
pub mod time;
pub mod wait;

#[cfg(test)]
mod test_fixtures;
