//! Time on both clocks: the monotonic one for due times, the wall clock for written timestamps.

use jiff::Timestamp;
use kube_ext::environment;
use kube_node_api::time::passed;
use tokio::time::Instant;

/// A point in time on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Monotonic time, for due times.
    pub at: Instant,
    /// Wall-clock time, for written timestamps.
    pub wall: Timestamp,
}

impl Clock {
    /// The current time.
    pub fn now() -> Self {
        Self { at: Instant::now(), wall: environment::now() }
    }

    /// Monotonic time of a future wall-clock time; now for a past one.
    pub fn until(&self, wall: Timestamp) -> Instant {
        self.at + passed(self.wall, wall)
    }

    /// Monotonic time of a past wall-clock time; now for a future one.
    pub fn since(&self, wall: Timestamp) -> Instant {
        self.at.checked_sub(passed(wall, self.wall)).unwrap_or(self.at)
    }
}

/// Time truncated to whole seconds: the API keeps no finer times in a status.
pub fn to_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
