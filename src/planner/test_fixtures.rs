//! Objects that unit tests share.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::{ReplacementOrder, ScaleDownOrder};

use super::{
    budget::Budget,
    disruption::DisruptionRules,
    node_state::NodeState,
    rollout::ProgressDeadline,
    set_planner::{CreationLimits, DesiredState, RolloutMode},
};

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// An available Node.
pub fn node(name: &'static str, revision: &'static str) -> NodeState<'static> {
    NodeState {
        name,
        revision,
        created: at(0),
        ready_since: Some(at(0)),
        started: true,
        initialized: true,
        ..NodeState::default()
    }
}

/// A set whose Nodes should have the revision `new`.
pub fn wanted(replicas: usize) -> DesiredState<'static> {
    DesiredState {
        replicas,
        budget: Budget { surge: 1, unavailable: 0 },
        min_ready: Duration::ZERO,
        order: ScaleDownOrder::LeastPods,
        replacement: ReplacementOrder::SurgeFirst,
        rules: DisruptionRules { revision: Some("new"), ..DisruptionRules::default() },
        pace: RolloutMode::Rolling { keep: 0 },
        clock: ProgressDeadline { deadline: Duration::from_mins(10), ..ProgressDeadline::default() },
        max_unhealthy: usize::MAX,
        max_repairs: usize::MAX,
        start_failures: None,
        newest: CreationLimits::default(),
        working: None,
        class_room: None,
        revision_unanswered: false,
        is_node_group: false,
    }
}
