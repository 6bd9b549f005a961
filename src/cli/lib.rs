//! Command line of kube-node, one module per command.

mod access;
mod chart;
mod completion;
mod convert;
mod crds;
mod doctor;
mod down;
mod explain;
mod hollow_host;
mod hollow_nodes;
mod image;
mod import;
mod install_files;
mod interrupt;
mod kubectl;
mod man;
mod manifest;
mod operator;
mod operator_probe;
mod process_args;
mod progress;
mod real_node;
mod rollout;
mod set_status;
mod status;
mod table;
mod text;
mod top;
mod up;

use std::{ffi::OsStr, fmt::Write as _, path::Path, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use futures::{FutureExt, TryFutureExt};
use kube_ext::process::{block_on, print_line, print_note};
use kube_node_conformance::Check;
use machine_agent::{hollow_node::HollowNode, kubemark_proxy::KubemarkProxy};

use self::{access::InCluster, interrupt::interruptible};

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Text for people
    #[default]
    Text,
    /// JSON for programs
    Json,
}

/// Groups of commands in the help: the first command and the heading of each.
const GROUPS: [(&str, &str); 5] = [
    ("up", "Local cluster"),
    ("setup", "Nodes"),
    ("rollout", "NodeSets"),
    ("import", "Tools"),
    ("operator", "Internal (processes of a cluster)"),
];

/// Kubernetes that manages its own nodes.
///
/// The help shows the commands in this order.
#[derive(Debug, Parser)]
#[command(name = "kube-node", version, propagate_version = true, long_about = None)]
pub enum Cli {
    /// Start a real control plane on this machine, with nodes
    Up(up::Up),
    /// Stop a cluster of this machine
    Down(down::Down),
    /// Show processes, health and nodes of a cluster of this machine
    Status(status::Status),
    /// Run kubectl of its version against a cluster of this machine
    Kubectl(kubectl::Kubectl),
    /// Install the CRDs, roles and policies of kube-node in a cluster
    Setup(hollow_nodes::Setup),
    /// Create hollow nodes in a cluster and wait until they are Ready
    Create(hollow_nodes::Create),
    /// List the hollow nodes of a cluster
    List(InCluster<hollow_nodes::List>),
    /// Change the number of hollow nodes of a cluster
    Scale(InCluster<hollow_nodes::Scale>),
    /// Check that all hollow nodes are Ready; exit code 1 if not
    Verify(InCluster<hollow_nodes::Verify>),
    /// Delete the hollow nodes and their NodeSet
    Cleanup(InCluster<hollow_nodes::Cleanup>),
    /// Find out why nodes do not become Ready, with advice
    ///
    /// Creates a NodeClass named kube-node-probe-… for a moment, to see whether an operator answers, and writes nothing
    /// else. Exit code 1 if nodes do not work, or if that is not known, such as for want of a right.
    Doctor(InCluster<doctor::Doctor>),
    /// Follow, undo, restart, pause or resume a NodeSet's rollout
    Rollout(InCluster<rollout::Rollout>),
    /// Explain what a NodeSet does just now and what it waits for
    Explain(InCluster<explain::Explain>),
    /// Show all NodeSets and what they wait for, continuously updated
    Top(top::Top),
    /// Print nodes of an existing cluster as NodeClasses and NodeSets
    Import(import::Import),
    /// Convert Cluster API Machines to NodeClasses and NodeSets
    Convert(convert::Convert),
    /// Check that the NodeController of a class keeps the contract
    Conformance(InCluster<Check>),
    /// Print the CRDs of NodeClass and NodeSet as YAML
    Crds(crds::Crds),
    /// Write images as archives, or push one to a registry
    Image(image::Image),
    /// Print the completion script of a shell
    Completion(completion::Completion),
    /// Write man pages, one for each command
    Man(man::Man),
    /// Run the controllers, the providers and the hollow kubelets
    Operator(Box<operator::Operator>),
    /// Run hollow machines beside the operator, as one worker (shard)
    HollowHost(hollow_host::HollowHost),
    /// Run one hollow machine in a pod of its own
    HollowNode(HollowNode),
    /// Run the proxy between an upstream kubemark and the API server
    KubemarkProxy(KubemarkProxy),
}

/// Commands that only pods, jobs of the chart and our own processes run. Their parser is separate, so that no help, hint
/// or completion of [`Cli`] shows them.
#[derive(Debug, Parser)]
#[command(name = "kube-node", version, propagate_version = true)]
pub enum InternalCli {
    /// Install the files of a NodeClass in the pod of a machine
    InstallFiles(install_files::InstallFiles),
    /// Run a job of the Helm chart
    #[command(subcommand)]
    Chart(chart::Chart),
    /// Run a process of a real node, as `up --real-node` does
    RealNode(real_node::RealNode),
}

/// File name that makes this program a kubectl plugin, called as `kubectl kube-node`.
const PLUGIN: &str = "kubectl-kube_node";

/// The clap command with all subcommands, which its help shows in groups.
fn program() -> clap::Command {
    let program = Cli::command();
    let (header, literal) = (program.get_styles().get_header(), program.get_styles().get_literal());
    let mut help = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for command in program.get_subcommands() {
        let name = command.get_name();
        // Writing to a String cannot fail.
        if let Some((_, heading)) = GROUPS.iter().find(|(first, _)| *first == name) {
            let _ = writeln!(help, "\n{header}{heading}:{header:#}");
        }
        let about = command.get_about().cloned().unwrap_or_default();
        let _ = writeln!(help, "  {literal}{name:<14}{literal:#}  {about}");
    }
    let _ = write!(help, "\n{header}Options:{header:#}\n{{options}}");
    program.help_template(help)
}

