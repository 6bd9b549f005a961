//! The real operator under deterministic simulation: schedules of users' actions and faults against the API server in
//! memory, checked after each write.
//!
//! Two generators: random schedules, each drawn from a seed, and scenarios in which each write has each fault once.
//! Settings of a run, which a failure prints as one command: `KUBE_NODE_SEEDS=0..1000` (random schedules),
//! `KUBE_NODE_SCENARIO=rollout` (all faults of a scenario), with `KUBE_NODE_FAULT=Conflict@17` (one of them);
//! `KUBE_NODE_LOG=1` prints each change, `KUBE_NODE_REQUESTS=1` each request.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod actions;
mod autoscaler;
mod autoscaler_checks;
mod cache_checks;
mod checks;
mod desired_state;
mod drains;
mod draws;
mod fault;
mod faults;
mod invariants;
mod kubemark;
mod log;
mod network;
mod objects;
mod others;
mod patches;
mod people;
mod permits;
mod preconditions;
mod process;
mod reasons;
mod reconciliations;
mod rival;
mod run;
mod scenario;
mod schedule;
mod sent;
mod shrink;
mod slow_webhooks;
mod statuses;
mod waits;

use std::{
    env::var,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use http::Method;
use kube_node_testing::seeds;

use crate::{
    fault::Fault,
    scenario::Scenario,
    schedule::{Action, Schedule},
};

/// Runs spend their time on small objects.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time for random schedules in `cargo test`, the fewest and the most of them.
const USUAL: (Duration, u64, u64) = (Duration::from_mins(1), 50, 100);
/// One in so many runs of the systematic generator is in `cargo test`.
const SAMPLE: usize = 499;
/// Seeds that showed a fault of the operator or of a check once, and the fault.
const REGRESSIONS: [(u64, &str); 41] = [
    (86, "a status without an answer was forgotten, so that the rollout's clock began anew"),
    (102, "a Node was deleted in a newer state than the one that was decided on"),
    (168, "a Node whose machine's clock was slow never counted as initialized"),
    (79, "a surge was reported for a Node whose deletion was refused"),
    (838, "the progress of a rollout went back with the clock of another leader"),
    (944, "a first status that was refused was never written"),
    (1135, "a Node whose deletion was refused was replaced again and again"),
    (2426, "a Node that did not work, and whose deletion was refused, held up a rollout"),
    (89, "a Node whose machine was lost in a restart went before it was cordoned"),
    (655, "a record of victims that was refused once was left as it was"),
    (48, "a revision went that the class had gone back to"),
    (1178, "a deletion without an answer was sent again for a newer state"),
    (600, "a revision went that a status named which no watch had shown yet"),
    (2363, "all drains waited for minutes after a pause of the process"),
    (68, "a Node went before its machine's pod, which no watch had shown yet"),
    (2422, "a Node whose machine was lost went before its pods, which a frozen watch did not show"),
    (11336, "the deletion of a machine's Secret, carried out late, took that of the next machine"),
    (
        16200,
        "a Node that cluster-autoscaler had named was answered as one that runs until the watch showed it as a victim",
    ),
    (18274, "a former Node was taken for the one of the same name that cluster-autoscaler named"),
    (24964, "a startup taint that had left the template stayed on a Node that was created with it"),
    (33456, "a creation that got no response, and was refused when it was sent again, was forgotten"),
    (36507, "a rollout counted on a victim whose deletion had failed"),
    (29549, "a Node without a machine took a pod while it went"),
    (60042, "two workers that ran the same machines wrote over each other's status as fast as they could"),
    (70192, "a creation without a response counted as none once it was refused when it was sent again"),
    (87165, "a surge went because the API server did not answer which revision is the newest"),
    (206, "a Node that could not be deleted kept cluster-autoscaler off all others"),
    (38668, "a number of Nodes was added to another size than it was computed for"),
    (56751, "a named Node was made again, since one that could not be deleted counted as surplus"),
    (57320, "a deleted Node that waited for the budget kept cluster-autoscaler off"),
    (36844, "two workers that ran the same machines wrote over each other's statuses of pods"),
    (37332, "the same, with one pod that is written by both more than fifty times in ten seconds"),
    (
        62767,
        "a deletion that was refused as a conflict, though nothing had changed, was not tried again for minutes",
    ),
    (
        57732,
        "a drain that had started was taken for one that had not, since its start was refused when it was sent once more",
    ),
    (81351, "a pod got the address of another one, which the Node had shown as its own before"),
    (7110, "a deletion whose answer was cut was taken for a refused one, and another Node went"),
    (
        3720,
        "a worker whose watch was frozen gave a pod an address that another worker had given to another pod",
    ),
    (73578, "replicas whose Nodes were created and not seen were given up as ones without a Node"),
    (
        6499,
        "two reasons of a drain, each reported until the other one, let a refused deletion be tried as fast as it could be",
    ),
    (10769, "a Node was created seconds after its set had been pinned, since a write before it was slow"),
    (9898, "deletions of Nodes of a former set counted for the set of that name (a flaw of the check)"),
];

/// The same of schedules with people, which those above do not have.
const REGRESSIONS_WITH_PEOPLE: [(u64, &str); 3] = [
    (
        13807,
        "a Node with a startup taint counted as available while the set named a revision that was not there",
    ),
    (
        16138,
        "an expired Node was to go although its set named a revision of another class (a flaw of the check)",
    ),
    (16859, "a Node that left counted as one that its rollout waited for (a flaw of the check)"),
];

/// Runs a schedule. Returns the number of requests, or the violation, what is left of the schedule with one, and the
/// command that repeats it.
fn run(schedule: &Schedule, replay: &str) -> Result<u64, String> {
    let outcome = schedule.run();
    let Some(violation) = outcome.violation else { return Ok(outcome.requests) };
    // A replay shows the schedule as it is; of planted bugs the first schedule is enough.
    let shrunk = match var("KUBE_NODE_LOG").or_else(|_| var("KUBE_NODE_PLANTED")) {
        Err(_) => schedule.clone().shrunk(Schedule::run),
        Ok(_) => schedule.clone(),
    };
    Err(format!(
        "{schedule}{violation}\nof it, this is enough: {shrunk}replay: {replay} cargo test --test simulation\n"
    ))
}

fn run_seed(seed: u64) -> Result<u64, String> {
    run(&Schedule::of(seed), &format!("KUBE_NODE_SEEDS={seed}..{}", seed + 1))
}

/// Runs what the systematic generator makes of a scenario: one run in `sample`.
fn run_scenario(scenario: &Scenario, fault: Option<(u64, Fault)>, sample: usize) -> Result<u64, String> {
    let Scenario { schedule, name } = scenario;
    let without = schedule.run();
    if let Some(violation) = without.violation {
        let replay = format!("KUBE_NODE_SCENARIO={name} cargo test --test simulation");
        return Err(format!("{name}, without a fault: {violation}\nreplay: {replay}\n"));
    }
    let of_write = |(number, method): (usize, &Method)| {
        let fitting = Fault::OF_WRITES.into_iter().filter(|fault| fault.fits(method, true));
        fitting.map(|fault| (number as u64, fault)).collect::<Vec<_>>()
    };
    let all: Vec<(u64, Fault)> = without.writes.iter().enumerate().flat_map(of_write).collect();
    let chosen: Vec<(u64, Fault)> = match fault {
        Some(fault) if all.contains(&fault) => vec![fault],
        Some((number, fault)) => {
            return Err(match without.writes.get(usize::try_from(number).unwrap()) {
                Some(method) => format!("write {number} of {name} is a {method}, which cannot have {fault}"),
                None => format!(
                    "{name} has {} writes, the first of them is 0: there is no {number}",
                    without.writes.len()
                ),
            });
        }
        None => all.into_iter().step_by(sample).collect(),
    };
    let failure = seeds::first_failure(0..chosen.len() as u64, |at| {
        let (write, fault) = chosen[usize::try_from(at).unwrap()];
        let replay = format!("KUBE_NODE_SCENARIO={} KUBE_NODE_FAULT={fault}@{write}", scenario.name);
        run(&Schedule { single: Some((write, fault)), ..schedule.clone() }, &replay).map(drop)
    });
    failure.map_or(Ok(chosen.len() as u64), |(_, failure)| Err(failure))
}

/// The fault and the write that a setting such as `Conflict@17` names.
fn parse_fault(text: &str) -> Result<(u64, Fault), String> {
    let parts = text.split_once('@').and_then(|(fault, write)| Some((fault, write.parse().ok()?)));
    let (fault, write) =
        parts.ok_or_else(|| format!("KUBE_NODE_FAULT is written as Conflict@17, not {text}"))?;
    Ok((write, Fault::of_writes(fault)?))
}

/// What a run of the tests was asked for.
#[derive(Debug)]
enum Wanted {
    /// What `cargo test` runs.
    Usual,
    /// Random schedules.
    Seeds(Range<u64>),
    /// All faults of scenarios, or one.
    Scenarios(Vec<Scenario>, Option<(u64, Fault)>),
}

impl Wanted {
    /// Panics with what to write if the settings cannot be understood.
    fn read() -> Self {
        let setting = |name| var(name).ok();
        let settings = ["KUBE_NODE_SEEDS", "KUBE_NODE_SCENARIO", "KUBE_NODE_FAULT"].map(setting);
        Self::parse(settings).unwrap_or_else(|error| panic!("{error}"))
    }

    fn parse([seeds, scenario, fault]: [Option<String>; 3]) -> Result<Self, String> {
        let fault = fault.map(|text| parse_fault(&text)).transpose()?;
        match (seeds, scenario.as_deref()) {
            (Some(_), Some(_)) => Err("KUBE_NODE_SEEDS runs random schedules, and KUBE_NODE_SCENARIO systematic ones: set one of them".to_owned()),
            (_, None) if fault.is_some() => Err("KUBE_NODE_FAULT needs a KUBE_NODE_SCENARIO".to_owned()),
            (_, Some("all")) if fault.is_some() => Err("KUBE_NODE_FAULT is of one KUBE_NODE_SCENARIO, not of all".to_owned()),
            (Some(seeds), None) => Ok(Self::Seeds(seeds::parse(&seeds)?)),
            (None, Some("all")) => Ok(Self::Scenarios(scenario::all(), None)),
            (None, Some(name)) => Ok(Self::Scenarios(vec![Scenario::named(name)?], fault)),
            (None, None) => Ok(Self::Usual),
        }
    }
}

#[test]
fn no_schedule_violates_an_invariant_and_each_settles() {
    let (is_usual, wanted) = match Wanted::read() {
        Wanted::Usual => (true, 0..USUAL.2),
        Wanted::Seeds(seeds) => (false, seeds),
        Wanted::Scenarios(..) => return,
    };
    let (begun, count, requests) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
    let again = |(seed, fault)| Some(format!("{}\nwhen it failed first, {fault}", run_seed(seed).err()?));
    let mut failure =
        REGRESSIONS.into_iter().chain(REGRESSIONS_WITH_PEOPLE).filter(|_| is_usual).find_map(again);
    let ends = |seed| is_usual && seed >= USUAL.1 && begun.elapsed() > USUAL.0;
    if failure.is_none() {
        let failed = seeds::first_failure_until(wanted, ends, |seed| {
            requests.fetch_add(run_seed(seed)?, Relaxed);
            count.fetch_add(1, Relaxed);
            Ok(())
        });
        failure = failed.map(|(_, failure)| failure);
    }
    let (count, requests, seconds) =
        (count.into_inner(), requests.into_inner(), begun.elapsed().as_secs_f64());
    println!("{count} schedules of {} requests in {seconds:.1} s", requests / count.max(1));
    if let Some(failure) = failure {
        panic!("{failure}");
    }
}

#[test]
fn no_fault_of_one_write_violates_an_invariant() {
    let (scenarios, fault, sample) = match Wanted::read() {
        Wanted::Usual => (scenario::all(), None, SAMPLE),
        Wanted::Seeds(_) => return,
        Wanted::Scenarios(scenarios, fault) => (scenarios, fault, 1),
    };
    for scenario in scenarios {
        let begun = Instant::now();
        let count = run_scenario(&scenario, fault, sample).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{}: {count} runs in {:.1} s", scenario.name, begun.elapsed().as_secs_f64());
    }
}

#[test]
fn a_seed_repeats_its_run() {
    let wanted = match Wanted::read() {
        Wanted::Usual => 0..20,
        Wanted::Seeds(seeds) => seeds.start..seeds.end.min(seeds.start + 20),
        Wanted::Scenarios(..) => return,
    };
    let failure = seeds::first_failure(wanted, |seed| {
        let log = || {
            let run = Schedule::of(seed).run();
            let changes = run.log.iter().map(ToString::to_string);
            changes.chain([format!("{} requests", run.requests)]).collect::<Vec<_>>()
        };
        let (first, second) = (log(), log());
        match first.iter().zip(&second).find(|(one, other)| one != other) {
            None if first.len() == second.len() => Ok(()),
            lines => Err(format!("{lines:?}")),
        }
    });
    if let Some((seed, difference)) = failure {
        let replay = format!("KUBE_NODE_SEEDS={seed}..{} cargo test --test simulation", seed + 1);
        panic!("seed {seed} has two logs, which differ in {difference}\nreplay: {replay}");
    }
}

#[test]
fn names_that_do_not_exist_are_refused_with_those_that_do() {
    assert_eq!(parse_fault("Conflict@17"), Ok((17, Fault::Conflict)));
    assert!(parse_fault("Conflict").unwrap_err().contains("written as Conflict@17"));
    let error = parse_fault("Confict@1").unwrap_err();
    assert!(
        error.contains("there is no fault Confict of a write; there are: Slow, LostRequest, "),
        "{error}"
    );
    assert!(parse_fault("Frozen@1").unwrap_err().contains("there is no fault Frozen of a write"));
    let error = Scenario::named("roll-out").unwrap_err();
    let known = scenario::all().iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
    assert_eq!(error, format!("there is no scenario roll-out; there are: {known}"));
    let scenario = &Scenario::named("scale-up").unwrap();
    let error = run_scenario(scenario, Some((99_999, Fault::Conflict)), 1).unwrap_err();
    assert!(error.contains("there is no 99999"), "{error}");
    let error = run_scenario(scenario, Some((0, Fault::Conflict)), 1).unwrap_err();
    assert_eq!(error, "write 0 of scale-up is a POST, which cannot have Conflict");
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let parse = |seeds: &str, scenario: &str, fault: &str| {
        let set = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Wanted::parse([set(seeds), set(scenario), set(fault)])
    };
    assert!(matches!(parse("5..7", "", ""), Ok(Wanted::Seeds(seeds)) if seeds == (5..7)));
    assert!(matches!(
        parse("", "rollout", "Conflict@17"),
        Ok(Wanted::Scenarios(_, Some((17, Fault::Conflict))))
    ));
    assert!(parse("7..5", "", "").unwrap_err().contains("not 7..5"));
    assert!(parse("5..7", "rollout", "").unwrap_err().contains("set one of them"));
    assert!(parse("", "", "Conflict@17").unwrap_err().contains("needs a KUBE_NODE_SCENARIO"));
    assert!(parse("", "all", "Conflict@17").unwrap_err().contains("not of all"));
}

#[test]
fn what_is_left_of_a_schedule_still_fails_and_has_nothing_more() {
    let usual = Scenario::named("takeover").unwrap().schedule;
    let all = Schedule { faults: [Fault::Lag, Fault::Conflict].into(), storm: true, ..usual };
    // Fails by one action, one kind of faults, and the third and the sixth of eight random faults.
    let run = |schedule: &Schedule| {
        let rolls = schedule.actions.iter().any(|(_, action)| *action == Action::Roll(7));
        let is_enough = rolls && schedule.faults.contains(&Fault::Conflict);
        let fails =
            is_enough && !schedule.is_instant && [2, 5].iter().all(|at| !schedule.spared.contains(at));
        let violation = fails.then(|| "after 1 s: it fails".to_owned());
        run::RunResult { log: Vec::new(), requests: 0, writes: Vec::new(), happened: 8, violation }
    };
    let left = all.shrunk(run);
    assert_eq!(left.actions, [(20, Action::Roll(7))]);
    assert_eq!((left.operators, left.faults), (1, [Fault::Conflict].into()));
    assert_eq!(left.spared, [0, 1, 3, 4, 6, 7].into());
    assert!(!left.is_instant);
}

#[test]
fn a_schedule_in_which_nothing_takes_time_settles_sooner() {
    let usual = Scenario::named("rollout").unwrap().schedule;
    let instant = Schedule { is_instant: true, ..usual.clone() }.run();
    assert_eq!(instant.violation, None);
    let ends = |run: &run::RunResult| run.log.iter().map(|entry| entry.0).collect::<Vec<_>>();
    assert!(ends(&instant) < ends(&usual.run()), "the first change that differs is earlier");
}
