//! The clock of claims: time since the machine was booted, the time that it slept included. A claim is over when its time
//! is, whatever happened to the process or the machine meanwhile; nobody can set this clock.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A moment of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Before every other one.
    pub const BEGINNING: Self = Self(Duration::ZERO);
    /// After every other one.
    pub const NEVER: Self = Self(Duration::MAX);

    /// Now.
    #[must_use]
    pub fn now() -> Self {
        // Linux has had this clock since 2.6.39; without it no claim would hold.
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Self::NEVER, |time| Self(time.into()))
    }

    /// This much later.
    #[must_use]
    pub const fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    /// The time until `later`; zero where that is past.
    #[must_use]
    pub const fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }

    /// Nanoseconds since the boot, as far as they fit: more than five hundred years.
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
