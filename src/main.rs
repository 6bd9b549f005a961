//! The `kube-node` binary: runs the command of the command line, and prints one clear line when it fails.

use std::process::ExitCode;

use anyhow::Context;
use kube_ext::{pause::pause, process::report};
use local_cluster::images;

fn main() -> ExitCode {
    // Before all else: a process of this command runs beside every pod, and each page it touches is paid for as often.
    if std::env::args_os().nth(1).is_some_and(|command| command == "pause") {
        return report(pause().map(|()| ExitCode::SUCCESS).context("cannot wait for signals"));
    }
    images::set_build(concat!(env!("CARGO_PKG_VERSION"), " (", env!("KUBE_NODE_STAMP"), ")"));
    report(kube_node_cli::run())
}
