//! The `kube-node` binary: parse the command line, dispatch, print one clear line when a command fails.

use std::process::ExitCode;

use anyhow::Context;
use kube_node::{
    cli::{Cli, report},
    runtime::pause::pause,
};

fn main() -> ExitCode {
    // Before all else: beside every pod one of these sleeps, and each page it touches is paid for as often.
    report(if std::env::args_os().nth(1).is_some_and(|command| command == "pause") {
        pause().map(|()| ExitCode::SUCCESS).context("cannot wait for signals")
    } else {
        Cli::read().run()
    })
}
