//! Desired state of a NodeSet for the planner: from its spec, its annotations and the recorded status.

use jiff::Timestamp;
use kube_node_api::{NodeSet, ReplacementOrder, StrategyType, names};
use kube_node_planner::{
    budget::{self, Budget, Round},
    disruption::DisruptionRules,
    rollout::{DEFAULT_DEADLINE, ProgressDeadline},
    set_planner::{DesiredState, RolloutMode, WorkingRevision},
    set_wait::SetWait,
};

use super::observe::Observed;
use crate::reserved_taints;

/// Settings read from annotations and spec, and the problems found there.
#[derive(Debug, Default)]
pub(super) struct Settings {
    restarted_at: Option<Timestamp>,
    resumed_at: Option<Timestamp>,
    /// Annotations that are no time, and reserved taints.
    pub(super) problems: Vec<SetWait>,
}

impl Settings {
    pub(super) fn of(set: &NodeSet) -> Self {
        let mut settings = Self::default();
        settings.restarted_at = settings.time(set, names::ANNOTATION_RESTARTED_AT);
        settings.resumed_at = settings.time(set, names::ANNOTATION_RESUMED_AT);
        // The schema refuses reserved taints, but the set may be older than that rule.
        let reserved = reserved_taints("spec.template", set.spec.template.as_ref());
        settings.problems.extend(reserved.map(|message| SetWait::of_set("ReservedTaint", message)));
        settings
    }

    fn time(&mut self, set: &NodeSet, annotation: &str) -> Option<Timestamp> {
        let text = set.metadata.annotations.as_ref()?.get(annotation)?;
        let time = text.parse();
        if time.is_err() {
            let message =
                format!("annotation {annotation} is no time: write for example 2026-01-31T12:00:00Z");
            self.problems.push(SetWait::of_set("InvalidAnnotation", message));
        }
        time.ok()
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
        let problems = Settings::of(&set).problems;
        assert_eq!(
            problems.iter().map(|p| p.reason).collect::<Vec<_>>(),
            ["InvalidAnnotation", "ReservedTaint"]
        );
        assert!(problems[0].message.contains("write for example"), "{problems:?}");
        assert!(problems[1].message.ends_with("remove node.kubernetes.io/not-ready"), "{problems:?}");
    }
}
