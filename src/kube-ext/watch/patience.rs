//! How long a watch that failed waits before it is made anew: longer after each further failure.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use tokio::time::Instant;

/// Bounds of the waits. Each is lengthened by chance, to twice itself at most, so that not all watches come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The first wait; it doubles.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
    /// After such a time without a failure the next wait is the first again.
    pub calm: Duration,
}

impl Pace {
    /// That of client-go's reflector (`tools/cache`).
    pub const REFLECTOR: Self = Self {
        first: Duration::from_millis(800),
        longest: Duration::from_secs(30),
        calm: Duration::from_mins(2),
    };
    /// That of those by which everything here lives.
    pub const VITAL: Self = Self {
        first: Duration::from_millis(200),
        longest: Duration::from_millis(2_500),
        calm: Duration::from_secs(30),
    };
}

/// Says how long to wait.
#[derive(Debug)]
pub struct Patience {
    pace: Pace,
    failures: u32,
    /// When the last wait is over.
    last: Option<Instant>,
}

impl Patience {
    /// Before any failure.
    #[must_use]
    pub const fn new(pace: Pace) -> Self {
        Self { pace, failures: 0, last: None }
    }

    /// The wait after a failure that happens now.
    pub fn wait(&mut self, now: Instant) -> Duration {
        let Pace { first, longest, calm } = self.pace;
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

impl Iterator for Patience {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.wait(Instant::now()))
    }
}

impl Backoff for Patience {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_begin_anew_after_a_calm() {
        let pace = Pace::REFLECTOR;
        let (mut patience, now) = (Patience::new(pace), Instant::now());
        let first = patience.wait(now);
        assert!((pace.first..pace.first * 2).contains(&first), "{first:?}");
        let longest = (0..9).map(|_| patience.wait(now)).last().unwrap();
        assert!((pace.longest..pace.longest * 2).contains(&longest), "{longest:?}");
        let rested = patience.wait(now + pace.calm * 2);
        assert!(rested < pace.first * 2, "{rested:?}");
    }
}
