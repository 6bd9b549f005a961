//! Times that objects show, with something added. Whoever may write an object may write any time into it, so these stop at the
//! ends of the calendar, where jiff's own operators end the process.

use std::time::Duration;

use jiff::Timestamp;

/// So long after `time`; the last moment there is, where that would be later.
#[must_use]
pub fn after(time: Timestamp, span: Duration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// So long before `time`; the first moment there is, where that would be earlier.
#[must_use]
pub fn before(time: Timestamp, span: Duration) -> Timestamp {
    time.checked_sub(span).unwrap_or(Timestamp::MIN)
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
