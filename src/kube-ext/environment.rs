//! Wall clock, boot clock and random numbers of a task. A simulation gives its tasks their own; everywhere else
//! they are the system's.
//!
//! Input: an [`Environment`] for a future and all that it spawns ([`within`]). Output: [`now`], [`since_boot`],
//! [`random_range`], [`random`].
//!
//! Invariant: the operator, the hollow kubelet and their libraries read times and random numbers from here or from
//! `tokio::time`, and start tasks by [`spawn`]. So a simulation repeats a run from its seed, and each simulated
//! process has clocks of its own.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::future::Either;
use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use rand::{
    RngExt, SeedableRng,
    distr::uniform::{SampleRange, SampleUniform},
    rngs::StdRng,
};
use tokio::task::{JoinHandle, futures::TaskLocalFuture};

/// Clocks and random numbers of a simulated process.
pub trait Environment: Send + Sync {
    /// Time of day, as the process's machine has it: it may differ from that of others, and jump.
    fn now(&self) -> Timestamp;
    /// Time since the machine's boot, suspended time included.
    fn since_boot(&self) -> Duration;
    /// Uniform random number.
    fn random(&self) -> u64;
    /// Returns true if the process is stopped, as by `SIGSTOP`. It wakes `waker` when the process goes on.
    fn is_stopped(&self, waker: &Waker) -> bool {
        let _ = waker;
        false
    }
}

/// An environment of a simulation; None for the system's.
type Simulated = Option<Arc<dyn Environment>>;

tokio::task_local! {
    static CURRENT: Simulated;
}

/// The time of day.
pub fn now() -> Timestamp {
    current().map_or_else(Timestamp::now, |environment| environment.now())
}

/// Time since the machine's boot, suspended time included. Nobody can set this clock.
pub fn since_boot() -> Duration {
    match current() {
        Some(environment) => environment.since_boot(),
        // Linux has this clock since 2.6.39; without it no leadership would hold.
        None => clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::MAX, Duration::from),
    }
}

/// A random number, uniform.
pub fn random() -> u64 {
    current().map_or_else(rand::random, |environment| environment.random())
}

/// A random value in a range, uniform. An empty range has none: that panics.
pub fn random_range<T: SampleUniform, R: SampleRange<T>>(range: R) -> T {
    match current() {
        Some(environment) => StdRng::seed_from_u64(environment.random()).random_range(range),
        None => rand::random_range(range),
    }
}

/// Starts a task in the environment of the current one.
pub fn spawn<F: Future<Output: Send + 'static> + Send + 'static>(future: F) -> JoinHandle<F::Output> {
    tokio::spawn(inherit(future))
}

/// Keeps the environment of the current task for a future that is spawned otherwise, as by a `JoinSet`.
pub fn inherit<F: Future>(future: F) -> InEnvironment<F> {
    let future = match current() {
        Some(environment) => Either::Right(Stoppable(Box::pin(future), environment)),
        None => Either::Left(future),
    };
    CURRENT.scope(current(), future)
}

/// Gives a future an environment.
pub fn within<F: Future>(environment: Arc<dyn Environment>, future: F) -> InEnvironment<F> {
    let stoppable = Stoppable(Box::pin(future), Arc::clone(&environment));
    CURRENT.scope(Some(environment), Either::Right(stoppable))
}

/// A future that runs in an environment.
pub type InEnvironment<F> = TaskLocalFuture<Simulated, Either<F, Stoppable<F>>>;

/// A future of a simulated process: nothing polls it while the process is stopped.
pub struct Stoppable<F>(Pin<Box<F>>, Arc<dyn Environment>);

impl<F: Future> Future for Stoppable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if self.1.is_stopped(cx.waker()) {
            return Poll::Pending;
        }
        self.0.as_mut().poll(cx)
    }
}

fn current() -> Simulated {
    CURRENT.try_with(Clone::clone).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// A process whose machine was booted `0` seconds after the epoch.
    struct Fixed(u64, Mutex<u64>);

    impl Environment for Fixed {
        fn now(&self) -> Timestamp {
            Timestamp::from_second(1_000).unwrap()
        }

        fn since_boot(&self) -> Duration {
            Duration::from_secs(1_000 - self.0)
        }

        fn random(&self) -> u64 {
            let mut last = self.1.lock();
            *last = last.wrapping_add(0x9E37_79B9_7F4A_7C15);
            *last
        }
    }

    #[tokio::test]
    async fn a_task_and_what_it_spawns_have_their_environment_and_others_the_systems() {
        let of = |boot| -> Arc<dyn Environment> { Arc::new(Fixed(boot, Mutex::new(boot))) };
        let read = || async { (now(), since_boot(), random(), random_range(0..1_000)) };
        let spawned = || async move {
            let spawned = spawn(async move {
                tokio::task::yield_now().await;
                read().await
            });
            let mut set = tokio::task::JoinSet::new();
            set.spawn(inherit(async { since_boot() }));
            (spawned.await.unwrap(), set.join_next().await.unwrap().unwrap(), since_boot())
        };
        let (a, b) = tokio::join!(within(of(100), spawned()), within(of(400), spawned()));
        let time = Timestamp::from_second(1_000).unwrap();
        assert_eq!((a.0.0, a.0.1, a.1, a.2), (time, Duration::from_mins(15), Duration::from_mins(15), a.0.1));
        assert_eq!((b.0.0, b.0.1, b.1, b.2), (time, Duration::from_mins(10), Duration::from_mins(10), b.0.1));
        assert_eq!(a, within(of(100), spawned()).await);
        assert_ne!((a.0.2, a.0.3), (b.0.2, b.0.3));
        assert!(now() > time && since_boot() > Duration::ZERO && since_boot() < Duration::MAX);
        assert_ne!(read().await.2, read().await.2);
    }
}
