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
pub const ALL: [Scenario; 17] = [
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
