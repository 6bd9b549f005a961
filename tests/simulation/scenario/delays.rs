//! Scenarios in which watches, lists, answers or rights come late at the worst moment, or a clock is wrong.

use super::{Scenario, late, scale, scale_other, scales, users};
use crate::schedule::{Action, Schedule};

pub fn all() -> Vec<Scenario> {
    vec![
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
        // A process takes over that no watch has shown the Node by which the set has grown, and its list takes seconds.
        Scenario::new(
            "takeover-unseen",
            Schedule {
                operators: 2,
                surge: 0,
                unavailable: 1,
                active: 110,
                ..users(vec![
                    (1, scale(1)),
                    (20, late("nodes", 60)),
                    (21, scale(2)),
                    // The second process leads.
                    (23, Action::Kill(1)),
                    // The first process leads after half a second.
                    (37, Action::Relist(8)),
                    (85, late("nodes", 0)),
                ])
            },
        ),
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
        // The first Node is deleted at once; the watch shows that after 15 s, and its drain may start 15 s later.
        refused_again("refused-deletion-again", 31),
        refused_again("refused-drain-again", 61),
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
        // A Node to which all writes are refused is outdated for minutes.
        Scenario::new(
            "refused-node",
            Schedule {
                active: 240,
                ..users(vec![(1, scale(1)), (20, Action::Refuse(0)), (21, Action::Roll(7))])
            },
        ),
        // A worker is lost, and the watch of the other one has not shown what the pods of its machines have.
        Scenario::new(
            "lost-worker",
            Schedule {
                workers: 2,
                active: 80,
                ..users(vec![
                    (1, scale(2)),
                    (10, Action::Run(4, 0)),
                    // The second worker has started these pods one after another when the first one lists them without addresses.
                    (27, Action::Kill(1)),
                    (29, Action::Forbid("pods", 10)),
                    (30, Action::Run(6, 0)),
                    (31, Action::Run(8, 0)),
                    (33, late("pods", 60)),
                    (45, Action::LoseHost(2)),
                    (70, late("pods", 0)),
                ])
            },
        ),
        // The Secret of a machine that ended is deleted late: after it has been written anew for the next machine of its Node.
        Scenario::new(
            "secret-written-anew",
            Schedule {
                kubemark: true,
                ..users(vec![
                    (1, scale(2)),
                    (20, Action::LoseMachine(0, true)),
                    (21, Action::Forbid("secrets", 4)),
                ])
            },
        ),
        // The clock of a worker is ahead: it takes no machine of another one for that.
        Scenario::new(
            "worker-ahead",
            Schedule {
                workers: 2,
                ..users(vec![
                    (1, scale(3)),
                    (10, Action::Run(4, 0)),
                    (20, Action::ClockError(2, 60)),
                    (50, Action::ClockError(2, 0)),
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

/// The answer to a deletion or to the start of a drain is lost, the repetition is refused from this second on, and no watch shows the effect
/// yet when another Node may go in its place.
fn refused_again(name: &'static str, second: u64) -> Scenario {
    let actions = vec![
        (1, scale(3)),
        (29, late("nodes", 15)),
        (30, Action::Roll(7)),
        (second, Action::Forbid("nodes", 8)),
        (90, late("nodes", 0)),
    ];
    Scenario::new(name, Schedule { surge: 0, unavailable: 1, active: 130, ..users(actions) })
}
