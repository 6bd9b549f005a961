//! Scenarios of the systematic generator: what users do, without faults. Each write of such a run is then given each
//! fault once.

use crate::schedule::{Action, Schedule};

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    operators: usize,
    actions: fn() -> Vec<(u64, Action)>,
}

/// All scenarios.
pub const ALL: [Scenario; 5] = [
    Scenario { name: "scale-up", operators: 1, actions: || vec![(1, scale(2)), (20, scale(5))] },
    Scenario {
        name: "scale-down",
        operators: 1,
        actions: || vec![(1, scale(4)), (20, Action::Run(4, 3)), (40, scale(2))],
    },
    Scenario { name: "rollout", operators: 1, actions: || vec![(1, scale(3)), (20, Action::Roll(7))] },
    Scenario {
        name: "deletion",
        operators: 1,
        actions: || vec![(1, scale(3)), (20, Action::DeleteSet("a".to_owned()))],
    },
    Scenario {
        name: "takeover",
        operators: 2,
        actions: || vec![(1, scale(3)), (20, Action::Roll(7)), (21, Action::Kill(0)), (60, scale(4))],
    },
];

fn scale(replicas: u64) -> Action {
    Action::Scale("a".to_owned(), replicas)
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
        Schedule {
            seed: 1,
            operators: self.operators,
            elects: true,
            workers: 0,
            kubemark: false,
            surge: 1,
            unavailable: 0,
            scaling: None,
            actions: (self.actions)(),
            faults: [].into(),
            single: None,
            storm: false,
            active: 70,
            page: None,
            drain_timeout: None,
            has_volumes: false,
            spared: [].into(),
            is_instant: false,
        }
    }
}
