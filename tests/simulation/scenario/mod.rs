//! Scenarios of the systematic generator: what users do, without faults. Each write of such a run is then given each
//! fault once.

mod autoscaler;
mod delays;
mod people;

use crate::schedule::{Action, POD_CIDRS, Schedule};

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// Its schedule, without faults.
    pub schedule: Schedule,
}

/// All scenarios.
pub fn all() -> Vec<Scenario> {
    let plain = vec![
        Scenario::new("scale-up", users(vec![(1, scale(2)), (20, scale(5))])),
        Scenario::new("scale-down", users(vec![(1, scale(4)), (20, Action::Run(4, 3)), (40, scale(2))])),
        // Nothing that happens after its one deletion starts another reconciliation.
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
    ];
    [plain, delays::all(), autoscaler::all(), people::all()].concat()
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
