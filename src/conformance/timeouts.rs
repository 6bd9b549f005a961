//! Timeouts of a test run, in proportion to the time that the controller's first Nodes took to start. On a busy machine each
//! step of a controller takes some seconds, so that a fixed timeout would prove nothing.
//!
//! Invariant: a pod that may not be evicted outlasts the observation of the other drain.

use std::time::Duration;

use super::manifests::LINGERS;

/// Observation time of a blocked drain, counted from the earliest time at which its machine may go.
const OBSERVED: Duration = Duration::from_secs(3);
/// Time after the observation in which the drain may go on, before the NodeSet's drain timeout ends it.
const RELEASED: Duration = Duration::from_secs(7);

/// Timeouts for one controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// Time that the first Nodes took to start; zero until they have.
    pub(super) start: Duration,
    /// Time limit of each step of the test run.
    pub(super) limit: Duration,
}

impl Timeouts {
    /// `deletionTimeout` of a class whose machine's end is timed.
    pub(super) fn deletion(self) -> Duration {
        self.scaled(LINGERS)
    }

    /// Time from a Node's deletion to the end of the observation of its blocked drain.
    pub(super) fn observation(self) -> Duration {
        LINGERS + self.scaled(OBSERVED)
    }

    /// `drain.timeout` of the NodeSet.
    pub(super) fn drain(self) -> Duration {
        self.observation() + self.scaled(RELEASED)
    }

    /// `quick`, or three times the start of the first Nodes if that is longer: in whole seconds, half of the limit at most.
    fn scaled(self, quick: Duration) -> Duration {
        let long = (self.start * 3).min(self.limit / 2);
        quick.max(Duration::from_secs(long.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, LINGERS, RELEASED, Timeouts};

    #[test]
    fn a_blocked_drain_is_observed_before_its_timeout() {
        for limit in (2..600).step_by(7).map(Duration::from_secs) {
            for start in (0..600).map(Duration::from_secs).filter(|start| *start <= limit) {
                let timeouts = Timeouts { start, limit };
                assert!(timeouts.observation() > LINGERS, "{timeouts:?}");
                assert!(timeouts.observation() + RELEASED <= timeouts.drain(), "{timeouts:?}");
                // In whole seconds.
                let long = timeouts.deletion() + Duration::from_secs(1);
                assert!(long > (start * 3).min(limit / 2), "{timeouts:?}");
            }
        }
    }
}
