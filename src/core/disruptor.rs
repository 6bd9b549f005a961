//! The disruptor: whether a machine is to behave as unhealthy, and until when. One implementation for every provider.
//!
//! The meaning of the four fields is that of the kubemark actuator's provider configuration. Time counts from the
//! machine's recorded boot, so a restart of the operator changes nothing.

use std::time::Duration;

use crate::api::{FailureMode, Failures};

/// How a machine is to behave now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Whether the machine is to look healthy.
    pub healthy: bool,
    /// How long from now until that changes; None when it never does.
    pub changes_in: Option<Duration>,
}

/// What the cluster hears of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// The truth.
    Healthy,
    /// Ready=False, while its Lease goes on.
    Reported,
    /// Nothing: neither Lease nor status.
    Silent,
}

/// How a machine with these failures behaves in `phase`.
#[must_use]
pub fn behaviour(failures: Option<&Failures>, phase: Phase) -> Behaviour {
    match failures.and_then(|failures| failures.mode).unwrap_or_default() {
        _ if phase.healthy => Behaviour::Healthy,
        FailureMode::Reported => Behaviour::Reported,
        FailureMode::Silent => Behaviour::Silent,
    }
}

/// A phase that lasts for ever.
const fn for_ever(healthy: bool) -> Phase {
    Phase { healthy, changes_in: None }
}

/// The phase of a machine that booted `since_boot` ago.
///
/// Periodic failures begin with the unhealthy phase. A period of no length at all is no failure: the machine is healthy.
#[must_use]
pub fn phase(failures: Option<&Failures>, since_boot: Duration) -> Phase {
    let Some(failures) = failures else { return for_ever(true) };
    let unhealthy = failures.unhealthy_duration.0;
    if failures.turn_unhealthy_after == Some(true) {
        return match unhealthy.checked_sub(since_boot) {
            Some(left) if !left.is_zero() => Phase { healthy: true, changes_in: Some(left) },
            _ => for_ever(false),
        };
    }
    if failures.turn_unhealthy_periodically != Some(true) {
        return for_ever(true);
    }
    let healthy = failures.healthy_duration.unwrap_or_default().0;
    match (unhealthy.is_zero(), healthy.is_zero()) {
        (true, _) => for_ever(true),
        (false, true) => for_ever(false),
        (false, false) => {
            let period = unhealthy.saturating_add(healthy);
            let into = nanos_modulo(since_boot, period);
            if into < unhealthy {
                Phase { healthy: false, changes_in: Some(unhealthy.saturating_sub(into)) }
            } else {
                Phase { healthy: true, changes_in: Some(period.saturating_sub(into)) }
            }
        }
    }
}

/// `span` modulo `period`, exact to the nanosecond.
fn nanos_modulo(span: Duration, period: Duration) -> Duration {
    let rest = span.as_nanos() % period.as_nanos();
    let (seconds, nanos) = (rest / 1_000_000_000, rest % 1_000_000_000);
    // Both fit: rest < period, which is a Duration itself.
    Duration::new(u64::try_from(seconds).unwrap_or(u64::MAX), u32::try_from(nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::GoDuration;

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

    proptest! {
        /// Nothing changes before the announced moment, and at that moment it does.
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
