//! Reasons to replace a Node: unhealthy, of another revision, older than a restart, or expired.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::{UnhealthyCondition, time::left};
use sha2::{Digest, Sha256};
use strum::{IntoStaticStr, VariantNames};

use super::node_state::NodeState;

/// Reason to replace a Node; the names of the variants are reasons of events and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
pub enum DisruptionReason {
    /// The Node did not become Ready and initialized in time.
    FailedToStart,
    /// An unhealthy condition has lasted too long.
    Unhealthy,
    /// The machine's revision is not the one that the set asks for.
    Outdated,
    /// The Node is older than the set's last restart.
    Restarted,
    /// The Node has reached its maximum age.
    Expired,
}

impl DisruptionReason {
    /// Returns true if the Node is unhealthy: such a Node is repaired even while a rollout is paused.
    pub(super) const fn is_repair(self) -> bool {
        matches!(self, Self::FailedToStart | Self::Unhealthy)
    }
}

/// Rules for the replacement of Nodes.
#[derive(Clone, Debug, Default)]
pub struct DisruptionRules<'a> {
    /// Revision that the Nodes should have; None if unknown: no Node is outdated then.
    pub revision: Option<&'a str>,
    /// Nodes created before this time are replaced.
    pub restarted_at: Option<Timestamp>,
    /// Age at which a Node is replaced.
    pub expire_after: Option<Duration>,
    /// Maximum time from a Node's creation until it is initialized.
    pub startup_timeout: Option<Duration>,
    /// Unhealthy conditions of an initialized Node.
    pub unhealthy_conditions: &'a [UnhealthyCondition],
}

/// Reasons to replace a Node, and the time at which they may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// Reason to repair the Node.
    pub unhealthy: Option<DisruptionReason>,
    /// Reason of a rollout or a restart to replace the Node; one whose repair has to wait may still be due for it.
    pub stale: Option<DisruptionReason>,
    /// True if the Node has reached its maximum age; one that the rollout leaves alone may still have.
    pub expired: bool,
    /// Time until the reasons may change; None if they do not change with time.
    pub changes_in: Option<Duration>,
}

impl Finding {
    /// Returns true if there is a reason to replace the Node other than its repair.
    pub(super) const fn is_due(&self) -> bool {
        self.stale.is_some() || self.expired
    }

    /// Returns true if there is a reason to replace the Node.
    pub(super) const fn is_wanted(&self) -> bool {
        self.unhealthy.is_some() || self.is_due()
    }

    /// The part that counts for a Node that is leaving already: its repair.
    pub(super) fn of_leaving(self) -> Self {
        Self { unhealthy: self.unhealthy, ..Self::default() }
    }
}

