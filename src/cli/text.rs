//! Words that several commands share: lists of names, and ages as kubectl prints them.

use jiff::Timestamp;

/// Usual maximum number of names in a message.
pub(super) const NAMES_MAX: usize = 10;
const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// The names, or the first `max` of them and an ellipsis.
pub(super) fn names(names: &[String], max: usize) -> String {
    let more = if names.len() > max { ", …" } else { "" };
    names[..names.len().min(max)].join(", ") + more
}

/// Age as kubectl prints it; zero if this clock is behind.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    human(now.duration_since(since).as_secs().max(0))
}

/// Age since a time that may be unknown.
pub(super) fn age_or_dash(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or_else(|| "-".to_owned(), |since| age(since, now))
}

/// Two units while the larger one is small, else one.
fn human(seconds: i64) -> String {
    let two = |large: i64, l: &str, small: i64, s: &str| match seconds % large / small {
        0 => format!("{}{l}", seconds / large),
        rest => format!("{}{l}{rest}{s}", seconds / large),
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => two(MINUTE, "m", 1, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(HOUR, "h", MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(DAY, "d", HOUR, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two(YEAR, "y", DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_prints_them() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (330, "5m30s"),
            (7_500, "125m"),
            (11_100, "3h5m"),
            (90_000, "25h"),
            (3 * DAY + 2 * HOUR, "3d2h"),
            (30 * DAY, "30d"),
            (3 * YEAR + DAY, "3y1d"),
            (9 * YEAR, "9y"),
        ] {
            assert_eq!(human(seconds), text);
        }
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(age(at(5), at(1)), "0s");
    }

    #[test]
    fn a_list_of_names_has_an_end() {
        let all = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(names(&all, 3), "a, b, c");
        assert_eq!(names(&all, 2), "a, b, …");
        assert_eq!(names(&[], 2), "");
    }
}
