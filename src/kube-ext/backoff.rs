//! Exponential backoff between retries, for all crates but the planner: its own one is pure, and this crate
//! brings a runtime.
//!
//! A loop owns a [`Backoff`] and sleeps for [`Backoff::wait`] after each failure; [`utils::Backoff::reset`]
//! follows a success. State that counts its own failures, per key or per object, calls [`Backoff::after`] or
//! [`Backoff::jittered`] of a constant. Streams of kube take a [`Backoff`] as they take kube's
//! `DefaultBackoff`, which has the values of client-go's reflector.

use std::time::Duration;

use kube::runtime::utils;

use crate::environment;

/// Exponential backoff: doubles with each failure in a row, up to a maximum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// A backoff before any failure.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Nominal wait after the `failures`th failure in a row; `failures` begins with 1.
    pub fn after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1);
        self.first.saturating_mul(2_u32.saturating_pow(doublings)).min(self.longest)
    }

    /// The same, drawn between its half and its whole: clients that failed together do not return together.
    pub fn jittered(&self, failures: u32) -> Duration {
        self.after(failures).mul_f64(environment::random_range(0.5..=1.0))
    }

    /// Counts a failure and returns the jittered wait after it.
    pub fn wait(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.jittered(self.failures)
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.wait())
    }
}

impl utils::Backoff for Backoff {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{utils::Backoff as _, *};

    #[test]
    fn waits_grow_up_to_the_longest_and_begin_anew_after_a_reset() {
        let (first, longest) = (Duration::from_millis(200), Duration::from_secs(5));
        let mut backoff = Backoff::new(first, longest);
        assert_eq!([1, 2, 5].map(|count| backoff.after(count)), [1, 2, 16].map(|times| first * times));
        assert_eq!([6, u32::MAX].map(|count| backoff.after(count)), [longest; 2]);
        let is_drawn_from = |wait: Duration, nominal: Duration| (nominal / 2..=nominal).contains(&wait);
        assert!(is_drawn_from(backoff.wait(), first) && is_drawn_from(backoff.wait(), first * 2));
        assert!(backoff.nth(9).is_some_and(|wait| is_drawn_from(wait, longest)));
        backoff.reset();
        assert!(is_drawn_from(backoff.wait(), first));
    }
}
