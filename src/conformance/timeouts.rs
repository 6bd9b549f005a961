//! Times that a test run gives a controller, or waits for one, by the controller's pace. On a busy machine a controller
//! that waits for nothing takes some seconds, too, so that a fixed time would say nothing.
//!
//! Invariant: a pod that may not be evicted outlasts the observation of the other drain.

use std::time::Duration;

use super::manifests::LINGERS;

/// Observation time of a blocked drain, counted from the earliest time at which its machine may go.
const OBSERVED: Duration = Duration::from_secs(3);
/// Time after the observation in which the drain may go on, before the NodeSet's drain timeout ends it.
const RELEASED: Duration = Duration::from_secs(7);

/// The pace of a controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Time that the first Nodes took to start; zero until they have.
    pub(super) start: Duration,
    /// Time limit of each step of the test run.
    pub(super) limit: Duration,
}

impl Pace {
    /// `deletionTimeout` of a class whose machine's end is timed.
    pub(super) fn lingers(self) -> Duration {
        self.visible(LINGERS)
    }

    /// Time from a Node's deletion to the end of the observation of its blocked drain.
    pub(super) fn observed(self) -> Duration {
        LINGERS + self.visible(OBSERVED)
    }

    /// `drain.timeout` of the NodeSet.
    pub(super) fn drain_timeout(self) -> Duration {
        self.observed() + self.visible(RELEASED)
    }

    /// The time for a quick controller, or one that is long beside the pace of this one, in whole seconds.
    fn visible(self, quick: Duration) -> Duration {
        let long = (self.start * 3).min(self.limit / 2);
        quick.max(Duration::from_secs(long.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, LINGERS, Pace, RELEASED};

    #[test]
    fn a_drain_is_observed_before_its_timeout_at_each_pace() {
        for limit in (2..600).step_by(7).map(Duration::from_secs) {
            for start in (0..600).map(Duration::from_secs).filter(|start| *start <= limit) {
                let pace = Pace { start, limit };
                assert!(pace.observed() > LINGERS, "{pace:?}");
                assert!(pace.observed() + RELEASED <= pace.drain_timeout(), "{pace:?}");
                // In whole seconds.
                let long = pace.lingers() + Duration::from_secs(1);
                assert!(long > (start * 3).min(limit / 2), "{pace:?}");
            }
        }
    }
}
