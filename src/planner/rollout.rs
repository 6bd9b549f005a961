//! Progress deadline of a rollout, and the backoff after Nodes that fail to start.
//!
//! Input: the previous status, counts of Nodes, the time. Output: the new status, and the time left until the
//! deadline.
//!
//! Invariant: a rollout halts only if its new Nodes do not become available in time. A drain that a
//! disruption budget delays is no failure and may take any time; nor does a pause count. So the deadline runs from the
//! recorded time since which new Nodes are waited for, not from the creation of one that may have been available for long.

use std::{cmp::Reverse, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_node_api::{
    RolloutStatus, StartFailures,
    time::{after, left},
};

use super::backoff::Backoff;

/// Default of `progressDeadline`, as for Deployments.
pub const DEFAULT_DEADLINE: Duration = Duration::from_mins(10);
/// Backoff after Nodes that failed to start; kubelet's values for containers.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(5));

/// State and limits of the progress deadline.
#[derive(Clone, Debug, Default)]
pub struct ProgressDeadline<'a> {
    /// Rollout status of the previous reconciliation.
    pub old: Option<&'a RolloutStatus>,
    /// Maximum time without progress.
    pub deadline: Duration,
    /// Time at which somebody resumed a halted rollout.
    pub resumed_at: Option<Timestamp>,
}

/// Observed progress of a rollout.
#[derive(Clone, Copy, Debug)]
pub struct ObservedRollout<'a> {
    /// Revision that the Nodes should have.
    pub revision: &'a str,
    /// Number of Nodes of other revisions.
    pub outdated: usize,
    /// Number of available Nodes of the revision.
    pub available: usize,
    /// Time since which the first of the revision's Nodes that are not available is waited for ([`awaited_since`]).
    pub awaited_since: Option<Timestamp>,
    /// True if Nodes failed to start one after the other.
    pub failing: bool,
    /// True if somebody paused the rollout.
    pub paused: bool,
}

/// A Node of the revision that is not available.
#[derive(Clone, Copy, Debug)]
pub struct AwaitedNode {
    /// Creation time.
    pub created: Timestamp,
    /// Last transition of Ready, once the Node was initialized.
    pub ready_changed: Option<Timestamp>,
}

/// Time since which the first of these Nodes is waited for: its creation if it was never available, else the last transition
/// of Ready. At least `never` of them were never available; these are the youngest, since each of the others was counted.
pub fn awaited_since(mut nodes: Vec<AwaitedNode>, never: usize) -> Option<Timestamp> {
    nodes.sort_by_key(|node| Reverse(node.created));
    let since = |(place, node): (usize, &AwaitedNode)| {
        let ready_changed = node.ready_changed.filter(|_| place >= never);
        ready_changed.unwrap_or(node.created)
    };
    nodes.iter().enumerate().map(since).min()
}

/// The new rollout status, and the time left until the deadline if nothing changes.
pub fn tick(
    clock: &ProgressDeadline<'_>,
    seen: &ObservedRollout<'_>,
    now: Timestamp,
) -> (RolloutStatus, Option<Duration>) {
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let mut status = match clock.old.filter(|old| old.revision == seen.revision) {
        Some(old) => old.clone(),
        None => RolloutStatus {
            revision: seen.revision.to_owned(),
            start_time: Time(now),
            waiting_time: None,
            progress_time: Time(now),
            available: 0,
            outdated: count(seen.outdated),
            halt_time: None,
        },
    };
    // The leader before this one may have had a clock that was ahead.
    let progress_time = Time(now.max(status.progress_time.0));
    // Best values so far: a Node that turns unready and Ready again is no progress.
    if count(seen.available) > status.available || count(seen.outdated) < status.outdated {
        status.available = status.available.max(count(seen.available));
        status.outdated = status.outdated.min(count(seen.outdated));
        status.progress_time = progress_time.clone();
    }
    if let (Some(halted), Some(resumed)) = (&status.halt_time, clock.resumed_at)
        && resumed >= halted.0
    {
        status.halt_time = None;
        status.progress_time = progress_time;
    }
    let waits = seen.failing || seen.awaited_since.is_some();
    if !waits || seen.paused || status.halt_time.is_some() {
        status.waiting_time = None;
        return (status, None);
    }
    // Clocks of a leader before this one, of the API server and of kubelets may be ahead: a time later than now would keep the
    // rollout from halting until it has come. Progress may be by a little.
    let waiting = status.waiting_time.map_or(now, |waiting| waiting.0.min(now));
    status.waiting_time = Some(Time(waiting));
    let progress = Some(status.progress_time.0).filter(|time| *time <= after(now, clock.deadline));
    let of_node = seen.awaited_since.filter(|time| *time <= now && !seen.failing);
    let begun = progress.into_iter().chain(of_node).fold(waiting, Timestamp::max);
    let left = left(begun, clock.deadline, now);
    if left.is_zero() {
        status.halt_time = Some(Time(now));
        status.waiting_time = None;
        return (status, None);
    }
    (status, Some(left))
}

