//! Desired state of a NodeSet for the planner: from its spec, its annotations and the recorded status.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::{NodeSet, ReplacementOrder, StrategyType, names, time::passed};
use kube_node_planner::{
    budget::{self, Budget, Round},
    disruption::DisruptionRules,
    rollout::{DEFAULT_DEADLINE, ProgressDeadline},
    set_planner::{DesiredState, RolloutMode, SetPlan, WorkingRevision},
    set_wait::{RESTART_NOT_DUE, RESUME_NOT_DUE, SetWait},
};

use super::observe::Observed;
use crate::reserved_taints;

/// Settings read from annotations and spec, and the problems found there.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Time of the last restart that is due.
    pub(super) restarted_at: Option<Timestamp>,
    resumed_at: Option<Timestamp>,
    /// Annotations whose time is later than now.
    not_due: Vec<SetWait>,
    /// Time until the first of them is due.
    due_in: Option<Duration>,
    /// Annotations that are no time, and reserved taints.
    pub(super) problems: Vec<SetWait>,
}

impl Settings {
    pub(super) fn of(set: &NodeSet, now: Timestamp) -> Self {
        let mut settings = Self::default();
        let restart = (names::ANNOTATION_RESTARTED_AT, RESTART_NOT_DUE, "restart");
        settings.restarted_at = settings.time(set, restart, now);
        settings.resumed_at =
            settings.time(set, (names::ANNOTATION_RESUMED_AT, RESUME_NOT_DUE, "resume"), now);
        // The schema refuses reserved taints, but the set may be older than that rule.
        let reserved = reserved_taints("spec.template", set.spec.template.as_ref());
        settings.problems.extend(reserved.map(|message| SetWait::of_set("ReservedTaint", message)));
        settings
    }

