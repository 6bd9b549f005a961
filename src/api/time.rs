//! Arithmetic on times read from objects. Any writer of an object can store any time, so the results are
//! clamped to the calendar; jiff's own operators would panic.

use std::time::Duration;

use jiff::Timestamp;

/// `time` plus `span`, at most the last representable time.
pub fn after(time: Timestamp, span: Duration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// `time` minus `span`, at least the first representable time.
pub fn before(time: Timestamp, span: Duration) -> Timestamp {
    time.checked_sub(span).unwrap_or(Timestamp::MIN)
}

/// Time from `since` to `now`; zero if the clock went backwards.
pub fn passed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// Remaining part at `now` of `span`, counted from `since`; zero once it is over, and never more than `span`.
pub fn left(since: Timestamp, span: Duration, now: Timestamp) -> Duration {
    span.saturating_sub(passed(since, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_has_ends() {
        let (time, second) = (Timestamp::UNIX_EPOCH, Duration::from_secs(1));
        assert_eq!((after(time, second).as_second(), before(time, second).as_second()), (1, -1));
        for span in [second, Duration::from_secs(i64::MAX.unsigned_abs()), Duration::MAX] {
            assert_eq!(after(Timestamp::MAX, span), Timestamp::MAX);
            assert_eq!(before(Timestamp::MIN, span), Timestamp::MIN);
        }
        assert_eq!(
            (after(time, Duration::MAX), before(time, Duration::MAX)),
            (Timestamp::MAX, Timestamp::MIN)
        );
    }
}
