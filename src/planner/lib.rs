//! Decisions: synchronous, without client, clock or runtime. Observed state, the time and an order of chance come in;
//! what to do and why comes out.

pub mod approval;
pub mod autoscaling;
pub mod back_off;
pub mod birth;
pub mod boot;
pub mod budget;
pub mod causes;
pub mod conditions;
pub mod disruptor;
pub mod drain;
pub mod expectations;
pub mod health;
pub mod history;
pub mod node;
pub mod pod_cidrs;
pub mod quantity;
pub mod refusals;
pub mod revision;
pub mod rollout;
pub mod set;
pub mod taints;
pub mod template;
pub mod texts;
pub mod time;
pub mod turnover;
pub mod wait;
