//! The command line of `kube-node-machine`. `kube-node` has its commands too.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kube_node_api::names::MACHINE_PROGRAM;

use crate::{hollow_node::HollowNode, kubemark_proxy::KubemarkProxy};

/// One machine of kube-node, in a pod of its own
///
/// The commands that run in such pods, as kube-node has them too. What a program never calls is in its memory all the same,
/// and there are thousands of these.
#[derive(Debug, Parser)]
#[command(name = MACHINE_PROGRAM, version, propagate_version = true)]
pub struct MachineCli {
    #[command(subcommand)]
    command: MachineCommand,
}

#[derive(Debug, Subcommand)]
enum MachineCommand {
    /// Run one machine, in a pod of its own
    HollowNode(HollowNode),
    /// Stand between an upstream kubemark and the API server, in the pod of its machine
    KubemarkProxy(KubemarkProxy),
}

impl MachineCli {
    /// Runs the chosen command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            MachineCommand::HollowNode(command) => command.run(),
            MachineCommand::KubemarkProxy(command) => command.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_of_all_commands_fit_together() {
        super::MachineCli::command().debug_assert();
    }
}
