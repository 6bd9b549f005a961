//! Environment of a simulated process: its clocks follow tokio's time, which a test pauses, and its random numbers a seed.

use std::time::Duration;

use jiff::Timestamp;
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
}

impl SimulatedTime {
    /// Creates the environment of a process that begins now.
    pub fn new(seed: u64) -> Self {
        Self { begun: Instant::now(), random: Mutex::new(Random::new(seed)) }
    }
}

impl Environment for SimulatedTime {
    fn now(&self) -> Timestamp {
        EPOCH + self.since_boot()
    }

    fn since_boot(&self) -> Duration {
        self.begun.elapsed()
    }

    fn random(&self) -> u64 {
        self.random.lock().number()
    }
}
