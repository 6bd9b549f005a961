//! Boot ID of a machine, recorded in the Node's `nodeInfo.bootID`: a UUID of version 7.
//!
//! The UUID's timestamp is the time of the first boot; its last bytes hold the time from the first to the
//! last boot. Fault injection therefore continues after a restart of the process that runs the machine, and
//! after a reboot of the machine, without an extra write.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::time::passed;
use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

/// Bits of the UUID's second half that hold the time from the first to the last boot, in milliseconds.
const AFTER: u64 = (1 << 48) - 1;

/// Boot ID of a machine's first boot, to the millisecond.
pub fn first(machine: &str, now: Timestamp) -> Uuid {
    made(machine, u64::try_from(now.as_millisecond()).unwrap_or_default(), 0)
}

/// Boot ID of the machine's boot at `after` past its first boot, to the millisecond.
pub fn again(machine: &str, boot: Uuid, after: Duration) -> Uuid {
    // The time of the first boot is in the first 48 bits.
    let (first, _) = boot.as_u64_pair();
    made(machine, first >> 16, u64::try_from(after.as_millis()).unwrap_or(u64::MAX))
}

/// Time from the first to the last boot; None if the machine never rebooted.
pub fn after(machine: &str, boot: Uuid) -> Option<Duration> {
    let (_, second) = boot.as_u64_pair();
    let after = Duration::from_millis(second & AFTER);
    // These bytes mean nothing in a UUID of another origin, and a time past the end of the calendar is invalid.
    let is_ours = !after.is_zero() && again(machine, boot, after) == boot;
    (is_ours && time(boot)?.checked_add(after).is_ok()).then_some(after)
}

/// Time of the last reboot; None if the machine never rebooted.
pub fn rebooted(machine: &str, boot: Uuid) -> Option<Timestamp> {
    time(boot)?.checked_add(after(machine, boot)?).ok()
}

/// All bytes but time and version derive from the machine, so that every process makes the same UUID.
fn made(machine: &str, first: u64, after: u64) -> Uuid {
    let hash = Sha256::digest(format!("{machine}/{first}/{after}"));
    let mut rest = [0; 10];
    let (own, late) = rest.split_at_mut(4);
    own.copy_from_slice(&hash[..4]);
    late.copy_from_slice(&after.to_be_bytes()[2..]);
    Builder::from_unix_timestamp_millis(first, &rest).into_uuid()
}

/// The boot ID in a Node's status; None if the ID is not one of ours.
pub fn recorded(boot_id: Option<&str>) -> Option<Uuid> {
    boot_id?.parse().ok().filter(|boot| time(*boot).is_some())
}

/// Time of the first boot.
pub fn time(boot: Uuid) -> Option<Timestamp> {
    // Other UUID versions with a timestamp count from another epoch.
    let (seconds, nanos) = boot.get_timestamp().filter(|_| boot.get_version_num() == 7)?.to_unix();
    Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanos).ok()?).ok()
}

/// Time since the first boot; zero without a boot ID or if the clock is behind.
pub fn age(boot: Option<Uuid>, now: Timestamp) -> Duration {
    boot.and_then(time).map_or(Duration::ZERO, |booted| passed(booted, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_carries_its_time() {
        let now: Timestamp = "2026-01-01T00:00:00.123Z".parse().unwrap();
        let boot = first("a", now);
        assert_eq!(time(boot), Some(now));
        assert_eq!(recorded(Some(&boot.to_string())), Some(boot));
        assert_ne!(boot, first("b", now));
        assert_eq!((after("a", boot), rebooted("a", boot)), (None, None));
        let later = now + Duration::from_secs(5);
        assert_eq!(age(Some(boot), later), Duration::from_secs(5));
        assert_eq!((age(Some(boot), Timestamp::UNIX_EPOCH), age(None, later)), Default::default());
    }

    #[test]
    fn a_reboot_is_another_boot_of_the_same_machine() {
        let now: Timestamp = "2026-01-01T00:00:00.123Z".parse().unwrap();
        let boot = first("a", now);
        let once = again("a", boot, Duration::from_millis(5_007));
        let twice = again("a", once, Duration::from_hours(24 * 365));
        assert!(boot != once && once != twice);
        assert_eq!((time(once), time(twice)), (Some(now), Some(now)));
        assert_eq!(rebooted("a", once), Some(now + Duration::from_millis(5_007)));
        assert_eq!(after("a", twice), Some(Duration::from_hours(24 * 365)));
        assert_eq!(after("b", twice), None, "it is another machine's");
        assert_eq!(recorded(Some(&twice.to_string())), Some(twice));
    }

    #[test]
    fn no_boot_is_after_the_end_of_the_calendar() {
        let last = first("a", Timestamp::MAX);
        assert!(time(last).is_some(), "the day itself is none too many");
        for late in [Duration::from_secs(1), Duration::from_hours(24 * 365 * 8_000)] {
            let boot = again("a", last, late);
            assert_eq!((after("a", boot), rebooted("a", boot)), (None, None), "{late:?}");
            let made = made("a", (1 << 48) - 1, u64::try_from(late.as_millis()).unwrap());
            assert_eq!((recorded(Some(&made.to_string())), rebooted("a", made)), (None, None));
        }
        assert_eq!(age(Some(last), Timestamp::UNIX_EPOCH), Duration::ZERO);
    }

    #[test]
    fn the_boot_of_a_real_kernel_is_none_of_ours() {
        for text in [
            None,
            Some(""),
            Some("5e2f40ab-2a6b-4a2e-9d7e-6d4b8f2a1c3d"),
            Some("yesterday"),
            Some("00000000-0000-1000-8000-00805f9b34fb"),
        ] {
            assert_eq!(recorded(text), None, "{text:?}");
        }
    }
}
