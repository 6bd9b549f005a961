//! cluster-autoscaler's orders against a simulated set, by the thousands of schedules: its loops as they really are
//! (concurrent deletions, retries, restarts that forget), watches that lag, an API server that loses answers or carries a
//! write out late, a server that is killed, rollouts in the middle, a controller that looks whenever it likes.
//!
//! At every step: the replicas are never raised beyond what was needed, never lowered below the minimum, and no Node goes
//! that cluster-autoscaler has not named, unless a rollout replaces it, or it was made beside an order by a look that had
//! not seen it. No order is carried out after it was answered. Once nobody disturbs it any more no scale-up is
//! refused, and there are as many Nodes as are needed.
//!
//! `KUBE_NODE_SEEDS=0..1000000 cargo test --release --test scaling` runs others than the usual ten thousand.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod caller;
mod mutation;
mod operator;
mod world;

use caller::Caller;
use kube_node_testing::seeds::{self, USUAL, first_failure};
use mutation::Mutation;
use operator::Operator;
use world::World;

/// Seconds in which something happens from outside.
const ACTIVE: i64 = 150;
/// Seconds by which everything has to be as it is asked for.
const END: i64 = 900;

/// Runs one schedule.
fn run(seed: u64, mutation: Option<Mutation>) -> Result<(), String> {
    let mut world = World::new(seed);
    let mut operator = Operator::start(&mut world, mutation);
    let mut caller = Caller::default();
    while world.now < END {
        world.now += 1;
        if world.now < ACTIVE {
            disturb(&mut world, &mut operator, &mut caller, mutation);
        } else if world.now == ACTIVE {
            world.calm();
        }
        world.happen();
        operator.receive(&mut world);
        operator.look(&mut world);
        caller.work(&mut world, &mut operator);
        if let Some(violation) = world.violation.take() {
            return Err(format!("at {} s: {violation}\n{}", world.now, world.history()));
        }
        if world.now > ACTIVE && caller.is_content(&world) {
            return Ok(());
        }
    }
    Err(format!(
        "it does not settle: {} are needed, {} replicas\n{}",
        world.needed(),
        world.set.replicas,
        world.history()
    ))
}

fn disturb(world: &mut World, operator: &mut Operator, caller: &mut Caller, mutation: Option<Mutation>) {
    match world.pick(60) {
        0 | 1 => world.need(),
        2 => world.outage(),
        3 => *operator = Operator::start(world, mutation),
        4 => caller.restart(world),
        5 => world.roll_out(),
        6 => world.lag(),
        _ => {}
    }
}

#[test]
fn every_schedule_ends_well() {
    let seeds = seeds::wanted();
    if let Some((seed, error)) = first_failure(seeds.clone(), |seed| run(seed, None)) {
        panic!("seed {seed}: {error}");
    }
    println!("{} schedules, seeds {seeds:?}", seeds.end - seeds.start);
}

#[test]
fn every_planted_bug_is_found() {
    for mutation in mutation::ALL {
        let found = first_failure(USUAL, |seed| run(seed, Some(mutation)));
        let (seed, error) = found.unwrap_or_else(|| panic!("{mutation:?} is not found in {USUAL:?}"));
        println!("{mutation:?}: seed {seed}: {}", error.lines().next().unwrap_or_default());
    }
}
