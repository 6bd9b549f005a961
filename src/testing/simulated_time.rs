//! Environment of a simulated process: its clocks follow tokio's time, which a test pauses, and its random numbers a seed.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube_ext::environment::Environment;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api_server::Random;

/// Wall clock of every simulation at its beginning.
const EPOCH: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// Clocks and random numbers of one simulated process.
#[derive(Debug)]
pub struct SimulatedTime {
    begun: Instant,
    random: Mutex<Random>,
    /// Difference between the wall clock and the true time; the processes of one host share it.
    error: Arc<Mutex<SignedDuration>>,
}

impl SimulatedTime {
    /// Creates the environment of a process that begins now.
    pub fn new(seed: u64) -> Self {
        let random = Mutex::new(Random::new(seed));
        Self { begun: Instant::now(), random, error: Arc::default() }
    }

    /// Creates the environment of a process on a machine that was booted at `begun`, the simulation's beginning.
    pub fn begun(self, begun: Instant) -> Self {
        Self { begun, ..self }
    }

    /// Has the wall clock of a host, which is wrong by `error`.
    pub fn wrong_by(self, error: Arc<Mutex<SignedDuration>>) -> Self {
        Self { error, ..self }
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
}
