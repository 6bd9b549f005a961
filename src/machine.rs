//! The `kube-node-machine` binary: what of `kube-node` runs in the pods of machines, and nothing else.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use kube_ext::process::report;
use machine_agent::commands::MachineCli;

fn main() -> ExitCode {
    let build = concat!(env!("CARGO_PKG_VERSION"), " (", env!("KUBE_NODE_STAMP"), ")");
    let mut program = MachineCli::command().version(build);
    let matches = program.get_matches_mut();
    let parsed = MachineCli::from_arg_matches(&matches);
    report(parsed.unwrap_or_else(|error| error.format(&mut program).exit()).run())
}
