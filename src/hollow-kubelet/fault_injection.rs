//! Fault injection: the phases in which a machine behaves as unhealthy, for all providers.
//!
//! The four fields have the semantics of the kubemark actuator's provider configuration. Time counts from the
//! machine's recorded boot, so a restart of the operator does not change the phase.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::{FailureMode, Failures};
use uuid::Uuid;

use super::boot;

/// Shortest phase.
const SHORTEST: Duration = Duration::from_secs(1);

/// Health that a machine simulates at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// True if the machine behaves as healthy.
    pub healthy: bool,
    /// Time until the next phase; None if the phase lasts for ever.
    pub changes_in: Option<Duration>,
}

/// Reports of a machine to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// The true status.
    Healthy,
    /// Ready=False, while the Lease is still renewed.
    Reported,
    /// Neither Lease renewals nor status updates.
    Silent,
}

/// Behaviour in `phase` of a machine with these failures.
pub fn behaviour(failures: Option<&Failures>, phase: Phase) -> Behaviour {
    match failures.and_then(|failures| failures.mode).unwrap_or_default() {
        _ if phase.healthy => Behaviour::Healthy,
        FailureMode::Reported => Behaviour::Reported,
        FailureMode::Silent => Behaviour::Silent,
    }
}

/// A phase without an end.
const fn for_ever(healthy: bool) -> Phase {
    Phase { healthy, changes_in: None }
}

/// Phase of a machine that booted `since_boot` ago.
///
/// Periodic failures start with the unhealthy phase. A period of zero length is no failure: the machine stays healthy.
pub fn phase(failures: Option<&Failures>, since_boot: Duration) -> Phase {
    let Some(failures) = failures else { return for_ever(true) };
    let (unhealthy, healthy) = periods(failures);
    if failures.turn_unhealthy_after == Some(true) {
        let left = unhealthy.checked_sub(since_boot).filter(|left| !left.is_zero());
        return Phase { healthy: left.is_some(), changes_in: left };
    }
    if failures.turn_unhealthy_periodically != Some(true) || unhealthy.is_zero() {
        return for_ever(true);
    }
    if healthy.is_zero() {
        return for_ever(false);
    }
    let period = unhealthy.saturating_add(healthy);
    let into = nanos_modulo(since_boot, period);
    let is_healthy = into >= unhealthy;
    let end = if is_healthy { period } else { unhealthy };
    Phase { healthy: is_healthy, changes_in: Some(end.saturating_sub(into)) }
}

/// Lengths of the unhealthy and the healthy phases. A shorter one was stored before the schema refused it: each machine
/// would write its status as often.
fn periods(failures: &Failures) -> (Duration, Duration) {
    let lasting = |time: Duration| if time.is_zero() { time } else { time.max(SHORTEST) };
    (lasting(failures.unhealthy_duration.0), lasting(failures.healthy_duration.unwrap_or_default().0))
}

/// Age since the first boot at which a machine that booted `since_boot` ago last came back by a reboot; None if never.
fn came_back(failures: Option<&Failures>, since_boot: Duration) -> Option<Duration> {
    let failures = failures.filter(|failures| failures.reboot == Some(true))?;
    let (unhealthy, healthy) = periods(failures);
    // A machine that turns unhealthy once, or stays unhealthy, does not come back.
    let is_periodic =
        failures.turn_unhealthy_after != Some(true) && failures.turn_unhealthy_periodically == Some(true);
    if !is_periodic || unhealthy.is_zero() || healthy.is_zero() {
        return None;
    }
    let since_first = since_boot.checked_sub(unhealthy)?;
    since_boot.checked_sub(nanos_modulo(since_first, unhealthy.saturating_add(healthy)))
}

/// Boot ID at `now` of a machine whose Node records `boot`: a new one if the machine has rebooted since.
pub fn boot(failures: Option<&Failures>, machine: &str, boot: Uuid, now: Timestamp) -> Uuid {
    let to_millis =
        |span: Duration| Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    let known = boot::after(machine, boot).unwrap_or_default();
    match came_back(failures, boot::age(Some(boot), now)).map(to_millis) {
        Some(after) if after > known => boot::again(machine, boot, after),
        _ => boot,
    }
}