/// Adds Nodes of the revision `given_up`, which were given up because they failed to start. Nodes created together fail
/// together, so any number of them counts as one failure.
pub fn account(old: Option<StartFailures>, given_up: Option<&str>, now: Timestamp) -> Option<StartFailures> {
    let Some(revision) = given_up else { return old };
    let count = old.filter(|old| old.revision == revision).map_or(0, |old| old.count).saturating_add(1);
    Some(StartFailures { revision: revision.to_owned(), count, last_time: Time(now) })
}

/// Time left during which no Node is created after these failures.
pub fn back_off(failures: &StartFailures, now: Timestamp) -> Duration {
    let wait = BACKOFF.after(u32::try_from(failures.count).unwrap_or(1).max(1));
    left(failures.last_time.0, wait, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_fixtures::at;

    const DEADLINE: Duration = Duration::from_secs(100);

    fn seen(outdated: usize, available: usize, awaited_since: Option<i64>) -> ObservedRollout<'static> {
        ObservedRollout {
            revision: "v1-new",
            outdated,
            available,
            awaited_since: awaited_since.map(at),
            failing: false,
            paused: false,
        }
    }

    fn after(
        old: Option<&RolloutStatus>,
        seen: &ObservedRollout<'_>,
        now: i64,
    ) -> (RolloutStatus, Option<Duration>) {
        tick(&ProgressDeadline { old, deadline: DEADLINE, resumed_at: None }, seen, at(now))
    }

    #[test]
    fn progress_never_goes_back_with_a_clock_that_is_behind() {
        let (begun, _) = after(None, &seen(10, 0, None), 100);
        assert_eq!(after(Some(&begun), &seen(9, 1, None), 70).0.progress_time, Time(at(100)));
        assert_eq!(after(Some(&begun), &seen(9, 1, None), 130).0.progress_time, Time(at(130)));
    }

    #[test]
    fn new_nodes_that_do_not_come_halt_it_and_a_resume_lets_it_go_on() {
        let (begun, left) = after(None, &seen(10, 0, Some(0)), 0);
        assert_eq!(left, Some(DEADLINE));
        let (halted, _) = after(Some(&begun), &seen(10, 0, Some(0)), 100);
        assert_eq!(halted.halt_time, Some(Time(at(100))));
        let clock = ProgressDeadline { old: Some(&halted), deadline: DEADLINE, resumed_at: Some(at(150)) };
        let (resumed, left) = tick(&clock, &seen(10, 0, Some(0)), at(160));
        assert_eq!((resumed.halt_time, left), (None, Some(DEADLINE)));
    }

    #[test]
    fn another_revision_begins_anew() {
        let (begun, _) = after(None, &seen(10, 0, Some(0)), 0);
        let (halted, _) = after(Some(&begun), &seen(10, 0, Some(0)), 100);
        let other = ObservedRollout { revision: "v1-fix", ..seen(11, 0, None) };
        assert_eq!(after(Some(&halted), &other, 200).0.halt_time, None);
    }

    #[test]
    fn a_drain_may_take_as_long_as_it_likes() {
        let (begun, _) = after(None, &seen(10, 1, None), 0);
        assert_eq!(after(Some(&begun), &seen(10, 1, None), 100_000), (begun, None));
    }

    #[test]
    fn each_new_node_and_each_old_one_that_is_gone_is_progress() {
        let (begun, _) = after(None, &seen(10, 0, Some(0)), 0);
        let (one, left) = after(Some(&begun), &seen(10, 1, Some(0)), 90);
        assert_eq!((one.progress_time.0, left), (at(90), Some(DEADLINE)));
        let (fewer, _) = after(Some(&one), &seen(9, 0, Some(0)), 150);
        assert_eq!((fewer.progress_time.0, fewer.available), (at(150), 1));
        let (flapping, left) = after(Some(&fewer), &seen(9, 1, Some(0)), 200);
        assert_eq!((flapping.progress_time.0, left), (at(150), Some(Duration::from_secs(50))));
    }

    #[test]
    fn nodes_that_are_given_up_again_and_again_halt_it_too() {
        let (begun, _) = after(None, &seen(10, 0, Some(0)), 0);
        let failing = |since| ObservedRollout { failing: true, ..seen(10, 0, since) };
        // Between two Nodes there is none.
        let (between, left) = after(Some(&begun), &failing(None), 60);
        assert_eq!(left, Some(Duration::from_secs(40)));
        assert!(after(Some(&between), &failing(Some(95)), 100).0.halt_time.is_some());
    }

    #[test]
    fn a_new_node_that_turns_unready_after_a_long_drain_has_the_whole_deadline() {
        let (begun, _) = after(None, &seen(10, 1, None), 0);
        let unready = |since| seen(10, 0, Some(since));
        let (waiting, left) = after(Some(&begun), &unready(900), 905);
        assert_eq!((waiting.waiting_time.clone(), left), (Some(Time(at(905))), Some(DEADLINE)));
        assert_eq!(after(Some(&waiting), &unready(900), 985).1, Some(Duration::from_secs(20)));
        assert!(after(Some(&waiting), &unready(900), 1_005).0.halt_time.is_some());
        // Another Node is unready by then, and the first one is not.
        assert_eq!(after(Some(&waiting), &unready(1_000), 1_005).1, Some(Duration::from_secs(95)));
        // A taint keeps pods off a Node that has been Ready since its start.
        assert_eq!(after(Some(&begun), &unready(1), 905).1, Some(DEADLINE));
        let (over, left) = after(Some(&waiting), &seen(10, 1, None), 950);
        assert_eq!((over.waiting_time, left), (None, None));
    }

    #[test]
    fn a_pause_does_not_count() {
        let (begun, _) = after(None, &seen(10, 0, Some(0)), 0);
        let paused = ObservedRollout { paused: true, ..seen(10, 0, Some(0)) };
        let (stopped, left) = after(Some(&begun), &paused, 500);
        assert_eq!((stopped.halt_time.clone(), stopped.waiting_time.clone(), left), (None, None, None));
        assert_eq!(after(Some(&stopped), &seen(10, 0, Some(0)), 500).1, Some(DEADLINE));
    }

    #[test]
    fn a_time_in_the_future_does_not_keep_a_rollout_from_halting() {
        let (begun, _) = after(None, &seen(10, 0, None), 1_000_000);
        assert_eq!(begun.progress_time, Time(at(1_000_000)));
        let (waiting, left) = after(Some(&begun), &seen(10, 0, Some(2_000_000)), 0);
        assert_eq!((waiting.progress_time.clone(), left), (Time(at(1_000_000)), Some(DEADLINE)));
        assert!(after(Some(&waiting), &seen(10, 0, Some(2_000_000)), 100).0.halt_time.is_some());
        let ahead = RolloutStatus { waiting_time: Some(Time(at(500))), ..waiting };
        assert_eq!(after(Some(&ahead), &seen(10, 0, Some(0)), 50).0.waiting_time, Some(Time(at(50))));
    }

    #[test]
    fn a_node_is_waited_for_since_its_creation_until_it_is_available_once() {
        let node = |created, ready| AwaitedNode { created: at(created), ready_changed: Some(at(ready)) };
        let flapping = vec![node(100, 690), node(0, 700)];
        // Both were available: their kubelets have restarted.
        assert_eq!(awaited_since(flapping.clone(), 0), Some(at(690)));
        // The younger one never was: Ready comes and goes before minReadyTime is over.
        assert_eq!(awaited_since(flapping, 1), Some(at(100)));
        let uninitialized = AwaitedNode { created: at(50), ready_changed: None };
        assert_eq!(awaited_since(vec![node(0, 700), uninitialized], 1), Some(at(50)));
        assert_eq!(awaited_since(Vec::new(), 1), None);
    }

    #[test]
    fn failures_double_the_wait() {
        let mut failures = None;
        let mut waits = Vec::new();
        for _ in 0..7 {
            failures = account(failures, Some("v1-new"), at(0));
            waits.push(back_off(failures.as_ref().unwrap(), at(0)).as_secs());
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(back_off(failures.as_ref().unwrap(), at(299)), Duration::from_secs(1));
        assert_eq!(account(failures.clone(), None, at(5)), failures);
        assert_eq!(account(failures, Some("v1-other"), at(5)).map(|other| other.count), Some(1));
    }
}
