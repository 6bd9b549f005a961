//! Clock of the leader elector: time since the machine's boot, suspended time included. Leadership expires on
//! time whatever happened to the process or the machine meanwhile; nobody can set this clock.

use std::time::Duration;

use crate::environment;

/// A moment on this machine's boot clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Earlier than every other moment.
    pub const BEGINNING: Self = Self(Duration::ZERO);
    /// Later than every other moment.
    pub const NEVER: Self = Self(Duration::MAX);

    /// The current moment.
    pub fn now() -> Self {
        Self(environment::since_boot())
    }

    /// This moment plus `time`.
    pub const fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    /// Time until `later`; zero if `later` is past.
    pub const fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }

    /// Nanoseconds since boot, saturated after more than five hundred years.
    pub(super) fn nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on() {
        let (before, second) = (Moment::now(), Duration::from_secs(1));
        assert!(Moment::BEGINNING < before && before <= Moment::now() && Moment::now() < Moment::NEVER);
        assert_eq!(before.until(before.after(second)), second);
        assert_eq!(before.after(second).until(before), Duration::ZERO);
        assert_eq!(Moment::NEVER.nanos(), u64::MAX);
    }
}