/// `span` modulo `period`, exact to the nanosecond.
fn nanos_modulo(span: Duration, period: Duration) -> Duration {
    Duration::from_nanos_u128(span.as_nanos() % period.as_nanos())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use kube_node_api::GoDuration;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn periodic(unhealthy: u64, healthy: u64) -> Failures {
        Failures {
            unhealthy_duration: GoDuration(secs(unhealthy)),
            healthy_duration: Some(GoDuration(secs(healthy))),
            turn_unhealthy_periodically: Some(true),
            ..Failures::default()
        }
    }

    #[test]
    fn unready_for_5s_then_ready_for_40s_and_again() {
        let failures = periodic(5, 40);
        for (at, healthy, left) in
            [(0, false, 5), (4, false, 1), (5, true, 40), (44, true, 1), (45, false, 5), (50, true, 40)]
        {
            assert_eq!(
                phase(Some(&failures), secs(at)),
                Phase { healthy, changes_in: Some(secs(left)) },
                "after {at} s"
            );
        }
    }

    #[test]
    fn unready_40s_after_the_start_for_ever() {
        let failures = Failures {
            unhealthy_duration: GoDuration(secs(40)),
            turn_unhealthy_after: Some(true),
            ..Failures::default()
        };
        assert_eq!(phase(Some(&failures), secs(39)), Phase { healthy: true, changes_in: Some(secs(1)) });
        assert_eq!(phase(Some(&failures), secs(40)), for_ever(false));
        assert_eq!(phase(Some(&failures), secs(4_000)), for_ever(false));
    }

    #[test]
    fn without_failures_a_machine_stays_healthy() {
        assert_eq!(phase(None, secs(1)), for_ever(true));
        assert_eq!(phase(Some(&periodic(0, 40)), secs(1)), for_ever(true));
    }

    #[test]
    fn who_reboots_comes_back_with_another_boot_each_time() {
        let failures = Failures { reboot: Some(true), ..periodic(5, 40) };
        let rows = [
            (0, None),
            (4, None),
            (5, Some(5)),
            (44, Some(5)),
            (45, Some(5)),
            (50, Some(50)),
            (99, Some(95)),
        ];
        for (at, back) in rows {
            assert_eq!(came_back(Some(&failures), secs(at)), back.map(secs), "after {at} s");
        }
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let of = |known: Uuid, at: u64| boot(Some(&failures), "a", known, start + secs(at));
        let first = boot::first("a", start);
        assert_eq!(of(first, 4), first);
        let second = of(first, 6);
        assert_ne!(second, first);
        assert_eq!((of(second, 49), of(first, 49)), (second, second), "whoever looks sees the same");
        assert_ne!(of(second, 50), second);
        let after = Failures {
            turn_unhealthy_after: Some(true),
            turn_unhealthy_periodically: None,
            ..failures.clone()
        };
        for never in [None, Some(&periodic(5, 40)), Some(&after)] {
            assert_eq!(
                (came_back(never, secs(500)), boot(never, "a", second, start + secs(500))),
                (None, second)
            );
        }
    }

    #[test]
    fn a_phase_lasts_a_second_at_least() {
        let millisecond = GoDuration(Duration::from_millis(1));
        let short = Failures {
            unhealthy_duration: millisecond,
            healthy_duration: Some(millisecond),
            ..periodic(1, 1)
        };
        for after in [0, 1, 999, 1_000, 1_999, 2_000].map(Duration::from_millis) {
            assert_eq!(phase(Some(&short), after), phase(Some(&periodic(1, 1)), after), "{after:?}");
        }
        let once = Failures { turn_unhealthy_periodically: None, turn_unhealthy_after: Some(true), ..short };
        assert_eq!(phase(Some(&once), Duration::from_millis(2)).changes_in, Some(Duration::from_millis(998)));
    }

    proptest! {
        /// The boot ID depends only on the time, not on the earlier observations; the last return starts a
        /// healthy phase.
        #[test]
        fn boots_do_not_depend_on_who_looked_when(unhealthy in 1_u64..60, healthy in 1_u64..60, mut looks in prop::collection::vec(0_u64..1_000_000, 1..20)) {
            let failures = Failures { reboot: Some(true), ..periodic(unhealthy, healthy) };
            let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
            let first = boot::first("a", start);
            looks.sort_unstable();
            let mut shown = first;
            for at in looks.into_iter().map(Duration::from_millis) {
                shown = boot(Some(&failures), "a", shown, start + at);
                prop_assert_eq!(shown, boot(Some(&failures), "a", first, start + at));
                let back = came_back(Some(&failures), at);
                prop_assert_eq!(boot::after("a", shown), back);
                if let Some(back) = back {
                    prop_assert!(back <= at && phase(Some(&failures), back).healthy);
                    prop_assert!(!phase(Some(&failures), back.saturating_sub(Duration::from_nanos(1))).healthy);
                }
            }
        }

        /// The phase changes exactly at the announced time.
        #[test]
        fn the_announced_change_is_the_next_one(unhealthy in 1_u64..600, healthy in 1_u64..600, at_ms in 0_u64..10_000_000) {
            let failures = periodic(unhealthy, healthy);
            let at = Duration::from_millis(at_ms);
            let now = phase(Some(&failures), at);
            let left = now.changes_in.expect("a periodic phase ends");
            prop_assert!(!left.is_zero());
            prop_assert_eq!(phase(Some(&failures), at + left.saturating_sub(Duration::from_nanos(1))).healthy, now.healthy);
            prop_assert_eq!(phase(Some(&failures), at + left).healthy, !now.healthy);
        }
    }
}
