//! Environment of a simulated process: its clocks follow tokio's time, which a test pauses, and its random numbers a seed.

use std::{mem::take, sync::Arc, task::Waker, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube_ext::environment::Environment;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::api_server::Random;

/// Wall clock of every simulation at its beginning.
const EPOCH: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// True time of a simulation that began at `begun`.
pub fn time_of(begun: Instant) -> Timestamp {
    EPOCH + begun.elapsed()
}

/// Clocks and random numbers of one simulated process.
#[derive(Debug)]
pub struct SimulatedTime {
    begun: Instant,
    random: Mutex<Random>,
    /// Difference between the wall clock and the true time; the processes of one host share it.
    error: Arc<Mutex<SignedDuration>>,
    stop: Arc<Stop>,
}

/// Stops the processes of a host for a time.
#[derive(Debug, Default)]
pub struct Stop(Mutex<(Option<Instant>, Vec<Waker>)>);

impl Stop {
    /// Stops them for so long.
    pub fn stop(self: &Arc<Self>, lasts: Duration) {
        let (stop, until) = (Arc::clone(self), Instant::now() + lasts);
        self.0.lock().0 = Some(until);
        tokio::spawn(async move {
            sleep_until(until).await;
            let wakers = take(&mut stop.0.lock().1);
            wakers.into_iter().for_each(Waker::wake);
        });
    }

    /// When they go on, or went on.
    pub fn ends(&self) -> Option<Instant> {
        self.0.lock().0
    }
}

impl SimulatedTime {
    /// Creates the environment of a process that begins now.
    pub fn new(seed: u64) -> Self {
        let random = Mutex::new(Random::new(seed));
        Self { begun: Instant::now(), random, error: Arc::default(), stop: Arc::default() }
    }

    /// Creates the environment of a process on a machine that was booted at `begun`, the simulation's beginning.
    pub fn begun(self, begun: Instant) -> Self {
        Self { begun, ..self }
    }

    /// Has the wall clock of a host, which is wrong by `error`.
    pub fn wrong_by(self, error: Arc<Mutex<SignedDuration>>) -> Self {
        Self { error, ..self }
    }

    /// Stands still while its host is stopped.
    pub fn stopped_by(self, stop: Arc<Stop>) -> Self {
        Self { stop, ..self }
    }
}

impl Environment for SimulatedTime {
    fn now(&self) -> Timestamp {
        EPOCH + self.since_boot() + *self.error.lock()
    }

    fn since_boot(&self) -> Duration {
        self.begun.elapsed()
    }

    fn random(&self) -> u64 {
        self.random.lock().number()
    }

    fn is_stopped(&self, waker: &Waker) -> bool {
        let mut stop = self.stop.0.lock();
        let is_stopped = stop.0.is_some_and(|until| until > Instant::now());
        if is_stopped {
            stop.1.push(waker.clone());
        }
        is_stopped
    }
}
