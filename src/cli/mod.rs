//! The command line: one file per command.

mod access;
mod age;
mod crds;
mod down;
mod explain;
mod image;
mod kubectl;
mod operator;
mod real_node;
mod rollout;
mod status;
mod up;

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context;
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
    /// Say what the operator does for a NodeSet, and what it waits for
    Explain(explain::Explain),
    /// Run the controllers, the providers and the hollow kubelets
    Operator(operator::Operator),
    /// The processes of a real node, started by `up --real-node`
    #[command(hide = true)]
    RealNode(real_node::RealNode),
}

impl Cli {
    /// Runs the command that was asked for.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Crds(command) => command.run(),
            Command::Operator(command) => command.run(),
            Command::Up(command) => command.run(),
            Command::Down(command) => command.run(),
            Command::Status(command) => command.run(),
            Command::Image(command) => command.run(),
            Command::Kubectl(command) => command.run(),
            Command::Rollout(command) => command.run(),
            Command::Explain(command) => command.run(),
            Command::RealNode(command) => command.run(),
        }
    }
}

/// Prints a line of the result. `println!` panics when whoever reads, such as `head`, has read enough.
fn say(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Runs the asynchronous part of a command.
fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(future)
}