/// The clap command for a program file of this name. The help of the kubectl plugin shows `kubectl kube-node`.
fn called_as(file: Option<&OsStr>) -> clap::Command {
    if file.is_some_and(|file| file == PLUGIN) { program().bin_name("kubectl kube-node") } else { program() }
}

/// Runs the command of the command line. Ends the process on a wrong argument or a request for help.
pub fn run() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args_os();
    let file = args.next();
    if args.next().is_some_and(|name| name.to_str().is_some_and(InternalCli::has_subcommand)) {
        return InternalCli::parse().run();
    }
    let mut program = called_as(file.as_ref().and_then(|file| Path::new(file).file_name()));
    let matches = program.get_matches_mut();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut program).exit()).run()
}

impl Cli {
    fn run(self) -> anyhow::Result<ExitCode> {
        let running = match self {
            Self::Kubectl(command) => return command.run().map(success),
            Self::Convert(command) => return command.run(),
            Self::Crds(command) => return command.run().map(success),
            Self::Completion(command) => return command.run().map(success),
            Self::Man(command) => return command.run().map(success),
            Self::HollowNode(command) => return command.run(),
            Self::KubemarkProxy(command) => return command.run(),
            Self::Up(command) => command.run().map_ok(success).boxed_local(),
            Self::Down(command) => command.run().map_ok(success).boxed_local(),
            Self::Status(command) => command.run().boxed_local(),
            Self::Setup(command) => interruptible(command.run()).map_ok(success).boxed_local(),
            Self::Create(command) => interruptible(command.run()).map_ok(success).boxed_local(),
            Self::List(command) => command.run(hollow_nodes::List::run).map_ok(success).boxed_local(),
            Self::Scale(command) => {
                command.run_writing(hollow_nodes::Scale::run).map_ok(success).boxed_local()
            }
            Self::Verify(command) => command.run(hollow_nodes::Verify::run).boxed_local(),
            Self::Cleanup(command) => {
                command.run_writing(hollow_nodes::Cleanup::run).map_ok(success).boxed_local()
            }
            Self::Doctor(command) => interruptible(command.run_writing(doctor::Doctor::run)).boxed_local(),
            Self::Rollout(command) if command.command().is_writing() => {
                command.run_writing(rollout::Rollout::run).map_ok(success).boxed_local()
            }
            Self::Rollout(command) => command.run(rollout::Rollout::run).map_ok(success).boxed_local(),
            Self::Explain(command) => command.run(explain::Explain::run).map_ok(success).boxed_local(),
            Self::Top(command) => command.run().map_ok(success).boxed_local(),
            Self::Import(command) => command.run().map_ok(success).boxed_local(),
            Self::Conformance(command) => command.run_writing(Check::run).boxed_local(),
            Self::Image(command) => command.run().map_ok(success).boxed_local(),
            Self::Operator(command) => command.run().map_ok(success).boxed_local(),
            Self::HollowHost(command) => command.run().map_ok(success).boxed_local(),
        };
        block_on(running)
    }
}

impl InternalCli {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::InstallFiles(command) => command.run(),
            Self::Chart(command) => block_on(command.run()),
            Self::RealNode(command) => command.run(),
        }
        .map(success)
    }
}

/// Exit code of a command that has done its work.
const fn success(_: ()) -> ExitCode {
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser, error::ErrorKind};

    use super::{Cli, GROUPS, InternalCli, called_as, program};

    #[test]
    fn a_plugin_says_how_it_was_called() {
        let usage = |file: &str| {
            let mut program = called_as(Some(file.as_ref()));
            program.build();
            program.find_subcommand_mut("rollout").unwrap().render_usage().to_string()
        };
        assert!(usage("kubectl-kube_node").contains("Usage: kubectl kube-node rollout "));
        assert!(usage("kube-node").contains("Usage: kube-node rollout "));
    }

    #[test]
    fn the_arguments_of_all_commands_fit_together() {
        program().debug_assert();
        InternalCli::command().debug_assert();
    }

    #[test]
    fn every_command_stands_in_a_group_of_the_help() {
        let help = program().render_help().to_string();
        let (_, mut rest) = help.split_once("Usage: kube-node <COMMAND>\n\n").unwrap();
        for (first, heading) in GROUPS {
            rest = rest
                .strip_prefix(&format!("{heading}:\n  {first} "))
                .unwrap_or_else(|| panic!("{heading}: {rest}"));
            rest = rest.split_once("\n\n").unwrap().1;
        }
        assert!(rest.starts_with("Options:\n  -h, --help "), "{rest}");
        for command in program().get_subcommands() {
            let (name, about) = (command.get_name(), command.get_about().unwrap());
            assert!(help.contains(&format!("\n  {name:<14}  {about}\n")), "{name}");
        }
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }

    #[test]
    fn no_hint_or_completion_names_an_internal_command() {
        let visible: Vec<_> =
            program().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        for internal in InternalCli::command().get_subcommands().map(clap::Command::get_name) {
            assert!(!visible.iter().any(|name| name == internal), "{internal}");
            let mistyped = &internal[..internal.len() - 1];
            let error = program().try_get_matches_from(["kube-node", mistyped]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSubcommand);
            assert!(!error.to_string().contains(&format!("'{internal}'")), "{error}");
            let mut script = Vec::new();
            clap_complete::generate(clap_complete::Shell::Bash, &mut program(), "kube-node", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.split([' ', ',', ')', '"']).all(|word| word != internal), "{internal}");
        }
        assert!(InternalCli::try_parse_from(["kube-node", "install-files", "--from=a", "--to=b"]).is_ok());
        assert!(Cli::try_parse_from(["kube-node", "install-files", "--from=a", "--to=b"]).is_err());
    }
}
