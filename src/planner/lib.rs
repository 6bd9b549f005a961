//! All decisions of the operator as synchronous functions, without a client, a clock or a runtime.
//!
//! Input: the observed state, the current time, random numbers. Output: the actions to take and the reason for each.

pub mod approval;
pub mod autoscaling;
pub mod back_off;
pub mod boot;
pub mod budget;
pub mod conditions;
pub mod disruption;
pub mod drain;
pub mod expectations;
pub mod fault_injection;
pub mod health;
pub mod history;
pub mod label_map;
pub mod node;
pub mod node_builder;
pub mod pod_cidrs;
pub mod quantity;
pub mod refusals;
pub mod revision;
pub mod rollout;
pub mod set;
pub mod set_planner;
pub mod taints;
pub mod template;
pub mod time;
pub mod wait;
