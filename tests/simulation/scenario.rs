//! Scenarios of the systematic generator: what users do, without faults. Each write of such a run is then given each
//! fault once. The last five are made for faults that random schedules hardly meet.

use crate::{
    people::Act,
    schedule::{Action, POD_CIDRS, Schedule},
};

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// Its schedule, made of the usual one.
    of: fn(Schedule) -> Schedule,
}

/// All scenarios.
pub const ALL: [Scenario; 32] = [
    Scenario {
        name: "scale-up",
        of: |usual| Schedule { actions: vec![(1, scale(2)), (20, scale(5))], ..usual },
    },
    Scenario {
        name: "scale-down",
        of: |usual| Schedule {
            actions: vec![(1, scale(4)), (20, Action::Run(4, 3)), (40, scale(2))],
            ..usual
        },
    },
    Scenario {
        name: "rollout",
        of: |usual| Schedule { actions: vec![(1, scale(3)), (20, Action::Roll(7))], ..usual },
    },
    Scenario {
        name: "deletion",
        of: |usual| Schedule {
            actions: vec![(1, scale(3)), (20, Action::DeleteSet("a".to_owned()))],
            ..usual
        },
    },
    Scenario {
        name: "takeover",
        of: |usual| Schedule {
            operators: 2,
            actions: vec![(1, scale(3)), (20, Action::Roll(7)), (21, Action::Kill(0)), (60, scale(4))],
            ..usual
        },
    },
    // The budget has room for one of two Nodes that a user deletes. Their watch shows the second one before the drain of the
    // first one, and the order of the two changes.
    Scenario {
        name: "two-deletions",
        of: |usual| {
            let pair = |at, first, second| {
                let deletions = [(at + 1, Action::DeleteNode(first)), (at + 2, Action::DeleteNode(second))];
                [vec![(at, late("nodes", 3))], deletions.to_vec(), vec![(at + 15, late("nodes", 0))]].concat()
            };
            let pairs = [pair(30, 1, 0), pair(60, 0, 1), pair(90, 1, 0), pair(120, 2, 1)];
            let actions = [vec![(1, scale(3))], pairs.concat()].concat();
            Schedule { surge: 0, unavailable: 1, active: 150, actions, ..usual }
        },
    },
    // A Node goes with pods that no watch has shown yet.
    Scenario {
        name: "unseen-pods",
        of: |usual| Schedule {
            kubemark: true,
            surge: 0,
            unavailable: 1,
            actions: vec![
                (1, scale(2)),
                (40, late("pods", 25)),
                (41, Action::Run(2, 0)),
                (46, Action::DeleteNode(0)),
                (60, late("pods", 0)),
            ],
            ..usual
        },
    },
    // Another set needs the last pod CIDR while nobody knows whether a Node was created with it.
    Scenario {
        name: "last-pod-cidr",
        of: |usual| Schedule {
            pod_cidrs: "10.64.0.0/22",
            actions: vec![
                (1, scale(1)),
                (1, scale_other(0)),
                (20, late("nodes", 15)),
                (21, scale(2)),
                (24, scale_other(3)),
                (45, scale_other(2)),
                (46, late("nodes", 0)),
            ],
            ..usual
        },
    },
    // A Node whose drain is refused was not available when it got its permit, and is when the refusals end, while
    // the Node in its place does not start yet.
    Scenario {
        name: "refused-drain",
        of: |usual| Schedule {
            // In storms of even seeds, a Node is available seven seconds after it is Ready.
            seed: 2,
            storm: true,
            actions: vec![
                (1, scale_other(2)),
                (4, Action::Forbid("nodes", 30)),
                (5, Action::DeleteNode(0)),
                (6, Action::Break(100)),
                (42, Action::Roll(7)),
            ],
            ..usual
        },
    },
    // The answer to a deletion is lost, and no watch shows the deletion yet when other Nodes have fewer pods.
    Scenario {
        name: "unanswered-deletion",
        of: |usual| Schedule {
            active: 140,
            actions: vec![
                (1, scale(4)),
                (20, Action::Run(1, 0)),
                (30, late("nodes", 25)),
                (31, scale(3)),
                (33, Action::Run(5, 0)),
                (65, late("nodes", 0)),
                (70, Action::Run(1, 0)),
                (80, late("nodes", 25)),
                (81, scale(2)),
                (83, Action::Run(6, 0)),
                (115, late("nodes", 0)),
            ],
            ..usual
        },
    },
    // A deletion gets lost, and its Node changes before the set grows again.
    Scenario {
        name: "lost-deletion",
        of: |usual| Schedule {
            actions: vec![
                (1, scale(3)),
                (20, scale(2)),
                (21, Action::Mark(0)),
                (21, Action::Mark(1)),
                (21, Action::Mark(2)),
                (22, scale(3)),
            ],
            ..usual
        },
    },
    // A set is deleted before the watch shows the Nodes by which it has grown.
    Scenario {
        name: "grown-and-deleted",
        of: |usual| Schedule {
            actions: vec![
                (1, scale(1)),
                (20, late("nodes", 15)),
                (21, scale(4)),
                (22, Action::DeleteSet("a".to_owned())),
                (45, late("nodes", 0)),
            ],
            ..usual
        },
    },
    // The Nodes are listed anew while a deletion, then creations, are on their way; the list and what follows come late.
    Scenario {
        name: "relist",
        of: |usual| Schedule {
            active: 110,
            actions: vec![
                (1, scale(3)),
                (29, late("nodes", 8)),
                (30, scale(2)),
                (31, Action::Relist),
                (70, scale(4)),
                (71, Action::Relist),
                (100, late("nodes", 0)),
            ],
            ..usual
        },
    },
    // A Node that is being drained is made again with the note of its drain, and is deleted again after the time limit.
    Scenario {
        name: "remade-in-a-drain",
        of: |usual| Schedule {
            has_people: true,
            active: 120,
            drain_timeout: Some(30),
            actions: vec![
                (1, scale(2)),
                (20, Action::Run(2, 0)),
                (39, Action::Forbid("pods", 15)),
                (40, Action::DeleteNode(0)),
                (45, Action::Act(Act::RemakeLeaving)),
                (85, Action::DeleteNode(0)),
                (86, Action::DeleteNode(1)),
                (87, Action::DeleteNode(2)),
            ],
            ..usual
        },
    },
    // A Node to which all writes are refused is outdated for minutes.
    Scenario {
        name: "refused-node",
        of: |usual| Schedule {
            active: 240,
            actions: vec![(1, scale(1)), (20, Action::Refuse(0)), (21, Action::Roll(7))],
            ..usual
        },
    },
    // A restart by a clock that is years ahead: no Node is older than that, and none is replaced for ever.
    Scenario {
        name: "restart-ahead",
        of: |usual| Schedule {
            has_people: true,
            actions: vec![(1, scale(3)), (20, Action::Act(Act::Restart(300_000_000)))],
            ..usual
        },
    },
    // A resumption by such a clock: a rollout halts all the same.
    Scenario {
        name: "resume-ahead",
        of: |usual| Schedule {
            has_people: true,
            storm: true,
            active: 160,
            actions: vec![
                (1, scale(3)),
                (20, Action::Act(Act::Resume(300_000_000))),
                (21, Action::Break(100)),
            ],
            ..usual
        },
    },
    // The agent of a Node that has worked for longer than a Node may take to start is down for a while.
    Scenario {
        name: "agent-down",
        of: |usual| Schedule {
            has_people: true,
            active: 200,
            actions: vec![(1, scale(2)), (160, Action::Act(Act::AgentDown(0, 20)))],
            ..usual
        },
    },
    // A rollout is paused for longer than its progress deadline while a Node of it starts.
    Scenario {
        name: "pause",
        of: |usual| Schedule {
            has_people: true,
            storm: true,
            active: 160,
            actions: vec![
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
            ],
            ..usual
        },
    },
    // Evictions are refused for longer than the progress deadline, then the agents of new Nodes are down.
    Scenario {
        name: "held-by-drain",
        of: |usual| Schedule {
            has_people: true,
            storm: true,
            active: 120,
            actions: vec![
                (1, scale(3)),
                (10, Action::Run(3, 0)),
                (19, Action::Forbid("pods", 80)),
                (20, Action::Roll(7)),
                (90, Action::Act(Act::AgentDown(0, 5))),
                (90, Action::Act(Act::AgentDown(1, 5))),
                (90, Action::Act(Act::AgentDown(2, 5))),
                (90, Action::Act(Act::AgentDown(3, 5))),
            ],
            ..usual
        },
    },
    // The finalizer of a Node is taken away when its class has another revision.
    Scenario {
        name: "finalizer-stripped",
        of: |usual| Schedule {
            has_people: true,
            actions: vec![
                (1, scale(2)),
                (20, Action::Act(Act::Pause(30))),
                (25, Action::Roll(7)),
                (30, Action::Act(Act::Strip(0))),
            ],
            ..usual
        },
    },
    // Marked Nodes are deleted by hand while others start.
    Scenario {
        name: "marked-and-deleted",
        of: |usual| Schedule {
            has_people: true,
            actions: vec![
                (1, scale(3)),
                (20, Action::Act(Act::MarkAndDelete(0))),
                (21, Action::Act(Act::MarkAndDelete(1))),
                (22, Action::Act(Act::MarkAndDelete(2))),
            ],
            ..usual
        },
    },
    // Nodes of a set are outdated, left alone, and grow old.
    Scenario {
        name: "expiry",
        of: |usual| Schedule {
            has_people: true,
            active: 240,
            actions: vec![(1, scale(2)), (20, Action::Act(Act::Expire(220))), (25, Action::Roll(7))],
            ..usual
        },
    },
    // All Nodes of a set are sick at once, and work.
    Scenario {
        name: "repairs",
        of: |usual| Schedule {
            has_people: true,
            storm: true,
            unavailable: 3,
            actions: vec![
                (1, scale(3)),
                (20, Action::Sicken(0)),
                (20, Action::Sicken(1)),
                (20, Action::Sicken(2)),
            ],
            ..usual
        },
    },
    // A set is pinned while the Nodes of another one fail to start with the newest revision.
    Scenario {
        name: "pinned",
        of: |usual| Schedule {
            has_people: true,
            active: 200,
            actions: vec![
                (1, scale(2)),
                (1, scale_other(1)),
                // The first revision is that of another class.
                (20, Action::Act(Act::Pin(1, 200))),
                (25, Action::Break(100)),
                (160, scale(3)),
            ],
            ..usual
        },
    },
    // A set is pinned to a revision of another class.
    Scenario {
        name: "other-class",
        of: |usual| Schedule {
            has_people: true,
            actions: vec![(1, scale(2)), (20, Action::Act(Act::Pin(0, 30))), (25, scale(4))],
            ..usual
        },
    },
    // A paused set grows by its old revision, and the API server refuses its Nodes.
    Scenario {
        name: "refused-while-paused",
        of: |usual| Schedule {
            has_people: true,
            actions: vec![
                (1, scale(1)),
                (20, Action::Act(Act::Pause(50))),
                (21, Action::Roll(7)),
                (25, Action::Forbid("nodes", 40)),
                (26, scale(9)),
            ],
            ..usual
        },
    },
    // The class cannot be used right after its Nodes were refused.
    Scenario {
        name: "spoiled",
        of: |usual| Schedule {
            has_people: true,
            actions: vec![
                (1, scale(1)),
                (20, Action::Forbid("nodes", 20)),
                (21, scale(3)),
                (28, Action::Spoil(20)),
            ],
            ..usual
        },
    },
    // A class is deleted with its set, and both are made again under their names.
    Scenario {
        name: "class-remade",
        of: |usual| Schedule {
            has_people: true,
            actions: vec![
                (1, scale(2)),
                (20, Action::Act(Act::RemakeClass)),
                (50, Action::Roll(7)),
                (60, Action::DeleteNode(0)),
            ],
            ..usual
        },
    },
    // A newer release writes a revision; the present one starts anew, makes machines of it and deletes them.
    Scenario {
        name: "downgrade",
        of: |usual| Schedule {
            has_people: true,
            active: 100,
            actions: vec![
                (1, scale(2)),
                (20, Action::Act(Act::Upgrade(30))),
                (21, Action::Roll(7)),
                (60, Action::Kill(0)),
                (75, scale(3)),
                (85, Action::DeleteNode(0)),
            ],
            ..usual
        },
    },
    // A webhook takes seconds for each write to one Node, then fails for another one, while their set rolls.
    Scenario {
        name: "webhooks",
        of: |usual| Schedule {
            has_people: true,
            active: 120,
            actions: vec![
                (1, scale(3)),
                (20, Action::Act(Act::DelayWrites(0, 60))),
                (21, Action::Roll(7)),
                (80, Action::Act(Act::FailWrites(1, 30))),
                (81, Action::Roll(8)),
            ],
            ..usual
        },
    },
    // The leader hears late that it has renewed its Lease, and renews it no more.
    Scenario {
        name: "late-renewal",
        of: |usual| Schedule {
            operators: 2,
            actions: [vec![(1, scale(2)), (29, Action::StopAtRenewal(0, 7))], scales(44)].concat(),
            ..usual
        },
    },
];

