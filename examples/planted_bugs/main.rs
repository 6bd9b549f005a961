//! Plants bugs in the operator's source, one at a time, and shows that the simulation finds each of them.
//!
//! `cargo run --example planted_bugs -- [--seeds N] [--seconds N] [NAME…]`: the bugs of these names, else all of them.
//! Input: the files `tests/simulation/planted_bugs*.yaml` and the tracked files of this repository. Output: a table with
//! the first schedule that finds each bug, and the violation; exit code 1 if one is not found, or one that is listed as harmless is.
//!
//! A copy of the source, in `target/planted-bugs/source`, gets the edits of all bugs and is built once, in
//! `target/planted-bugs/target` or `CARGO_TARGET_DIR`; `KUBE_NODE_PLANTED` switches on one bug. Without a bug the copy has
//! to pass. A bug is tried with the test, the scenario or the schedule that is known to find it, if its list has one; else, or if
//! that one does not find it any more, with the first schedules, and then with the scenarios of the systematic generator, each
//! for `--seconds` at most.

mod bugs;
mod source;
mod trial;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};

use crate::{
    bugs::Bug,
    trial::{Found, Simulation},
};

/// Longest violation in the table, in characters.
const LONGEST: usize = 110;

/// Arguments of the command line.
struct Options {
    seeds: u64,
    limit: Duration,
    names: Vec<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = parse(std::env::args().skip(1))?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all = bugs::read(root)?;
    let chosen = choose(&all, &options.names)?;
    let folder = root.join("target/planted-bugs");
    let copy = folder.join("source");
    source::copy(root, &copy, &all)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| folder.join("target"), PathBuf::from);
    let program = source::build(&copy, &target)?;
    let begun = Instant::now();
    let output = folder.join("output");
    let simulation = Simulation::new(&program, &copy, &output);
    // A schedule that fails without a bug would find all of them.
    if let Some(found) = simulation.random(None, 0..options.seeds, Duration::MAX)? {
        bail!("without a bug, {}: {}", found.by, found.violation);
    }
    println!("without a bug: {} schedules pass in {:.0} s\n", options.seeds, begun.elapsed().as_secs_f64());
    println!("| bug | found by | schedules | violation |\n| --- | --- | --- | --- |");
    let (mut detected, mut unexpected) = (0, 0);
    for bug in &chosen {
        let name = Some(bug.name.as_str());
        let known = bug.seed.map(|seed| seed..seed + 1);
        let mut found = match &bug.test {
            Some(test) => simulation.test(name, test)?,
            None => None,
        };
        if let Some(scenario) = &bug.scenario {
            found = simulation.systematic(name, scenario, options.limit)?;
        }
        for seeds in known.into_iter().chain(std::iter::once(0..options.seeds)) {
            if found.is_none() {
                found = simulation.random(name, seeds, options.limit)?;
            }
        }
        if found.is_none() {
            found = simulation.systematic(name, "all", options.limit)?;
        }
        unexpected += usize::from(found.is_some() == bug.harmless.is_some());
        if let Some(Found { by, schedules, violation }) = found {
            println!("| `{}` | {by} | {schedules} | {} |", bug.name, shown(&violation));
            detected += 1;
        } else {
            let reason = bug.harmless.as_deref().map(|reason| format!("harmless: {reason}"));
            println!("| `{}` | nothing | | {} |", bug.name, reason.as_deref().unwrap_or_default());
        }
    }
    println!("\n{detected} of {} bugs are found; {unexpected} are not as the list says", chosen.len());
    Ok(if unexpected == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A violation as a cell of the table.
fn shown(violation: &str) -> String {
    let violation = violation.replace('|', "\\|").replace('{', "(").replace('}', ")");
    match violation.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &violation[..end]),
        None => violation,
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Options> {
    let mut options = Options { seeds: 2_000, limit: Duration::from_mins(2), names: Vec::new() };
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().and_then(|value| value.parse().ok());
            value.with_context(|| format!("{argument} needs a number"))
        };
        match argument.as_str() {
            "--seeds" => options.seeds = number()?,
            "--seconds" => options.limit = Duration::from_secs(number()?),
            unknown if unknown.starts_with('-') => bail!("there is no option {unknown}"),
            _ => options.names.push(argument),
        }
    }
    Ok(options)
}

/// The bugs of these names; all of them if there is no name.
fn choose<'a>(all: &'a [Bug], names: &[String]) -> anyhow::Result<Vec<&'a Bug>> {
    let known = || all.iter().map(|bug| bug.name.as_str()).collect::<Vec<_>>().join(", ");
    for name in names {
        ensure!(all.iter().any(|bug| bug.name == *name), "there is no bug {name}; there are: {}", known());
    }
    Ok(all.iter().filter(|bug| names.is_empty() || names.contains(&bug.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_can_be_planted_in_the_present_source() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let all = bugs::read(root).unwrap();
        assert!(all.len() >= 40, "{} bugs", all.len());
        source::edited(root, &all).unwrap();
    }

    #[test]
    fn an_unknown_name_is_refused_with_those_that_there_are() {
        let bug = |name: &str| Bug {
            name: name.to_owned(),
            seed: None,
            scenario: None,
            test: None,
            harmless: None,
            edits: Vec::new(),
        };
        let all = [bug("a"), bug("b")];
        let error = choose(&all, &["c".to_owned()]).err().unwrap();
        assert_eq!(error.to_string(), "there is no bug c; there are: a, b");
        assert_eq!(choose(&all, &["b".to_owned()]).unwrap().len(), 1);
        assert_eq!(choose(&all, &[]).unwrap().len(), 2);
        assert!(parse(["--seeds".to_owned()].into_iter()).is_err());
    }
}
