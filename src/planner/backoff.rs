//! Exponential backoff of decisions, without randomness; `kube_ext::backoff` serves the loops around them.
//! State and time are the caller's.

use std::time::Duration;

/// Waits that double with each failure in a row, up to a maximum.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// A backoff with its first and its longest wait.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Wait after this number of failures; zero before the first one.
    pub fn after(self, failures: u32) -> Duration {
        let doublings = failures.checked_sub(1);
        doublings.map_or(Duration::ZERO, |doublings| {
            self.first.saturating_mul(2_u32.saturating_pow(doublings)).min(self.longest)
        })
    }
}
