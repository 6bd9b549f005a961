//! Scenarios of people at the edges of the API.

use super::{Scenario, late, people, scale, scale_other, users};
use crate::{
    people::Act,
    schedule::{Action, Schedule},
};

pub fn all() -> Vec<Scenario> {
    vec![
        // A Node that is being drained is made again with the note of its drain, and is deleted again after the time limit.
        Scenario::new(
            "remade-in-a-drain",
            Schedule {
                active: 120,
                drain_timeout: Some(30),
                ..people(vec![
                    (1, scale(2)),
                    (20, Action::Run(2, 0)),
                    (39, Action::Forbid("pods", 15)),
                    (40, Action::DeleteNode(0)),
                    (45, Action::Act(Act::RemakeLeaving)),
                    (85, Action::DeleteNode(0)),
                    (86, Action::DeleteNode(1)),
                    (87, Action::DeleteNode(2)),
                ])
            },
        ),
        // A restart by a clock that is years ahead: no Node is older than that, and none is replaced for ever.
        Scenario::new(
            "restart-ahead",
            people(vec![(1, scale(3)), (20, Action::Act(Act::Restart(300_000_000)))]),
        ),
        // A resumption by such a clock: a rollout halts all the same.
        Scenario::new(
            "resume-ahead",
            Schedule {
                storm: true,
                active: 160,
                ..people(vec![
                    (1, scale(3)),
                    (20, Action::Act(Act::Resume(300_000_000))),
                    (21, Action::Break(100)),
                ])
            },
        ),
        // The agent of a Node that has worked for longer than a Node may take to start is down for a while.
        Scenario::new(
            "agent-down",
            Schedule {
                active: 200,
                ..people(vec![(1, scale(2)), (160, Action::Act(Act::AgentDown(0, 20)))])
            },
        ),
        // A rollout is paused for longer than its progress deadline while a Node of it starts.
        Scenario::new(
            "pause",
            Schedule {
                storm: true,
                active: 160,
                ..people(vec![
                    (1, scale(3)),
                    (20, Action::Roll(7)),
                    (22, Action::Act(Act::Pause(100))),
                    (40, Action::Act(Act::AgentDown(0, 60))),
                    (40, Action::Act(Act::AgentDown(1, 60))),
                    (40, Action::Act(Act::AgentDown(2, 60))),
                    (40, Action::Act(Act::AgentDown(3, 60))),
                    (115, Action::Act(Act::AgentDown(0, 20))),
                    (115, Action::Act(Act::AgentDown(1, 20))),
                    (115, Action::Act(Act::AgentDown(2, 20))),
                    (115, Action::Act(Act::AgentDown(3, 20))),
                ])
            },
        ),
        // Evictions are refused for longer than the progress deadline, then the agents of new Nodes are down.
        Scenario::new(
            "held-by-drain",
            Schedule {
                storm: true,
                active: 120,
                ..people(vec![
                    (1, scale(3)),
                    (10, Action::Run(3, 0)),
                    (19, Action::Forbid("pods", 80)),
                    (20, Action::Roll(7)),
                    (90, Action::Act(Act::AgentDown(0, 5))),
                    (90, Action::Act(Act::AgentDown(1, 5))),
                    (90, Action::Act(Act::AgentDown(2, 5))),
                    (90, Action::Act(Act::AgentDown(3, 5))),
                ])
            },
        ),
        // The finalizer of a Node is taken away when its class has another revision.
        Scenario::new(
            "finalizer-stripped",
            people(vec![
                (1, scale(2)),
                (20, Action::Act(Act::Pause(30))),
                (25, Action::Roll(7)),
                (30, Action::Act(Act::Strip(0))),
            ]),
        ),
        // Marked Nodes are deleted by hand while others start.
        Scenario::new(
            "marked-and-deleted",
            people(vec![
                (1, scale(3)),
                (20, Action::Act(Act::MarkAndDelete(0))),
                (21, Action::Act(Act::MarkAndDelete(1))),
                (22, Action::Act(Act::MarkAndDelete(2))),
            ]),
        ),
        // Nodes of a set are outdated, left alone, and grow old.
        Scenario::new(
            "expiry",
            Schedule {
                active: 240,
                ..people(vec![(1, scale(2)), (20, Action::Act(Act::Expire(220))), (25, Action::Roll(7))])
            },
        ),
        // All Nodes of a set are sick at once, and work.
        Scenario::new(
            "repairs",
            Schedule {
                storm: true,
                unavailable: 3,
                ..people(vec![
                    (1, scale(3)),
                    (20, Action::Sicken(0)),
                    (20, Action::Sicken(1)),
                    (20, Action::Sicken(2)),
                ])
            },
        ),
        // A set is pinned while the Nodes of another one fail to start with the newest revision.
        Scenario::new(
            "pinned",
            Schedule {
                active: 200,
                ..people(vec![
                    (1, scale(2)),
                    (1, scale_other(1)),
                    // The first revision is that of another class.
                    (20, Action::Act(Act::Pin(1, 200))),
                    (25, Action::Break(100)),
                    // The first Node of the broken revision was given up three seconds ago.
                    (148, scale(3)),
                ])
            },
        ),
        // A set is pinned to a revision of another class.
        Scenario::new(
            "other-class",
            people(vec![(1, scale(2)), (20, Action::Act(Act::Pin(0, 30))), (25, scale(4))]),
        ),
        // A paused set grows by its old revision, and the API server refuses its Nodes.
        Scenario::new(
            "refused-while-paused",
            people(vec![
                (1, scale(1)),
                (20, Action::Act(Act::Pause(50))),
                (21, Action::Roll(7)),
                (25, Action::Forbid("nodes", 40)),
                (26, scale(15)),
            ]),
        ),
        // The class cannot be used right after its Nodes were refused.
        Scenario::new(
            "spoiled",
            people(vec![
                (1, scale(1)),
                (20, Action::Forbid("nodes", 20)),
                (21, scale(3)),
                (28, Action::Spoil(20)),
            ]),
        ),
        // A class is deleted with its set, and both are made again under their names.
        Scenario::new(
            "class-remade",
            people(vec![
                (1, scale(2)),
                (20, Action::Act(Act::RemakeClass)),
                (50, Action::Roll(7)),
                (60, Action::DeleteNode(0)),
            ]),
        ),
        // The same, while the watch of classes is late: it never shows that the former class is gone.
        Scenario::new(
            "class-remade-unseen",
            people(vec![
                (1, scale(2)),
                (19, late("nodeclasses", 6)),
                (20, Action::Act(Act::RemakeClass)),
                (28, Action::Relist(0)),
                (50, late("nodeclasses", 0)),
            ]),
        ),
        // A newer release writes a revision; the present one starts anew, makes machines of it and deletes them.
        Scenario::new(
            "downgrade",
            Schedule {
                active: 100,
                ..people(vec![
                    (1, scale(2)),
                    (20, Action::Act(Act::Upgrade(30))),
                    (21, Action::Roll(7)),
                    (60, Action::Kill(0)),
                    (75, scale(3)),
                    (85, Action::DeleteNode(0)),
                ])
            },
        ),
        // A Node has a revision with a field that this release does not know. Its finalizer is taken away, and no write gives it
        // back.
        Scenario::new(
            "downgrade-and-refused",
            Schedule {
                active: 110,
                ..people(vec![
                    (1, scale(1)),
                    (20, Action::Act(Act::Upgrade(10))),
                    (21, Action::Roll(7)),
                    (31, Action::Kill(0)),
                    (75, Action::Refuse(0)),
                    (76, Action::Act(Act::Strip(0))),
                ])
            },
        ),
        // The finalizer of a Node with a pod is taken away, and its node controller waits before it tries again to give it back:
        // the set shrinks, or goes, in that time.
        Scenario::new("unprotected-and-unwanted", unprotected(scale(0))),
        Scenario::new("unprotected-and-left", unprotected(Action::DeleteSet("a".to_owned()))),
        // A webhook takes seconds for each write to one Node, then fails for another one, while their set rolls.
        Scenario::new(
            "webhooks",
            Schedule {
                active: 120,
                ..people(vec![
                    (1, scale(3)),
                    (20, Action::Act(Act::DelayWrites(0, 60))),
                    (21, Action::Roll(7)),
                    (80, Action::Act(Act::FailWrites(1, 30))),
                    (81, Action::Roll(8)),
                ])
            },
        ),
        // A set is pinned to the revision of its Nodes while a webhook takes seconds for each change of their template.
        Scenario::new(
            "late-templates",
            people(vec![
                (1, scale(4)),
                (20, Action::Act(Act::DelayWrites(0, 60))),
                (20, Action::Act(Act::DelayWrites(1, 60))),
                (20, Action::Act(Act::DelayWrites(2, 60))),
                (20, Action::Act(Act::DelayWrites(3, 60))),
                (21, Action::Roll(7)),
                // The first revision is that of another class.
                (22, Action::Act(Act::Pin(1, 60))),
            ]),
        ),
        // Another program writes over the status of a pod: its kubelet repairs that in turn, and not at once.
        Scenario::new(
            "contested-pod",
            users(vec![(1, scale(1)), (10, Action::Run(1, 0)), (20, Action::Contest(0, 15))]),
        ),
    ]
}

/// A webhook fails for a Node whose finalizer is taken away; once the webhook works again, this is done to the set.
fn unprotected(then: Action) -> Schedule {
    people(vec![
        (1, scale(2)),
        (10, Action::Run(2, 0)),
        (20, Action::Act(Act::FailWrites(0, 30))),
        (21, Action::Act(Act::Strip(0))),
        (51, then),
    ])
}
