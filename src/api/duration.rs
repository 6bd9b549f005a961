//! Durations in Go's notation (`5s`, `1m30s`, `1.5h`), which every Kubernetes user knows.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::schema;

/// A duration, never negative, in the notation of Go's `time.Duration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(pub Duration);

/// The text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no duration: write numbers with a unit each (h, m, s, ms), for example 1m30s")]
pub struct ParseDurationError(String);

/// Units that the schema accepts, largest first, in nanoseconds.
const UNITS: [(&str, u64); 4] =
    [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000)];

/// Texts that the schema accepts; [`GoDuration::from_str`] accepts the same.
pub(super) const PATTERN: &str = "^(0|([0-9]+([.][0-9]+)?(h|ms|m|s))+)$";

/// Maximum length of a duration's text, in bytes.
const MAX_LENGTH: usize = 32;

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(Self).ok_or_else(|| ParseDurationError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() || text.len() > MAX_LENGTH {
        return None;
    }
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| c.is_ascii_alphabetic())?);
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.saturating_add(scaled(number, *scale)?);
        rest = next;
    }
    Some(Duration::from_nanos(total))
}

/// `number` (decimal, with an optional fraction) times `scale`, at most `u64::MAX`; None if it is malformed.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    // Only digits: parsing fails only if the number is too large.
    let mut nanos = whole.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(scale);
    let mut place = scale;
    for digit in fraction.bytes() {
        place /= 10;
        nanos = nanos.saturating_add(u64::from(digit - b'0') * place);
    }
    Some(nanos)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.as_millis() == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0.as_millis();
        for (unit, nanos) in UNITS {
            let millis = u128::from(nanos / 1_000_000);
            if rest >= millis {
                write!(f, "{}{unit}", rest / millis)?;
                rest %= millis;
            }
        }
        Ok(())
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for GoDuration {
    fn schema_name() -> Cow<'static, str> {
        "GoDuration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": MAX_LENGTH, "x-kubernetes-validations": [schema::rule(
            format!("self.matches('{PATTERN}')"),
            "write a duration, for example 30s or 1h30m",
        )] })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_go_writes() {
        for (text, millis) in [
            ("0", 0),
            ("5s", 5_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("250ms", 250),
            ("1h0m0s", 3_600_000),
        ] {
            assert_eq!(text.parse(), Ok(GoDuration(Duration::from_millis(millis))), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_duration_and_says_what_to_write() {
        for text in ["", "5", "-5s", "s", "5 s", "1d", "..5s", "1.s", "5s3"] {
            let error = text.parse::<GoDuration>().expect_err(text);
            assert!(error.to_string().contains("1m30s"), "{error}");
        }
    }

    proptest! {
        /// Any text that the schema accepts can be parsed.
        #[test]
        fn what_the_schema_accepts_is_read(
            text in "(0|([0-9]{1,12}([.][0-9]{1,4})?(h|ms|m|s)){1,4})".prop_filter("too long", |text| text.len() <= MAX_LENGTH)
        ) {
            prop_assert!(text.parse::<GoDuration>().is_ok());
        }

        #[test]
        fn survives_the_round_trip(millis in 0_u64..1_000_000_000_000) {
            let duration = GoDuration(Duration::from_millis(millis));
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }
    }
}
