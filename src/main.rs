//! The `kube-node` binary: parse the command line, dispatch, print one clear line when a command fails.

use std::process::ExitCode;

use anyhow::Context;
use kube_ext::{pause::pause, process::report};
use kube_node_cli::Cli;
use local_cluster::images;

fn main() -> ExitCode {
    // Before all else: beside every pod one of these sleeps, and each page it touches is paid for as often.
    if std::env::args_os().nth(1).is_some_and(|command| command == "pause") {
        return report(pause().map(|()| ExitCode::SUCCESS).context("cannot wait for signals"));
    }
    images::set_build(concat!(env!("CARGO_PKG_VERSION"), " (", env!("KUBE_NODE_STAMP"), ")"));
    report(Cli::read().run())
}
