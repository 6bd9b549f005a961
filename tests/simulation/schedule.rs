//! A schedule: how a set begins and what happens to it, all of it drawn from one seed.

use rand::{Rng, RngExt, SeedableRng, rngs::SmallRng};

/// What the set's spec says at the beginning.
#[derive(Clone, Debug)]
pub struct Setup {
    pub replicas: usize,
    pub surge: usize,
    pub unavailable: usize,
    pub keep: usize,
    pub delete_first: bool,
    pub on_delete: bool,
    pub min_ready: i64,
    pub startup_timeout: Option<i64>,
    pub sick_after: Option<i64>,
    pub max_sick: usize,
    pub max_repairs: usize,
    pub expire_after: Option<i64>,
    /// Longest time that the watch lags behind, in milliseconds.
    pub lag: i64,
}

/// Something that happens from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Scale(usize),
    /// The class changes; odd revisions of ten never become Ready.
    Revise(u32),
    Restart,
    Pause(bool),
    /// Somebody deletes the n-th Node.
    Delete(usize),
    Cordon(usize),
    Mark(usize),
    /// The machine of the n-th Node dies: its kubelet falls silent.
    Die(usize),
    /// The machine of the n-th Node vanishes, and its provider tells.
    Vanish(usize),
    /// Disruption budgets allow nothing for so many seconds.
    Block(i64),
    /// The provider fails for so many seconds.
    Fail(i64),
    /// The API server refuses writes, or takes them without an answer, for so many seconds.
    Outage(i64),
    /// The operator is killed after so many further writes.
    Crash(usize),
    /// The watch begins anew.
    Relist,
}

/// What happens, and at which second.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub seed: u64,
    pub setup: Setup,
    pub actions: Vec<(i64, Action)>,
}

/// Seconds in which actions happen; afterwards everything is left alone.
pub const ACTIVE: i64 = 240;

impl Schedule {
    pub fn of(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let replicas = rng.random_range(0..7);
        let (mut surge, unavailable) = (rng.random_range(0..4), rng.random_range(0..3));
        if surge + unavailable == 0 {
            surge = 1;
        }
        let mut sometimes = |one_in: u32, range: std::ops::Range<i64>| {
            rng.random_ratio(1, one_in).then(|| rng.random_range(range))
        };
        let (startup_timeout, sick_after, expire_after) =
            (sometimes(2, 20..90), sometimes(2, 5..60), sometimes(6, 60..400));
        let setup = Setup {
            replicas,
            surge,
            unavailable,
            keep: if rng.random_ratio(1, 5) { rng.random_range(0..4) } else { 0 },
            delete_first: rng.random_ratio(1, 4),
            on_delete: rng.random_ratio(1, 8),
            min_ready: if rng.random_ratio(1, 3) { rng.random_range(1..15) } else { 0 },
            startup_timeout,
            sick_after,
            max_sick: if rng.random_ratio(1, 4) { rng.random_range(0..4) } else { usize::MAX },
            max_repairs: if rng.random_ratio(1, 4) { rng.random_range(1..3) } else { usize::MAX },
            expire_after,
            lag: [0, 300, 2_000, 8_000][rng.random_range(0..4)],
        };
        let count = rng.random_range(0..12);
        let mut actions: Vec<(i64, Action)> =
            (0..count).map(|_| (rng.random_range(5..ACTIVE), action(&mut rng))).collect();
        actions.sort_by_key(|(at, _)| *at);
        Self { seed, setup, actions }
    }
}

fn action(rng: &mut impl Rng) -> Action {
    let which = rng.random_range(0..6);
    match rng.random_range(0..20) {
        0..3 => Action::Scale(rng.random_range(0..8)),
        3..7 => Action::Revise(rng.random_range(1..20)),
        7 => Action::Restart,
        8 => Action::Pause(rng.random_ratio(1, 2)),
        9 | 10 => Action::Delete(which),
        11 => Action::Cordon(which),
        12 => Action::Mark(which),
        13 => Action::Die(which),
        14 => Action::Vanish(which),
        15 => Action::Block(rng.random_range(5..120)),
        16 => Action::Fail(rng.random_range(5..60)),
        17 => Action::Outage(rng.random_range(1..20)),
        18 => Action::Crash(rng.random_range(0..4)),
        _ => Action::Relist,
    }
}
