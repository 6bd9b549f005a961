//! Log of a container: lines come at an interval from the container's start on, so any part of the log can be
//! computed, and none is stored.

use std::{ops::Range, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::query::Query;
use crate::pod::output::{Output, Run};

/// Size of the available log, in bytes: the size at which a kubelet begins another file.
const KEPT: u64 = 10 << 20;

/// Log options of a request: the fields of `PodLogOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Continue while the container runs.
    pub follow: bool,
    /// Log of the previous run.
    pub previous: bool,
    /// Time before each line.
    pub timestamps: bool,
    /// Number of last lines.
    pub tail: Option<u64>,
    /// Earliest time of a line.
    pub since: Option<Timestamp>,
    /// Maximum number of bytes.
    pub limit: Option<u64>,
}

/// Reason for which a kubelet refuses a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryError {
    /// A value cannot be decoded.
    Undecodable,
    /// A value is not allowed.
    Invalid,
}

impl LogOptions {
    /// Parses a query as a kubelet does: the first value of each key counts.
    pub fn read(query: &Query<'_>, now: Timestamp) -> Result<Self, QueryError> {
        let yes =
            |key| query.first(key).is_some_and(|text| text != "0" && !text.eq_ignore_ascii_case("false"));
        let number = |text: Option<&str>, least: i64| match text.map(str::parse) {
            None => Ok(None),
            Some(Ok(number)) if number < least => Err(QueryError::Invalid),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => Err(QueryError::Undecodable),
        };
        // `tail` is the former name of `tailLines`.
        let tail = match query.first("tail") {
            None | Some("") => query.first("tailLines"),
            Some("all") => None,
            tail => tail,
        };
        let since_time: Option<Timestamp> = match query.first("sinceTime") {
            None | Some("") => None,
            Some(time) => Some(time.parse().map_err(|_| QueryError::Undecodable)?),
        };
        // All values are decoded before any is validated.
        let read =
            [number(tail, 0), number(query.first("limitBytes"), 1), number(query.first("sinceSeconds"), 1)];
        if read.contains(&Err(QueryError::Undecodable)) {
            return Err(QueryError::Undecodable);
        }
        let [tail, limit, since_seconds] = read;
        let (tail, limit, since_seconds) = (tail?, limit?, since_seconds?);
        if since_seconds.is_some() && since_time.is_some()
            || query.first("stream").is_some_and(|stream| !["", "All"].contains(&stream))
        {
            return Err(QueryError::Invalid);
        }
        let ago = |seconds| now.checked_sub(SignedDuration::from_secs(seconds)).ok();
        let size = |number: i64| u64::try_from(number).ok();
        Ok(Self {
            follow: yes("follow"),
            previous: yes("previous"),
            timestamps: yes("timestamps"),
            tail: tail.and_then(size),
            since: since_seconds.map_or(since_time, ago),
            limit: limit.and_then(size),
        })
    }
}

/// Log lines of one run of a container.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Text of each line; None for numbered lines.
    line: Option<String>,
    /// Name of the container in numbered lines.
    name: String,
    interval: Duration,
    began: Timestamp,
    started: bool,
}

impl Lines {
    /// Lines of a run of the container named `name`, such as `main of pod default/web`.
    #[must_use]
    pub fn new(output: &Output<'_>, name: String, run: &Run) -> Self {
        Self {
            line: output.log_line.map(ToOwned::to_owned),
            name,
            interval: output.log_interval,
            began: run.began,
            started: run.started,
        }
    }

