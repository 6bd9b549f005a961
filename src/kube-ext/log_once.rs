//! A failure that repeats is logged once, and again at intervals while it lasts.

use std::time::Duration;

use tokio::time::Instant;

/// Interval of the log lines about a failure that lasts.
const AGAIN: Duration = Duration::from_mins(10);

/// Memory of the failure that was logged last. One per thing that fails: a failure with another text replaces
/// the one before.
///
/// ```ignore
/// Err(error) => if self.failure.is_new(&chain(&error)) { warn!(…) },
/// Ok(_) => if self.failure.ended() { info!("… again") },
/// ```
#[derive(Debug, Default)]
pub struct LogOnce(Option<(String, Instant)>);

impl LogOnce {
    /// Returns true if this failure is to be logged now, and remembers it.
    pub fn is_new(&mut self, failure: &str) -> bool {
        self.is_new_at(failure, Instant::now())
    }

    fn is_new_at(&mut self, failure: &str, now: Instant) -> bool {
        let is_known = self.0.as_ref().is_some_and(|(known, logged)| {
            known == failure && now.saturating_duration_since(*logged) < AGAIN
        });
        if !is_known {
            self.0 = Some((failure.to_owned(), now));
        }
        !is_known
    }

    /// Notes a success. Returns true if a failure was logged since the last one.
    pub fn ended(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_lasts_is_logged_now_and_then() {
        let begin = Instant::now();
        let mut failure = LogOnce::default();
        assert!(!failure.ended());
        let mut is_new = |text, seconds| failure.is_new_at(text, begin + Duration::from_secs(seconds));
        assert!(is_new("a", 1) && !is_new("a", 2) && !is_new("a", 600), "it lasts");
        assert!(is_new("a", 601) && is_new("b", 602) && is_new("a", 603), "another one");
        assert!(failure.ended() && !failure.ended());
        assert!(failure.is_new_at("a", begin + Duration::from_secs(604)), "it is back");
    }
}