fn scale(replicas: u64) -> Action {
    Action::Scale("a".to_owned(), replicas)
}

fn scale_other(replicas: u64) -> Action {
    Action::Scale("b".to_owned(), replicas)
}

/// A Node more in each of the five seconds from `at` on.
fn scales(at: u64) -> Vec<(u64, Action)> {
    (0..5).map(|second| (at + second, scale(3 + second))).collect()
}

fn late(resource: &'static str, seconds: u64) -> Action {
    Action::Late(resource, seconds)
}

impl Scenario {
    /// The scenario of this name.
    pub fn named(name: &str) -> Result<Self, String> {
        let known = || ALL.map(|scenario| scenario.name).join(", ");
        let found = ALL.into_iter().find(|scenario| scenario.name == name);
        found.ok_or_else(|| format!("there is no scenario {name}; there are: {}", known()))
    }

    /// Its schedule, without faults.
    pub fn schedule(self) -> Schedule {
        (self.of)(Schedule {
            seed: 1,
            operators: 1,
            elects: true,
            workers: 0,
            kubemark: false,
            surge: 1,
            unavailable: 0,
            scaling: None,
            pod_cidrs: POD_CIDRS,
            actions: Vec::new(),
            faults: [].into(),
            single: None,
            storm: false,
            active: 70,
            page: None,
            drain_timeout: None,
            has_volumes: false,
            spared: [].into(),
            has_people: false,
            is_instant: false,
        })
    }
}