    /// Time that an annotation names, once it has come: each new Node would be older than a restart in the future, and a rollout
    /// that halts would be resumed at once. `command` is the one of `kube-node rollout` that writes the annotation.
    fn time(
        &mut self,
        set: &NodeSet,
        (annotation, not_due, command): (&str, &'static str, &str),
        now: Timestamp,
    ) -> Option<Timestamp> {
        let text = set.metadata.annotations.as_ref()?.get(annotation)?;
        let Ok(time) = text.parse() else {
            let message =
                format!("annotation {annotation} is no time: write for example 2026-01-31T12:00:00Z");
            self.problems.push(SetWait::of_set("InvalidAnnotation", message));
            return None;
        };
        if time <= now {
            return Some(time);
        }
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let message = format!(
            "annotation {annotation} is ignored until {text}: run `kube-node rollout {command} {name}`, which writes the present time"
        );
        self.not_due.push(SetWait::of_set(not_due, message));
        self.due_in = self.due_in.into_iter().chain([passed(now, time)]).min();
        None
    }

    /// Adds the annotations whose time is later than now to a plan.
    pub(super) fn report(&self, plan: &mut SetPlan<'_>) {
        plan.waits.extend(self.not_due.iter().cloned());
        plan.requeue_in(self.due_in);
    }
}

/// Builds the desired state.
pub(super) fn state<'a>(settings: &Settings, observed: &'a Observed) -> DesiredState<'a> {
    let (spec, old) = (&observed.set.spec, &observed.status);
    let replicas = usize::try_from(spec.replicas).unwrap_or(0);
    let strategy = spec.strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let partition = rolling.and_then(|rolling| rolling.partition);
    let scale_down = spec.scale_down.as_ref();
    let remediation = spec.remediation.as_ref();
    let max_unhealthy = remediation.and_then(|remediation| remediation.max_unhealthy.as_ref());
    let max_repairs = remediation.and_then(|remediation| remediation.max_in_flight);
    let startup_timeout = remediation.and_then(|remediation| remediation.node_startup_timeout);
    DesiredState {
        replicas,
        budget: Budget::of(rolling, replicas),
        min_ready: spec.min_ready_time.map(|time| time.0).unwrap_or_default(),
        order: scale_down.and_then(|scale_down| scale_down.order).unwrap_or_default(),
        replacement: strategy.and_then(|s| s.replacement).unwrap_or(ReplacementOrder::SurgeFirst),
        rules: DisruptionRules {
            revision: observed.revision(),
            restarted_at: settings.restarted_at,
            expire_after: spec.expire_after.map(|age| age.0),
            startup_timeout: startup_timeout.map(|timeout| timeout.0),
            unhealthy_conditions: remediation.map(|own| &*own.unhealthy_conditions).unwrap_or_default(),
        },
        pace: if spec.paused == Some(true) {
            RolloutMode::Held
        } else if strategy.and_then(|strategy| strategy.r#type) == Some(StrategyType::OnDelete) {
            RolloutMode::OnDelete
        } else {
            RolloutMode::Rolling { keep: partition.and_then(|keep| usize::try_from(keep).ok()).unwrap_or(0) }
        },
        clock: ProgressDeadline {
            old: old.rollout.as_ref(),
            deadline: spec.progress_deadline.map_or(DEFAULT_DEADLINE, |deadline| deadline.0),
            resumed_at: settings.resumed_at,
        },
        max_unhealthy: max_unhealthy.map_or(usize::MAX, |most| budget::amount(most, replicas, Round::Down)),
        max_repairs: max_repairs.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX),
        start_failures: old.start_failures.as_ref(),
        newest: observed.newest,
        working: observed
            .working_revision()
            .map(|revision| WorkingRevision { revision, limits: observed.working }),
        class_room: observed.class_room,
        revision_unanswered: observed.blueprint.as_ref().is_err_and(|none| none.unanswered),
        is_node_group: spec.autoscaling.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invalid_annotations_and_reserved_taints_are_problems() {
        let set: NodeSet = serde_json::from_value(json!({
            "metadata": {"name": "a", "annotations": {names::ANNOTATION_RESTARTED_AT: "yesterday"}},
            "spec": {"replicas": 1, "nodeClassName": "a", "template": {"taints": [
                {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
                {"key": "dedicated", "effect": "NoSchedule"},
            ]}},
        }))
        .unwrap();
        let problems = Settings::of(&set, Timestamp::UNIX_EPOCH).problems;
        assert_eq!(
            problems.iter().map(|p| p.reason).collect::<Vec<_>>(),
            ["InvalidAnnotation", "ReservedTaint"]
        );
        assert!(problems[0].message.contains("write for example"), "{problems:?}");
        assert!(problems[1].message.ends_with("remove node.kubernetes.io/not-ready"), "{problems:?}");
    }

    #[test]
    fn a_restart_or_a_resumption_in_the_future_is_ignored_until_then_and_reported() {
        let set: NodeSet = serde_json::from_value(json!({
            "metadata": {"name": "workers", "annotations": {
                names::ANNOTATION_RESTARTED_AT: "2027-01-01T00:00:00Z",
                names::ANNOTATION_RESUMED_AT: "2027-01-01T00:00:05Z",
            }},
            "spec": {"replicas": 1, "nodeClassName": "a"},
        }))
        .unwrap();
        let settings = |now: &str| {
            let settings = Settings::of(&set, now.parse().unwrap());
            let mut plan = SetPlan::default();
            settings.report(&mut plan);
            (settings, plan)
        };
        let (early, plan) = settings("2026-12-31T23:59:57Z");
        assert_eq!((early.restarted_at, early.resumed_at, early.problems.len()), (None, None, 0));
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(3)));
        let waits: Vec<_> = plan.waits.iter().map(|wait| (wait.reason, wait.message.as_str())).collect();
        assert_eq!(
            waits,
            [
                (
                    "RestartNotDue",
                    "annotation kube-node.io/restarted-at is ignored until 2027-01-01T00:00:00Z: run `kube-node rollout restart workers`, which writes the present time"
                ),
                (
                    "ResumeNotDue",
                    "annotation kube-node.io/resumed-at is ignored until 2027-01-01T00:00:05Z: run `kube-node rollout resume workers`, which writes the present time"
                ),
            ]
        );
        let (due, plan) = settings("2027-01-01T00:00:00Z");
        assert_eq!((due.restarted_at.is_some(), due.resumed_at), (true, None));
        assert_eq!((plan.waits.len(), plan.requeue_after), (1, Some(Duration::from_secs(5))));
    }
}