    /// Number of lines at `until`.
    #[must_use]
    pub fn count(&self, until: Timestamp) -> u64 {
        match Duration::try_from(until.duration_since(self.began)) {
            Ok(ran) if self.started => {
                u64::try_from(ran.as_nanos() / self.interval.as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
            }
            _ => 0,
        }
    }

    /// Time of a line.
    #[must_use]
    pub fn time(&self, number: u64) -> Timestamp {
        let nanos = self.interval.as_nanos().saturating_mul(number.into());
        let after = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.began.checked_add(after).unwrap_or(Timestamp::MAX)
    }

    /// Range of the lines requested, at `until`.
    #[must_use]
    pub fn requested(&self, options: &LogOptions, until: Timestamp) -> Range<u64> {
        let count = self.count(until);
        let size = u64::try_from(self.text(count, false).len()).unwrap_or(u64::MAX).max(1);
        let kept = count.saturating_sub(KEPT / size);
        let last = options.tail.map_or(0, |tail| count.saturating_sub(tail));
        let since = options.since.map_or(0, |since| self.first_at(since));
        kept.max(last).max(since).min(count)..count
    }

    /// Number of the first line at this time or later.
    fn first_at(&self, since: Timestamp) -> u64 {
        match Duration::try_from(since.duration_since(self.began)) {
            Ok(after) => {
                u64::try_from(after.as_nanos().div_ceil(self.interval.as_nanos())).unwrap_or(u64::MAX)
            }
            Err(_) => 0,
        }
    }

    /// Text of a line, with its end.
    #[must_use]
    pub fn text(&self, number: u64, timestamps: bool) -> String {
        let time = if timestamps { format!("{:.9} ", self.time(number)) } else { String::new() };
        match &self.line {
            Some(line) => format!("{time}{line}\n"),
            None => format!("{time}line {number} of hollow container {}\n", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lines(interval: Duration) -> Lines {
        let output =
            Output { log_line: None, log_interval: interval, nano_cores: 1, memory: 1, exec_exit_code: 0 };
        Lines::new(&output, "main".to_owned(), &Run { began: at(1_000), ended: None, started: true })
    }

    fn read(query: &[(&str, &str)]) -> Result<LogOptions, QueryError> {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        LogOptions::read(&Query::of(&format!("/?{query}").parse().unwrap()), at(1_100))
    }

    #[test]
    fn a_query_is_read_as_a_kubelet_does() {
        let wanted =
            read(&[("follow", "true"), ("tailLines", "0"), ("sinceSeconds", "60"), ("limitBytes", "9")]);
        let wanted = wanted.unwrap();
        assert!(wanted.follow && !wanted.previous);
        assert_eq!((wanted.tail, wanted.since, wanted.limit), (Some(0), Some(at(1_040)), Some(9)));
        let time = read(&[("sinceTime", "1970-01-01T00:17:00Z")]).unwrap();
        assert_eq!(time.since, Some(at(1_020)));
        for (key, value, why) in [
            ("tailLines", "-1", QueryError::Invalid),
            ("limitBytes", "0", QueryError::Invalid),
            ("sinceSeconds", "0", QueryError::Invalid),
            ("stream", "Stderr", QueryError::Invalid),
            ("tailLines", "some", QueryError::Undecodable),
            ("tail", "some", QueryError::Undecodable),
            ("limitBytes", "", QueryError::Undecodable),
            ("sinceTime", "now", QueryError::Undecodable),
        ] {
            assert_eq!(read(&[(key, value)]), Err(why), "{key}={value}");
        }
        let both = [("sinceSeconds", "5"), ("sinceTime", "1970-01-01T00:17:00Z")];
        assert_eq!(read(&both), Err(QueryError::Invalid));
        assert_eq!(read(&[("tailLines", "-1"), ("limitBytes", "x")]), Err(QueryError::Undecodable));
        let tail = |query: &[_]| read(query).unwrap().tail;
        assert_eq!(tail(&[("tailLines", "3"), ("tail", "2")]), Some(2));
        assert_eq!(tail(&[("tailLines", "3"), ("tail", "all")]), None);
        assert_eq!(tail(&[("tailLines", "3"), ("tailLines", "4")]), Some(3));
        for (value, follows) in [("", true), ("yes", true), ("0", false), ("False", false)] {
            assert_eq!(read(&[("follow", value)]).unwrap().follow, follows, "{value}");
        }
    }

    #[test]
    fn lines_come_at_their_interval_and_can_be_cut() {
        let lines = lines(Duration::from_secs(10));
        assert_eq!((lines.count(at(999)), lines.count(at(1_000)), lines.count(at(1_039))), (0, 1, 4));
        let range = |options: LogOptions| lines.requested(&options, at(1_039));
        assert_eq!(range(LogOptions::default()), 0..4);
        assert_eq!(range(LogOptions { tail: Some(1), ..LogOptions::default() }), 3..4);
        assert_eq!(range(LogOptions { tail: Some(0), ..LogOptions::default() }), 4..4);
        assert_eq!(range(LogOptions { since: Some(at(1_011)), ..LogOptions::default() }), 2..4);
        assert_eq!(
            range(LogOptions { since: Some(at(1_010)), tail: Some(9), ..LogOptions::default() }),
            1..4
        );
        assert_eq!(range(LogOptions { since: Some(at(9_000)), ..LogOptions::default() }), 4..4);
        assert_eq!(lines.text(3, true), "1970-01-01T00:17:10.000000000Z line 3 of hollow container main\n");
    }

    #[test]
    fn what_could_not_be_started_says_nothing() {
        let lines = Lines { started: false, ..lines(Duration::from_secs(1)) };
        assert_eq!(lines.requested(&LogOptions::default(), at(2_000)), 0..0);
    }

    proptest! {
        #[test]
        fn no_more_is_there_than_is_kept(ran in 0..i64::from(u32::MAX), millis in 10..100_000_u64, tail: Option<u64>) {
            let lines = lines(Duration::from_millis(millis));
            let now = at(1_000 + ran);
            let range = lines.requested(&LogOptions { tail, ..LogOptions::default() }, now);
            prop_assert!((range.end - range.start) * 20 <= KEPT);
            prop_assert!(range.is_empty() || lines.time(range.end - 1) <= now);
            prop_assert!(now < lines.time(range.end));
        }
    }
}
