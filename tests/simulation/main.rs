//! The decisions of `core` against a simulated cluster, by the thousands of schedules: watches that lag, repeat and begin
//! anew, an API server that loses answers, a provider that fails and loses machines, kubelets that fall silent, users who
//! scale, edit, delete and cordon at any moment, disruption budgets that allow nothing, an operator that is killed.
//!
//! At every step: never more machines than replicas and surge, never a drain that leaves fewer available than the budget
//! says, no machine deleted under its pods, no Node gone before its machine. Once nobody disturbs it any more it always
//! settles, with one machine for each Node, and with a bounded number of writes.
//!
//! `KUBE_NODE_SEEDS=0..1000000 cargo test --release --test simulation` runs others than the usual ten thousand. A seed
//! that fails is printed with the fewest actions that still fail; it goes into REGRESSIONS.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Times of a simulation are small.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod mutation;
mod operator;
mod schedule;
mod world;

use std::fmt::Write as _;

use kube_node_api::NodeSetStatus;
use kube_node_testing::seeds::{self, USUAL, first_failure};
use mutation::Mutation;
use operator::Operator;
use schedule::{ACTIVE, Schedule};
use world::World;

/// Seeds that failed once.
const REGRESSIONS: [u64; 4] = [2_208, 17_699, 36_833, 183_868];
/// How long it may take to settle, in milliseconds.
const PATIENCE: i64 = 6_000_000;
/// How long nothing must be written then.
const QUIET: i64 = 120_000;
/// More steps than any schedule needs.
const STEPS: usize = 200_000;

/// Runs one schedule.
fn run(schedule: &Schedule, mutation: Option<Mutation>) -> Result<(), String> {
    let mut world = World::new(schedule.seed, &schedule.setup);
    let mut operator = Operator::start(&mut world, NodeSetStatus::default(), 0, mutation);
    let begin = world.now;
    let calm_at = begin + ACTIVE * 1_000;
    let mut actions = schedule.actions.iter().map(|(at, action)| (begin + at * 1_000, *action)).peekable();
    let mut calm = None;
    let mut settled: Option<(i64, usize)> = None;
    for _ in 0..STEPS {
        if let Some(violation) = world.violation.take() {
            return Err(violation);
        }
        let action_at = actions.peek().map(|(at, _)| *at);
        let times = [world.next(), operator.next(), action_at, calm.is_none().then_some(calm_at)];
        let until = settled.map(|(at, _)| at + QUIET);
        let Some(next) = times.into_iter().flatten().chain(until).min() else {
            return Err(format!("it has stopped short: {}", state(&world)));
        };
        world.now = world.now.max(next);
        while let Some((_, action)) = actions.next_if(|(at, _)| *at <= world.now) {
            world.act(action);
        }
        if calm.is_none() && world.now >= calm_at {
            world.calm();
            calm = Some(world.creations + 2 * (world.spec.replicas + world.nodes.len()) + 8);
        }
        world.happen();
        operator.receive(&mut world);
        if operator.work(&mut world).is_err() {
            let (status, names) = operator.remains();
            operator = Operator::start(&mut world, status, names, mutation);
        }
        let Some(most) = calm else { continue };
        if world.creations > most {
            return Err(format!("Nodes are made again and again: {}", state(&world)));
        }
        settled = match settled {
            Some((at, writes)) if writes == world.writes => {
                if world.now >= at + QUIET {
                    return Ok(());
                }
                settled
            }
            _ => is_settled(&world).then_some((world.now, world.writes)),
        };
        if world.now > calm_at + PATIENCE {
            return Err(format!("it does not settle: {}", state(&world)));
        }
    }
    Err(format!("it spins: {}", state(&world)))
}

fn is_settled(world: &World) -> bool {
    let all_well = world.nodes.values().all(|node| {
        node.deleted_at.is_none()
            && node.revision == world.spec.revision
            && node.started()
            && node.ready_since.is_some()
    });
    all_well
        && world.nodes.len() == world.spec.replicas
        && world.machines.len() == world.nodes.len()
        && world.nodes.values().all(|node| world.machines.contains_key(&node.uid))
}

fn state(world: &World) -> String {
    let mut text = format!("{:?}", world.spec);
    for node in world.nodes.values() {
        let machine = world.machines.get(&node.uid);
        let leaves = if node.deleted_at.is_some() { " leaves" } else { "" };
        let ready = if node.ready_since.is_some() { " ready" } else { "" };
        let started = if node.started() { " started" } else { "" };
        let closed = if node.cordoned { " cordoned" } else { "" };
        let what = format!("{leaves}{ready}{started}{closed}");
        let (name, revision, pods) = (&node.name, &node.revision, node.pods);
        let _ = write!(text, "\n  {name} revision {revision}{what}, {pods} pods, machine {machine:?}");
    }
    text
}

/// The fewest actions that still fail, and how.
fn shrink(schedule: &Schedule, mutation: Option<Mutation>) -> (Schedule, String) {
    let mut least = schedule.clone();
    let mut error = run(&least, mutation).expect_err("a schedule that fails");
    let mut at = 0;
    while at < least.actions.len() {
        let mut fewer = least.clone();
        fewer.actions.remove(at);
        match run(&fewer, mutation) {
            Err(other) => (least, error) = (fewer, other),
            Ok(()) => at += 1,
        }
    }
    (least, error)
}

#[test]
fn every_schedule_ends_well() {
    for seed in REGRESSIONS {
        assert_eq!(run(&Schedule::of(seed), None), Ok(()), "seed {seed}");
    }
    let seeds = seeds::wanted();
    let start = std::time::Instant::now();
    if let Some((seed, _)) = first_failure(seeds.clone(), |seed| run(&Schedule::of(seed), None)) {
        let (least, error) = shrink(&Schedule::of(seed), None);
        panic!("seed {seed}: {error}\n{:?}\n{:?}", least.setup, least.actions);
    }
    println!(
        "{} schedules, seeds {seeds:?}, in {:.1} s",
        seeds.end - seeds.start,
        start.elapsed().as_secs_f64()
    );
}

#[test]
fn every_planted_bug_is_found() {
    for mutation in mutation::ALL {
        let found = first_failure(USUAL, |seed| run(&Schedule::of(seed), Some(mutation)));
        let (seed, _) = found.unwrap_or_else(|| panic!("{mutation:?} is not found in {USUAL:?}"));
        let (least, error) = shrink(&Schedule::of(seed), Some(mutation));
        let error = error.lines().next().unwrap_or_default();
        println!("{mutation:?}: seed {seed}, {} actions: {error}", least.actions.len());
    }
}
