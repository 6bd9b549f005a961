//! Suites that disturb everybody on a cluster, each alone on one of its own: operators, hosts and API servers die.
//!
//! The name sorts before all others. The longest tests start first, and the short ones run beside them.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Suites that run at once. Five control planes at once starve each other's elections on two processors.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Waits until a suite may begin; its turn lasts as long as the permit.
async fn turn() -> SemaphorePermit<'static> {
    TURNS.acquire().await.unwrap()
}

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
