//! Log of a container: lines come at an interval from the container's start on, so any part of the log can be
//! computed, and none is stored.

use std::{ops::Range, time::Duration};

use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use kube_node_api::time;

use super::query::Query;
use crate::pod::output::{Output, Run};

/// Size of the available log, in bytes: the size at which a kubelet begins another file.
const AVAILABLE: u64 = 10 << 20;

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

/// Response of a kubelet to a value that cannot be decoded.
const UNDECODABLE: (StatusCode, &str) =
    (StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#);
/// Response of a kubelet to a value that is not allowed.
const INVALID: (StatusCode, &str) = (StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#);

impl LogOptions {
    /// Parses a query as a kubelet does: the first value of each key counts.
    pub fn read(query: &Query<'_>, now: Timestamp) -> Result<Self, (StatusCode, &'static str)> {
        let flag =
            |key| query.first(key).is_some_and(|text| text != "0" && !text.eq_ignore_ascii_case("false"));
        let number = |text: Option<&str>| text.map(str::parse::<i64>).transpose().map_err(|_| UNDECODABLE);
        // `tail` is the former name of `tailLines`.
        let tail = match query.first("tail") {
            None | Some("") => query.first("tailLines"),
            Some("all") => None,
            tail => tail,
        };
        // All values are decoded before any is validated.
        let since_time: Option<Timestamp> = match query.first("sinceTime") {
            None | Some("") => None,
            Some(time) => Some(time.parse().map_err(|_| UNDECODABLE)?),
        };
        let (tail, limit) = (number(tail)?, number(query.first("limitBytes"))?);
        let since_seconds = number(query.first("sinceSeconds"))?;
        if tail.is_some_and(|tail| tail < 0)
            || limit.is_some_and(|limit| limit < 1)
            || since_seconds.is_some_and(|seconds| seconds < 1 || since_time.is_some())
            || query.first("stream").is_some_and(|stream| !["", "All"].contains(&stream))
        {
            return Err(INVALID);
        }
        let ago = |seconds| now.checked_sub(SignedDuration::from_secs(seconds)).ok();
        Ok(Self {
            follow: flag("follow"),
            previous: flag("previous"),
            timestamps: flag("timestamps"),
            tail: tail.map(i64::unsigned_abs),
            since: since_seconds.map_or(since_time, ago),
            limit: limit.map(i64::unsigned_abs),
        })
    }
}

/// Log lines of one run of a container.
pub struct Lines {
    /// Text of each line; None for numbered lines.
    line: Option<String>,
    /// Name of the container in numbered lines.
    name: String,
    interval: Duration,
    pub run: Run,
}

impl Lines {
    /// Lines of a run of the container named `name`, such as `main of pod default/web`.
    pub fn new(output: &Output<'_>, name: String, run: Run) -> Self {
        let line = output.log_line.map(ToOwned::to_owned);
        Self { line, name, interval: output.log_interval, run }
    }

    /// Number of lines at `until`.
    pub fn count(&self, until: Timestamp) -> u64 {
        match Duration::try_from(until.duration_since(self.run.began)) {
            Ok(ran) if self.run.started => {
                u64::try_from(ran.as_nanos() / self.interval.as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
            }
            _ => 0,
        }
    }

    /// Time of a line.
    pub fn time(&self, number: u64) -> Timestamp {
        let nanos = self.interval.as_nanos().saturating_mul(number.into());
        time::after(self.run.began, Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Range of the lines requested, at `until`.
    pub fn requested(&self, options: &LogOptions, until: Timestamp) -> Range<u64> {
        let count = self.count(until);
        let size = u64::try_from(self.text(count, false).len()).unwrap_or(u64::MAX).max(1);
        let available = count.saturating_sub(AVAILABLE / size);
        let last = options.tail.map_or(0, |tail| count.saturating_sub(tail));
        // Number of the first line at this time or later.
        let first_at = |since| {
            let nanos = time::passed(self.run.began, since).as_nanos();
            u64::try_from(nanos.div_ceil(self.interval.as_nanos())).unwrap_or(u64::MAX)
        };
        available.max(last).max(options.since.map_or(0, first_at)).min(count)..count
    }

    /// Text of a line, with its end.
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
        Lines::new(&output, "main".to_owned(), Run { began: at(1_000), ended: None, started: true })
    }

    fn read(query: &[(&str, &str)]) -> Result<LogOptions, (StatusCode, &'static str)> {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        LogOptions::read(&Query::of(&format!("/?{query}").parse().unwrap()), at(1_100))
    }

    #[test]
    fn a_query_is_read_as_a_kubelet_does() {
        let options =
            read(&[("follow", "true"), ("tailLines", "0"), ("sinceSeconds", "60"), ("limitBytes", "9")]);
        let options = options.unwrap();
        assert!(options.follow && !options.previous);
        assert_eq!((options.tail, options.since, options.limit), (Some(0), Some(at(1_040)), Some(9)));
        let time = read(&[("sinceTime", "1970-01-01T00:17:00Z")]).unwrap();
        assert_eq!(time.since, Some(at(1_020)));
        for (key, value, why) in [
            ("tailLines", "-1", INVALID),
            ("limitBytes", "0", INVALID),
            ("sinceSeconds", "0", INVALID),
            ("stream", "Stderr", INVALID),
            ("tailLines", "some", UNDECODABLE),
            ("tail", "some", UNDECODABLE),
            ("limitBytes", "", UNDECODABLE),
            ("sinceTime", "now", UNDECODABLE),
        ] {
            assert_eq!(read(&[(key, value)]), Err(why), "{key}={value}");
        }
        let both = [("sinceSeconds", "5"), ("sinceTime", "1970-01-01T00:17:00Z")];
        assert_eq!(read(&both), Err(INVALID));
        assert_eq!(read(&[("tailLines", "-1"), ("limitBytes", "x")]), Err(UNDECODABLE));
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
        let mut lines = lines(Duration::from_secs(1));
        lines.run.started = false;
        assert_eq!(lines.requested(&LogOptions::default(), at(2_000)), 0..0);
    }

    proptest! {
        #[test]
        fn no_more_is_there_than_is_available(ran in 0..i64::from(u32::MAX), millis in 10..100_000_u64, tail: Option<u64>) {
            let lines = lines(Duration::from_millis(millis));
            let now = at(1_000 + ran);
            let range = lines.requested(&LogOptions { tail, ..LogOptions::default() }, now);
            prop_assert!((range.end - range.start) * 20 <= AVAILABLE);
            prop_assert!(range.is_empty() || lines.time(range.end - 1) <= now);
            prop_assert!(now < lines.time(range.end));
        }
    }
}
