//! Scenarios of the systematic generator: what users do, without faults. Each write of such a run is then given each
//! fault once.

use crate::{
    people::Act,
    schedule::{Action, POD_CIDRS, Schedule},
};

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// Its schedule, without faults.
    pub schedule: Schedule,
}

/// All scenarios.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("scale-up", users(vec![(1, scale(2)), (20, scale(5))])),
        Scenario::new("scale-down", users(vec![(1, scale(4)), (20, Action::Run(4, 3)), (40, scale(2))])),
        // Its one deletion is answered by nothing else that happens.
        Scenario::new("scale-down-by-one", users(vec![(1, scale(2)), (20, scale(1))])),
        Scenario::new("rollout", users(vec![(1, scale(3)), (20, Action::Roll(7))])),
        Scenario::new("deletion", users(vec![(1, scale(3)), (20, Action::DeleteSet("a".to_owned()))])),
        Scenario::new(
            "takeover",
            Schedule {
                operators: 2,
                ..users(vec![(1, scale(3)), (20, Action::Roll(7)), (21, Action::Kill(0)), (60, scale(4))])
            },
        ),
        // The budget has room for one of two Nodes that a user deletes. Their watch shows the second one before the drain of the
        // first one, and the order of the two changes.
        Scenario::new("two-deletions", {
            let pair = |at, first, second| {
                let deletions = [(at + 1, Action::DeleteNode(first)), (at + 2, Action::DeleteNode(second))];
                [vec![(at, late("nodes", 3))], deletions.to_vec(), vec![(at + 15, late("nodes", 0))]].concat()
            };
            let pairs = [pair(30, 1, 0), pair(60, 0, 1), pair(90, 1, 0), pair(120, 2, 1)];
            let actions = [vec![(1, scale(3))], pairs.concat()].concat();
            Schedule { surge: 0, unavailable: 1, active: 150, ..users(actions) }
        }),
        // A Node goes with pods that no watch has shown yet.
        Scenario::new(
            "unseen-pods",
            Schedule {
                kubemark: true,
                surge: 0,
                unavailable: 1,
                ..users(vec![
                    (1, scale(2)),
                    (40, late("pods", 25)),
                    (41, Action::Run(2, 0)),
                    (46, Action::DeleteNode(0)),
                    (60, late("pods", 0)),
                ])
            },
        ),
        // A Node that goes loses its machine, and takes pods that no watch has shown yet until it may be closed to them.
        Scenario::new(
            "lost-machine",
            Schedule {
                kubemark: true,
                surge: 0,
                unavailable: 1,
                active: 90,
                ..users(vec![
                    (1, scale(2)),
                    (37, Action::Forbid("nodes", 12)),
                    (38, Action::DeleteNode(0)),
                    (38, Action::LoseMachine(0, false)),
                    (40, late("pods", 30)),
                    (41, Action::Run(4, 0)),
                    (70, late("pods", 0)),
                ])
            },
        ),
        // Another set needs the last pod CIDR while nobody knows whether a Node was created with it.
        Scenario::new(
            "last-pod-cidr",
            Schedule {
                pod_cidrs: "10.64.0.0/22",
                ..users(vec![
                    (1, scale(1)),
                    (1, scale_other(0)),
                    (20, late("nodes", 15)),
                    (21, scale(2)),
                    (24, scale_other(3)),
                    (45, scale_other(2)),
                    (46, late("nodes", 0)),
                ])
            },
        ),
        // A Node whose drain is refused was not available when it got its permit, and is when the refusals end, while
        // the Node in its place does not start yet.
        Scenario::new(
            "refused-drain",
            Schedule {
                // In storms of even seeds, a Node is available seven seconds after it is Ready.
                seed: 2,
                storm: true,
                ..users(vec![
                    (1, scale_other(2)),
                    (4, Action::Forbid("nodes", 30)),
                    (5, Action::DeleteNode(0)),
                    (6, Action::Break(100)),
                    (42, Action::Roll(7)),
                ])
            },
        ),
        // The answer to a deletion is lost, and no watch shows the deletion yet when another Node has fewer pods.
        Scenario::new(
            "unanswered-deletion",
            users(vec![
                (1, scale(4)),
                (20, Action::Run(1, 0)),
                (30, late("nodes", 25)),
                (31, scale(3)),
                // The second pod goes to the Node that leaves.
                (33, Action::Run(2, 0)),
                (65, late("nodes", 0)),
            ]),
        ),
        // The answer to a creation is lost, its repetition is refused, and no watch shows the Node yet when it would be allowed.
        Scenario::new(
            "refused-repetition",
            Schedule {
                surge: 0,
                unavailable: 1,
                active: 80,
                ..users(vec![
                    (1, scale(1)),
                    (20, late("nodes", 35)),
                    (21, scale(2)),
                    (22, Action::Forbid("nodes", 10)),
                    (70, late("nodes", 0)),
                ])
            },
        ),
        // A deletion gets lost, and its Node changes before the set grows again.
        Scenario::new(
            "lost-deletion",
            users(vec![
                (1, scale(3)),
                (20, scale(2)),
                (21, Action::Mark(0)),
                (21, Action::Mark(1)),
                (21, Action::Mark(2)),
                (22, scale(3)),
            ]),
        ),
        // A set is deleted before the watch shows the Nodes by which it has grown.
        Scenario::new(
            "grown-and-deleted",
            users(vec![
                (1, scale(1)),
                (20, late("nodes", 15)),
                (21, scale(4)),
                (22, Action::DeleteSet("a".to_owned())),
                (45, late("nodes", 0)),
            ]),
        ),
        // A deletion, then creations are sent and answered while the Nodes are listed anew, and the list does not show them.
        Scenario::new(
            "relist",
            Schedule {
                active: 110,
                ..users(vec![
                    (1, scale(3)),
                    (29, late("nodes", 4)),
                    // The watch says after four seconds that its version is too old.
                    (30, Action::Relist(8)),
                    (36, scale(2)),
                    (70, Action::Relist(8)),
                    (76, scale(4)),
                    (100, late("nodes", 0)),
                ])
            },
        ),
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
        // Nodes that no watch shows for minutes have a revision that nothing else names.
        Scenario::new(
            "unseen-revision",
            Schedule {
                // Sets of even seeds keep no revision for a way back.
                seed: 2,
                // What is on its way when the delay ends comes 200 s later.
                active: 430,
                ..users(vec![
                    (1, scale(0)),
                    (20, late("nodes", 200)),
                    (21, scale(2)),
                    (30, Action::Roll(7)),
                    (40, Action::Roll(8)),
                    (221, late("nodes", 0)),
                ])
            },
        ),
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
        // A Node to which all writes are refused is outdated for minutes.
        Scenario::new(
            "refused-node",
            Schedule {
                active: 240,
                ..users(vec![(1, scale(1)), (20, Action::Refuse(0)), (21, Action::Roll(7))])
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
        // The leader hears late that it has renewed its Lease, and renews it no more.
        Scenario::new(
            "late-renewal",
            Schedule {
                operators: 2,
                ..users([vec![(1, scale(2)), (29, Action::StopAtRenewal(0, 7))], scales(44)].concat())
            },
        ),
    ]
}

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

/// A schedule of users that do this, each at its second.
fn users(actions: Vec<(u64, Action)>) -> Schedule {
    Schedule {
        seed: 1,
        operators: 1,
        elects: true,
        workers: 0,
        kubemark: false,
        surge: 1,
        unavailable: 0,
        scaling: None,
        pod_cidrs: POD_CIDRS,
        actions,
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
    }
}

/// The same on Nodes with an agent, and with people at the edges of the API.
fn people(actions: Vec<(u64, Action)>) -> Schedule {
    Schedule { has_people: true, ..users(actions) }
}

impl Scenario {
    const fn new(name: &'static str, schedule: Schedule) -> Self {
        Self { name, schedule }
    }

    /// The scenario of this name.
    pub fn named(name: &str) -> Result<Self, String> {
        let known = || all().iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
        let found = all().into_iter().find(|scenario| scenario.name == name);
        found.ok_or_else(|| format!("there is no scenario {name}; there are: {}", known()))
    }
}
