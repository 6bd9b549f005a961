//! The `kube-node` binary: parse the command line, dispatch, print one clear line when a command fails.

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use kube_node::{cli::Cli, runtime::pause::pause};

fn main() -> ExitCode {
    // Before all else: beside every pod one of these sleeps, and each page it touches is paid for as often.
    let result = if std::env::args_os().nth(1).is_some_and(|command| command == "pause") {
        pause().map(|()| ExitCode::SUCCESS).context("cannot wait for signals")
    } else {
        Cli::parse().run()
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
