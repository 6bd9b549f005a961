//! The real operator under deterministic simulation: seeded schedules of users' actions and faults against the API
//! server in memory, checked after each write.
//!
//! `KUBE_NODE_SEEDS=0..1000` runs other schedules than the usual ones; `KUBE_NODE_LOG=1` prints each change.

mod checks;
mod faults;
mod network;
mod others;
mod process;
mod schedule;
mod wanted;

use std::time::Instant;

use kube_node_testing::seeds;

use crate::schedule::Schedule;

fn run(seed: u64) -> Result<u64, String> {
    let schedule = Schedule::of(seed);
    let outcome = schedule.run();
    match outcome.violation {
        None => Ok(outcome.requests),
        Some(violation) => Err(format!(
            "{schedule}\n{violation}\nreplay: KUBE_NODE_SEEDS={seed}..{} cargo test --test simulated",
            seed + 1
        )),
    }
}

#[test]
fn nothing_is_violated_and_everything_settles() {
    let begun = Instant::now();
    let wanted = std::env::var("KUBE_NODE_SEEDS").map_or(0..50, |_| seeds::wanted());
    let count = wanted.end - wanted.start;
    let requests = std::sync::atomic::AtomicU64::new(0);
    let failure = seeds::first_failure(wanted, |seed| {
        requests.fetch_add(run(seed)?, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    });
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!("{count} schedules in {seconds:.1} s, {} requests", requests.into_inner());
    if let Some((_, failure)) = failure {
        panic!("{failure}");
    }
}

#[test]
fn a_seed_repeats_its_run() {
    let wanted = std::env::var("KUBE_NODE_SEEDS").map_or(0..20, |_| seeds::wanted());
    let failure = seeds::first_failure(wanted, |seed| {
        let first = Schedule::of(seed).run();
        let second = Schedule::of(seed).run();
        let differs = first.log.iter().zip(&second.log).find(|(one, other)| one != other);
        match differs {
            None if first.log.len() == second.log.len() => Ok(()),
            lines => Err(format!("{lines:?}")),
        }
    });
    assert!(failure.is_none(), "{failure:?}");
}
