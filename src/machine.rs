//! The `kube-node-machine` binary: what of `kube-node` runs in the pods of machines, and nothing else.

use std::process::ExitCode;

use clap::Parser;
use kube_node::cli::{MachineCli, report};

fn main() -> ExitCode {
    report(MachineCli::parse().run())
}
