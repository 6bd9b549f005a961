//! The command line: one file per command.

mod access;
mod age;
mod carry_files;
mod chart;
mod completion;
mod conformance;
mod convert;
mod crds;
mod doctor;
mod down;
mod endpoint_args;
mod explain;
mod fleet;
mod hollow_host;
mod image;
mod import;
mod kubectl;
mod man;
mod operator;
mod operator_probe;
mod real_node;
mod rollout;
mod room_args;
mod status;
mod table;
mod top;
mod up;
mod yaml;

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use kube_ext::process::{block_on, say};
use machine_agent::commands::{guard, hollow_node};

/// Form of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// Kubernetes that manages its own nodes.
#[derive(Debug, Parser)]
#[command(name = "kube-node", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install in a cluster what nodes need: kinds, roles, admission policies
    Setup(fleet::Setup),
    /// Make hollow nodes in a cluster, and wait until they are Ready
    Create(fleet::Create),
    /// Say by the exit code whether all these nodes are Ready
    Verify(fleet::Verify),
    /// Change how many there are
    Scale(fleet::Scale),
    /// List them
    List(fleet::List),
    /// Take them away
    Cleanup(fleet::Cleanup),
    /// Find out what keeps nodes from coming, and what to do
    Doctor(doctor::Doctor),
    /// See whether the NodeController of a class keeps the contract
    Conformance(conformance::Conformance),
    /// Turn a configuration of the cluster API's kubemark provider into a NodeClass
    Convert(convert::Convert),
    /// Print the nodes of an existing cluster as NodeClasses and NodeSets
    Import(import::Import),
    /// Print the CustomResourceDefinitions of NodeClass and NodeSet as YAML
    Crds(crds::Crds),
    /// Start a real control plane on this machine, with nodes
    Up(up::Up),
    /// End a cluster of this machine
    Down(down::Down),
    /// Say how a cluster of this machine stands
    Status(status::Status),
    /// Write archives of container images, for containerd, docker and podman
    Image(image::Image),
    /// Run the cluster's own kubectl against it
    Kubectl(kubectl::Kubectl),
    /// Follow, undo, restart, pause or resume the rollout of a NodeSet
    Rollout(rollout::Rollout),
    /// Show all NodeSets and what they wait for, again and again
    Top(top::Top),
    /// Say what the operator does for a NodeSet, and what it waits for
    Explain(explain::Explain),
    /// Print what a shell needs to complete commands
    Completion(completion::Completion),
    /// Write the pages of man
    Man(man::Man),
    /// Run the controllers, the providers and the hollow kubelets
    Operator(Box<operator::Operator>),
    /// Carry hollow machines in the operator's place, as one of a group of hosts
    HollowHost(hollow_host::HollowHost),
    /// Stand between an upstream kubemark and the API server, in the pod of its machine
    Guard(guard::Guard),
    /// Run one machine, in a pod of its own
    HollowNode(hollow_node::HollowNode),
    #[command(hide = true)]
    CarryFiles(carry_files::CarryFiles),
    /// What the jobs of the Helm chart do
    #[command(hide = true)]
    Chart(chart::Chart),
    /// The processes of a real node, started by `up --real-node`
    #[command(hide = true)]
    RealNode(real_node::RealNode),
}

/// The file that makes a program a plugin of kubectl; it is then called as `kubectl kube-node`.
const PLUGIN: &str = "kubectl-kube_node";

/// The program with all its commands.
fn program() -> clap::Command {
    Cli::command()
}

/// The same, called by a file of this name: as a plugin of kubectl it says in its help how it was called.
fn called_as(file: Option<&OsStr>) -> clap::Command {
    if file.is_some_and(|file| file == PLUGIN) { program().bin_name("kubectl kube-node") } else { program() }
}

impl Cli {
    /// Reads the command line; ends the process where that asks for help or is wrong.
    #[must_use]
    pub fn read() -> Self {
        let file = std::env::args_os().next().map(PathBuf::from);
        let mut program = called_as(file.as_deref().and_then(Path::file_name));
        let matches = program.get_matches_mut();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut program).exit())
    }

    /// Runs the command that was asked for.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Setup(command) => command.run(),
            Command::Create(command) => command.run(),
            Command::Verify(command) => command.run(),
            Command::Scale(command) => command.run(),
            Command::List(command) => command.run(),
            Command::Cleanup(command) => command.run(),
            Command::Doctor(command) => command.run(),
            Command::Conformance(command) => command.run(),
            Command::Convert(command) => command.run(),
            Command::Import(command) => command.run(),
            Command::Crds(command) => command.run(),
            Command::Operator(command) => command.run(),
            Command::HollowHost(command) => command.run(),
            Command::Guard(command) => command.run(),
            Command::HollowNode(command) => command.run(),
            Command::CarryFiles(command) => command.run(),
            Command::Chart(command) => command.run(),
            Command::Up(command) => command.run(),
            Command::Down(command) => command.run(),
            Command::Status(command) => command.run(),
            Command::Image(command) => command.run(),
            Command::Kubectl(command) => command.run(),
            Command::Rollout(command) => command.run(),
            Command::Top(command) => command.run(),
            Command::Explain(command) => command.run(),
            Command::Completion(command) => command.run(),
            Command::Man(command) => command.run(),
            Command::RealNode(command) => command.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn a_plugin_says_how_it_was_called() {
        let usage = |file: &str| {
            let mut program = super::called_as(Some(file.as_ref()));
            program.build();
            program.find_subcommand_mut("rollout").unwrap().render_usage().to_string()
        };
        assert!(usage("kubectl-kube_node").contains("Usage: kubectl kube-node rollout "));
        assert!(usage("kube-node").contains("Usage: kube-node rollout "));
    }

    #[test]
    fn the_arguments_of_all_commands_fit_together() {
        super::Cli::command().debug_assert();
    }
}
