//! The command line: one file per command.

mod crds;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Kubernetes that manages its own nodes.
#[derive(Debug, Parser)]
#[command(name = "kube-node", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the CustomResourceDefinitions of NodeClass and NodeSet as YAML
    Crds(crds::Crds),
}

impl Cli {
    /// Runs the command that was asked for.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Crds(command) => command.run(),
        }
    }
}
