//! Runs of the simulation with a bug.

use std::{
    fs::{self, File},
    ops::Range,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context;

/// Schedules of one process.
const PART: u64 = 50;
/// Time after which a process that runs a part hangs. Without a bug, a part takes some seconds.
const HANGS: Duration = Duration::from_mins(2);
/// Tests of the simulation: random schedules, and the systematic generator.
const RANDOM: &str = "no_schedule_violates_an_invariant_and_each_settles";
const SYSTEMATIC: &str = "no_fault_of_one_write_violates_an_invariant";

/// The simulation, as a program.
pub struct Simulation<'a> {
    program: &'a Path,
    folder: &'a Path,
    output: &'a Path,
}

/// The first schedule that finds a bug.
#[derive(Debug)]
pub struct Found {
    /// The seed, or the scenario with its fault.
    pub by: String,
    /// Number of schedules up to this one; empty if it was the first that was tried.
    pub schedules: String,
    /// First line of the violation.
    pub violation: String,
}

/// End of a process.
enum End {
    Passed,
    Failed(String),
    TooLate,
}

impl<'a> Simulation<'a> {
    /// The simulation of the source in `folder`. `output` is a file for the output of its processes.
    pub fn new(program: &'a Path, folder: &'a Path, output: &'a Path) -> Self {
        Self { program, folder, output }
    }

    /// Runs the random schedules of these seeds with a bug, for `limit` at most.
    pub fn random(
        &self,
        bug: Option<&str>,
        seeds: Range<u64>,
        limit: Duration,
    ) -> anyhow::Result<Option<Found>> {
        let begun = Instant::now();
        let mut from = seeds.start;
        while from < seeds.end && begun.elapsed() < limit {
            let until = (from + PART).min(seeds.end);
            match self.run(RANDOM, bug, ("KUBE_NODE_SEEDS", &format!("{from}..{until}")), HANGS)? {
                End::Passed => {}
                End::Failed(output) => {
                    // A schedule is printed with its seed; a panic outside of one is not.
                    let seed: Option<u64> = find(&output, "seed ", ':').and_then(|seed| seed.parse().ok());
                    return Ok(Some(Found {
                        by: seed
                            .map_or_else(|| format!("seeds {from}..{until}"), |seed| format!("seed {seed}")),
                        schedules: seed
                            .filter(|_| seeds.start == 0)
                            .map_or_else(String::new, |seed| (seed + 1).to_string()),
                        violation: violation(&output),
                    }));
                }
                End::TooLate => {
                    let violation = format!("hangs: no end after {} s", HANGS.as_secs());
                    let (by, schedules) = (format!("seeds {from}..{until}"), until.to_string());
                    return Ok(Some(Found { by, schedules, violation }));
                }
            }
            from = until;
        }
        Ok(None)
    }

    /// Runs a scenario with a bug, or `all`, each write with each fault, for `limit` at most.
    pub fn systematic(
        &self,
        bug: Option<&str>,
        scenario: &str,
        limit: Duration,
    ) -> anyhow::Result<Option<Found>> {
        let End::Failed(output) = self.run(SYSTEMATIC, bug, ("KUBE_NODE_SCENARIO", scenario), limit)? else {
            return Ok(None);
        };
        let by = find(&output, "replay: ", '\n')
            .and_then(|replay| replay.strip_suffix(" cargo test --test simulation"));
        let by = by.map_or_else(
            || {
                output
                    .lines()
                    .find(|line| line.contains("without a fault"))
                    .unwrap_or("a scenario")
                    .to_owned()
            },
            |by| by.replace("KUBE_NODE_SCENARIO=", "scenario ").replace("KUBE_NODE_FAULT=", ""),
        );
        Ok(Some(Found { by, schedules: String::new(), violation: violation(&output) }))
    }

    /// Runs a test of the simulation with a bug.
    pub fn test(&self, bug: Option<&str>, test: &str) -> anyhow::Result<Option<Found>> {
        // The setting is that of another test.
        let (schedules, setting) = (String::new(), ("KUBE_NODE_SCENARIO", "scale-up"));
        Ok(match self.run(test, bug, setting, HANGS)? {
            End::Passed => None,
            End::Failed(output) => {
                Some(Found { by: format!("`{test}`"), schedules, violation: violation(&output) })
            }
            End::TooLate => {
                let violation = format!("hangs: no end after {} s", HANGS.as_secs());
                Some(Found { by: format!("`{test}`"), schedules, violation })
            }
        })
    }

    fn run(
        &self,
        test: &str,
        bug: Option<&str>,
        setting: (&str, &str),
        limit: Duration,
    ) -> anyhow::Result<End> {
        let output =
            File::create(self.output).with_context(|| format!("cannot write {}", self.output.display()))?;
        let mut command = Command::new(self.program);
        command.current_dir(self.folder).args([test, "--exact", "--nocapture"]);
        for variable in ["SEEDS", "SCENARIO", "FAULT", "LOG", "REQUESTS", "PLANTED"] {
            command.env_remove(format!("KUBE_NODE_{variable}"));
        }
        command.env(setting.0, setting.1).envs(bug.map(|bug| ("KUBE_NODE_PLANTED", bug)));
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let begun = Instant::now();
        let mut process = command.spawn().context("cannot start the simulation")?;
        loop {
            if let Some(status) = process.try_wait()? {
                if status.success() {
                    return Ok(End::Passed);
                }
                return Ok(End::Failed(String::from_utf8_lossy(&fs::read(self.output)?).into_owned()));
            }
            if begun.elapsed() > limit {
                process.kill()?;
                process.wait()?;
                return Ok(End::TooLate);
            }
            #[expect(clippy::disallowed_methods, reason = "there is no runtime")]
            sleep(Duration::from_millis(20));
        }
    }
}

/// The text between `before`, at the beginning of a line, and `end`.
fn find<'t>(text: &'t str, before: &str, end: char) -> Option<&'t str> {
    let mut rests = text.lines().filter_map(|line| {
        let (start, _) = line.match_indices(before).next()?;
        Some(&line[start + before.len()..])
    });
    rests.next().map(|rest| rest.split(end).next().unwrap_or(rest))
}

/// First line of the violation.
fn violation(output: &str) -> String {
    let of_schedule = |line: &&str| line.starts_with("after ") || line.contains("without a fault: after ");
    let line = output.lines().find(of_schedule);
    let panic = || output.lines().skip_while(|line| !line.contains("panicked at")).nth(1);
    let end = || output.lines().rev().find(|line| !line.trim().is_empty());
    line.or_else(panic).or_else(end).unwrap_or("the program ended").to_owned()
}
