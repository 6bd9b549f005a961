//! Scenarios of a set that cluster-autoscaler scales.

use super::{Scenario, late, people, users};
use crate::{
    people::Act,
    schedule::{Action, Schedule},
};

pub fn all() -> Vec<Scenario> {
    vec![
        // cluster-autoscaler has named a Node that cannot be deleted: a rollout does not count on it.
        Scenario::new(
            "refused-victim",
            Schedule {
                scaling: Some((1, 6)),
                surge: 0,
                unavailable: 1,
                active: 150,
                ..users(vec![
                    (1, Action::Need(4)),
                    (30, Action::Refuse(0)),
                    (31, Action::Need(3)),
                    // A restarted cluster-autoscaler removes its taints.
                    (70, Action::RestartAutoscaler),
                    (80, Action::Roll(7)),
                ])
            },
        ),
        // cluster-autoscaler names a Node that was deleted and made again, and no watch shows that yet.
        Scenario::new(
            "remade-and-named",
            Schedule {
                scaling: Some((1, 6)),
                active: 130,
                ..users(vec![
                    (1, Action::Need(4)),
                    (50, late("nodes", 40)),
                    (51, Action::Remake(0)),
                    (52, Action::Need(3)),
                    (110, late("nodes", 0)),
                ])
            },
        ),
        // The minimum is raised while cluster-autoscaler empties a Node: its deletion would go below it.
        Scenario::new(
            "raised-minimum",
            Schedule {
                scaling: Some((1, 6)),
                active: 100,
                ..users(vec![(1, Action::Need(4)), (41, Action::Need(3)), (61, Action::RaiseMinimum(4))])
            },
        ),
        // A Node that cannot be deleted serves nobody: the Node that cluster-autoscaler names takes its own replica along.
        Scenario::new(
            "refused-and-outdated",
            Schedule {
                scaling: Some((1, 6)),
                active: 150,
                ..people(vec![
                    (1, Action::Need(4)),
                    (30, Action::Refuse(3)),
                    (31, Action::Roll(7)),
                    // The same Node, beside three that are up to date; it counts as one of the five.
                    (60, Action::Act(Act::AgentDown(2, 90))),
                    (60, Action::Need(5)),
                    (90, Action::Need(4)),
                ])
            },
        ),
        // cluster-autoscaler gives up a scale-up while no watch shows the Nodes that were created for it.
        Scenario::new(
            "given-up-unseen",
            Schedule {
                scaling: Some((1, 6)),
                active: 140,
                ..users(vec![
                    (1, Action::Need(2)),
                    (30, late("nodes", 70)),
                    (31, Action::Need(5)),
                    (45, Action::Need(6)),
                    (120, late("nodes", 0)),
                ])
            },
        ),
        // A new process does not hear which revision is the newest, while a rollout that no status shows has a Node more.
        Scenario::new(
            "unanswered-revision",
            Schedule {
                elects: false,
                scaling: Some((1, 6)),
                active: 130,
                ..people(vec![
                    (1, Action::Need(3)),
                    (39, Action::Forbid("nodesets", 60)),
                    (40, Action::Roll(7)),
                    (41, Action::Act(Act::AgentDown(0, 60))),
                    (41, Action::Act(Act::AgentDown(1, 60))),
                    (41, Action::Act(Act::AgentDown(2, 60))),
                    (41, Action::Act(Act::AgentDown(3, 60))),
                    (54, Action::Silence("controllerrevisions", 40)),
                    (55, Action::Kill(0)),
                ])
            },
        ),
    ]
}
