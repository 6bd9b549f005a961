//! Suites that disturb everybody on a cluster, each alone on one of its own: operators, hosts and API servers die.
//!
//! The name sorts before all others. The longest tests start first, and the short ones run beside them.

#[path = "../autoscaler/mod.rs"]
mod autoscaler;
#[path = "../failover/mod.rs"]
mod failover;
#[path = "../hosts/mod.rs"]
mod hosts;
#[path = "../observability/mod.rs"]
mod observability;
#[path = "../outages/mod.rs"]
mod outages;
