//! Command line of kube-node, one module per command.

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
use machine_agent::{hollow_node::HollowNode, kubemark_proxy::KubemarkProxy};

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Text for people
    #[default]
    Text,
    /// JSON for programs
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
    /// Install the CRDs, roles and admission policies of kube-node in a cluster
    Setup(fleet::Setup),
    /// Create hollow nodes in a cluster and wait until they are Ready
    Create(fleet::Create),
    /// Check that all hollow nodes of this cluster are Ready; exit code 1 if not
    Verify(fleet::Verify),
    /// Change the number of hollow nodes of this cluster
    Scale(fleet::Scale),
    /// List the hollow nodes of this cluster
    List(fleet::List),
    /// Delete the hollow nodes and their NodeSet
    Cleanup(fleet::Cleanup),
    /// Find out why nodes do not become Ready, with advice
    Doctor(doctor::Doctor),
    /// Check that the NodeController of a class keeps the contract
    Conformance(conformance::Conformance),
    /// Convert configurations of the Cluster API kubemark provider to NodeClasses
    Convert(convert::Convert),
    /// Print the nodes of an existing cluster as NodeClasses and NodeSets
    Import(import::Import),
    /// Print the CustomResourceDefinitions of NodeClass and NodeSet as YAML
    Crds(crds::Crds),
    /// Start a real control plane on this machine, with nodes
    Up(up::Up),
    /// Stop a cluster of this machine
    Down(down::Down),
    /// Show the processes, health and nodes of a cluster of this machine
    Status(status::Status),
    /// Write image archives for containerd, docker and podman
    Image(image::Image),
    /// Run kubectl of the cluster's version against a cluster of this machine
    Kubectl(kubectl::Kubectl),
    /// Follow, undo, restart, pause or resume the rollout of a NodeSet
    Rollout(rollout::Rollout),
    /// Show all NodeSets and what they wait for, continuously updated
    Top(top::Top),
    /// Explain what the operator does for a NodeSet and what it waits for
    Explain(explain::Explain),
    /// Print the completion script of a shell
    Completion(completion::Completion),
    /// Write the man pages
    Man(man::Man),
    /// Run the controllers, the providers and the hollow kubelets
    Operator(Box<operator::Operator>),
    /// Run hollow machines in the operator's place, as one worker (shard) of a group
    HollowHost(hollow_host::HollowHost),
    /// Run the kubemark proxy, between an upstream kubemark and the API server in one pod
    KubemarkProxy(KubemarkProxy),
    /// Run one hollow machine in a pod of its own
    HollowNode(HollowNode),
    #[command(hide = true)]
    CarryFiles(carry_files::CarryFiles),
    /// Run a job of the Helm chart
    #[command(hide = true)]
    Chart(chart::Chart),
    /// Run a process of a real node, as `up --real-node` does
    #[command(hide = true)]
    RealNode(real_node::RealNode),
}

/// File name that makes this program a kubectl plugin, called as `kubectl kube-node`.
const PLUGIN: &str = "kubectl-kube_node";

/// The clap command with all subcommands.
fn program() -> clap::Command {
    Cli::command()
}

/// The clap command for a program file of this name. The help of the kubectl plugin shows `kubectl kube-node`.
fn called_as(file: Option<&OsStr>) -> clap::Command {
    if file.is_some_and(|file| file == PLUGIN) { program().bin_name("kubectl kube-node") } else { program() }
}

impl Cli {
    /// Parses the command line. Ends the process on an error or a request for help.
    #[must_use]
    pub fn read() -> Self {
        let file = std::env::args_os().next().map(PathBuf::from);
        let mut program = called_as(file.as_deref().and_then(Path::file_name));
        let matches = program.get_matches_mut();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut program).exit())
    }

    /// Runs the parsed command.
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
            Command::KubemarkProxy(command) => command.run(),
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
