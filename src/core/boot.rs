//! The recorded boot of a machine: `nodeInfo.bootID` of its Node is a UUID of version 7, whose time is that of the boot.
//! So the disruptor goes on counting after a restart of whatever carries the machine, without a write of its own.

use std::time::Duration;

use jiff::Timestamp;
use uuid::{Builder, Uuid};

/// A boot at `now`, to the millisecond. `random` tells boots of one moment apart.
#[must_use]
pub fn id(now: Timestamp, random: [u8; 10]) -> Uuid {
    Builder::from_unix_timestamp_millis(u64::try_from(now.as_millisecond()).unwrap_or_default(), &random)
        .into_uuid()
}

/// The boot that a Node shows, where it is one of ours.
#[must_use]
pub fn recorded(boot_id: Option<&str>) -> Option<Uuid> {
    boot_id?.parse().ok().filter(|boot| time(*boot).is_some())
}

/// When a machine booted.
#[must_use]
pub fn time(boot: Uuid) -> Option<Timestamp> {
    let (seconds, nanos) = boot.get_timestamp()?.to_unix();
    Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanos).ok()?).ok()
}

/// How long ago a machine booted; zero where it has not, or where the clock is behind.
#[must_use]
pub fn age(boot: Option<Uuid>, now: Timestamp) -> Duration {
    let age = boot.and_then(time).map(|booted| now.duration_since(booted));
    age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_carries_its_time() {
        let now: Timestamp = "2026-01-01T00:00:00.123Z".parse().unwrap();
        let boot = id(now, [7; 10]);
        assert_eq!(time(boot), Some(now));
        assert_eq!(recorded(Some(&boot.to_string())), Some(boot));
        assert_ne!(boot, id(now, [8; 10]));
        let later = now + Duration::from_secs(5);
        assert_eq!(age(Some(boot), later), Duration::from_secs(5));
        assert_eq!((age(Some(boot), Timestamp::UNIX_EPOCH), age(None, later)), Default::default());
    }

    #[test]
    fn the_boot_of_a_real_kernel_is_none_of_ours() {
        for text in [None, Some(""), Some("5e2f40ab-2a6b-4a2e-9d7e-6d4b8f2a1c3d"), Some("yesterday")] {
            assert_eq!(recorded(text), None, "{text:?}");
        }
    }
}