/// Examines one Node.
pub fn examine(member: &NodeState<'_>, rules: &DisruptionRules<'_>, now: Timestamp) -> Finding {
    let mut finding = Finding::default();
    let mut consider = |cause: DisruptionReason, due_in: Duration| {
        if due_in.is_zero() {
            match cause {
                DisruptionReason::Expired => finding.expired = true,
                DisruptionReason::Outdated | DisruptionReason::Restarted => finding.stale = Some(cause),
                DisruptionReason::FailedToStart | DisruptionReason::Unhealthy => {
                    finding.unhealthy = Some(cause);
                }
            }
        } else {
            finding.changes_in = Some(finding.changes_in.map_or(due_in, |known| known.min(due_in)));
        }
    };
    if !member.skip_remediation {
        if member.initialized {
            // Conditions count only once the Node is initialized: before that it is still starting.
            for unhealthy in rules.unhealthy_conditions {
                let condition = member.conditions.iter().find(|condition| {
                    condition.r#type == unhealthy.r#type && condition.status == unhealthy.status
                });
                if let Some(condition) = condition {
                    let left = left(condition.since.unwrap_or(now), unhealthy.r#for.0, now);
                    consider(DisruptionReason::Unhealthy, left);
                }
            }
        } else if let Some(timeout) = rules.startup_timeout {
            consider(DisruptionReason::FailedToStart, left(member.created, timeout, now));
        }
    }
    if has_other_revision(member, rules) {
        consider(DisruptionReason::Outdated, Duration::ZERO);
    } else if is_stale(member, rules) {
        consider(DisruptionReason::Restarted, Duration::ZERO);
    }
    if let Some(age) = rules.expire_after {
        consider(DisruptionReason::Expired, left(member.created, jittered(age, member.name), now));
    }
    finding
}

/// Returns true if a rollout or a restart has to replace the Node.
pub fn is_stale(member: &NodeState<'_>, rules: &DisruptionRules<'_>) -> bool {
    has_other_revision(member, rules) || rules.restarted_at.is_some_and(|at| member.created < at)
}

fn has_other_revision(member: &NodeState<'_>, rules: &DisruptionRules<'_>) -> bool {
    rules.revision.is_some_and(|revision| member.revision != revision)
}

/// `age` reduced by up to a tenth, by the Node's name: Nodes created together do not expire together.
fn jittered(age: Duration, name: &str) -> Duration {
    let permille = u32::from(Sha256::digest(name)[0]) % 100;
    age.saturating_sub(age / 1_000 * permille)
}

#[cfg(test)]
mod tests {
    use kube_node_api::GoDuration;

    use super::*;
    use crate::node_state::ObservedCondition;
    use crate::test_fixtures::at;

    fn member(initialized: bool) -> NodeState<'static> {
        let started = initialized;
        NodeState {
            name: "a",
            revision: "v1-old",
            created: at(0),
            started,
            initialized,
            ..NodeState::default()
        }
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_node_that_never_started_is_given_up_after_its_time() {
        let rules = DisruptionRules { startup_timeout: Some(seconds(60)), ..DisruptionRules::default() };
        assert_eq!(
            examine(&member(false), &rules, at(20)),
            Finding { changes_in: Some(seconds(40)), ..Finding::default() }
        );
        assert_eq!(examine(&member(false), &rules, at(60)).unhealthy, Some(DisruptionReason::FailedToStart));
        assert_eq!(examine(&member(true), &rules, at(60)), Finding::default());
        let tainted = NodeState { started: false, ..member(true) };
        assert_eq!(examine(&tainted, &rules, at(60)), Finding::default(), "a startup taint has come back");
        let skipped = NodeState { skip_remediation: true, ..member(false) };
        assert_eq!(examine(&skipped, &rules, at(60)), Finding::default());
    }

    #[test]
    fn a_condition_counts_once_it_lasted_and_the_node_had_started() {
        let unhealthy_conditions = [UnhealthyCondition {
            r#type: "Ready".to_owned(),
            status: "Unknown".to_owned(),
            r#for: GoDuration(seconds(30)),
        }];
        let rules =
            DisruptionRules { unhealthy_conditions: &unhealthy_conditions, ..DisruptionRules::default() };
        let unhealthy = NodeState {
            conditions: vec![ObservedCondition { r#type: "Ready", status: "Unknown", since: Some(at(100)) }],
            ..member(true)
        };
        assert_eq!(
            examine(&unhealthy, &rules, at(110)),
            Finding { changes_in: Some(seconds(20)), ..Finding::default() }
        );
        assert_eq!(examine(&unhealthy, &rules, at(130)).unhealthy, Some(DisruptionReason::Unhealthy));
        let tainted = NodeState { started: false, ..unhealthy.clone() };
        assert_eq!(examine(&tainted, &rules, at(130)).unhealthy, Some(DisruptionReason::Unhealthy));
        let starting = NodeState { initialized: false, ..tainted };
        assert_eq!(examine(&starting, &rules, at(130)), Finding::default());
    }

    #[test]
    fn a_sick_node_may_be_due_for_something_else_too() {
        let rules = DisruptionRules {
            revision: Some("v1-new"),
            restarted_at: Some(at(10)),
            startup_timeout: Some(seconds(5)),
            ..DisruptionRules::default()
        };
        let late = examine(&member(false), &rules, at(20));
        assert_eq!(
            (late.unhealthy, late.stale),
            (Some(DisruptionReason::FailedToStart), Some(DisruptionReason::Outdated))
        );
        let old = examine(&member(true), &rules, at(20));
        assert_eq!((old.unhealthy, old.stale), (None, Some(DisruptionReason::Outdated)));
        let aged = DisruptionRules { expire_after: Some(seconds(15)), ..rules };
        let aged = examine(&member(true), &aged, at(20));
        assert_eq!((aged.stale, aged.expired), (Some(DisruptionReason::Outdated), true));
    }

    #[test]
    fn ages_differ_by_a_tenth_at_most() {
        let age = seconds(1_000);
        let ages: Vec<Duration> = (0..200).map(|i| jittered(age, &format!("workers-{i}"))).collect();
        assert!(ages.iter().all(|own| *own <= age && *own > seconds(900)));
        let first = ages[0];
        assert!(ages.iter().any(|own| *own != first));
        assert_eq!(jittered(age, "workers-0"), first);
    }
}
