//! The `kube-node` binary: parse the command line, dispatch, print one clear line when a command fails.

use std::process::ExitCode;

use clap::Parser;
use kube_node::cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
