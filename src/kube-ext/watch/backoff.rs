//! Backoff of watches: exponential, with jitter, reset after a time without failures.

use std::time::Duration;

use kube::runtime::utils;
use tokio::time::Instant;

/// Bounds of the backoff. Random jitter lengthens each wait, to twice itself at most, so that watches do not
/// reconnect all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// First wait; doubles with each failure.
    pub first: Duration,
    /// Longest wait, before jitter.
    pub longest: Duration,
    /// Time without a failure after which the next wait is the first again.
    pub calm: Duration,
}

impl BackoffConfig {
    /// Values of client-go's reflector (`tools/cache`).
    pub const REFLECTOR: Self = Self {
        first: Duration::from_millis(800),
        longest: Duration::from_secs(30),
        calm: Duration::from_mins(2),
    };
    /// Values for watches that every controller depends on.
    pub const VITAL: Self = Self {
        first: Duration::from_millis(200),
        longest: Duration::from_millis(2_500),
        calm: Duration::from_secs(30),
    };
}

/// Backoff of one watch.
#[derive(Debug)]
pub struct Backoff {
    config: BackoffConfig,
    failures: u32,
    /// End of the last wait.
    last: Option<Instant>,
}

impl Backoff {
    /// A backoff before any failure.
    #[must_use]
    pub const fn new(config: BackoffConfig) -> Self {
        Self { config, failures: 0, last: None }
    }

    /// Wait after a failure that happens now.
    pub fn wait(&mut self, now: Instant) -> Duration {
        let BackoffConfig { first, longest, calm } = self.config;
        if self.last.is_some_and(|last| now.saturating_duration_since(last) > calm) {
            self.failures = 0;
        }
        let wait = first.saturating_mul(2_u32.saturating_pow(self.failures)).min(longest);
        self.failures = self.failures.saturating_add(1);
        let wait = wait.mul_f64(rand::random_range(1.0..2.0));
        self.last = Some(now + wait);
        wait
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.wait(Instant::now()))
    }
}

impl utils::Backoff for Backoff {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_begin_anew_after_a_calm() {
        let config = BackoffConfig::REFLECTOR;
        let (mut backoff, now) = (Backoff::new(config), Instant::now());
        let first = backoff.wait(now);
        assert!((config.first..config.first * 2).contains(&first), "{first:?}");
        let longest = (0..9).map(|_| backoff.wait(now)).last().unwrap();
        assert!((config.longest..config.longest * 2).contains(&longest), "{longest:?}");
        let rested = backoff.wait(now + config.calm * 2);
        assert!(rested < config.first * 2, "{rested:?}");
    }
}
