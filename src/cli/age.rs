//! Durations as kubectl prints them: two units while the larger one is small, else one.

use jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Time since `then`; zero if this clock is behind.
pub(super) fn since(then: Timestamp, now: Timestamp) -> String {
    human(now.duration_since(then).as_secs().max(0))
}

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
    fn spans_read_as_kubectl_has_them() {
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
        assert_eq!(since(at(5), at(1)), "0s");
    }
}
