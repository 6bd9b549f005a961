//! The tests that disrupt a cluster: they stop operators, hosts and API servers, so each suite has a cluster of its own.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod autoscaler;
mod failover;
mod hosts;
mod observability;
mod outages;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Suites that run at once. Five control planes at once starve each other's elections on two processors.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Waits until a suite may begin; its turn lasts as long as the permit.
async fn turn() -> SemaphorePermit<'static> {
    TURNS.acquire().await.unwrap()
}
