//! `kube-node real-node`: our own processes of a real node; `up --real-node` starts the first of them.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use local_cluster::real_node;

/// Arguments of `real-node`.
#[derive(Debug, Args)]
pub struct RealNode {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Run the part in the host's namespaces: cgroups, link and TCP proxy
    Host(NodeDir),
    /// Run the first process inside the node
    Init(NodeDir),
    /// Supervise containerd, kubelet and kube-proxy inside the node
    Daemons(NodeDir),
}

/// The node of the process.
#[derive(Debug, Args)]
struct NodeDir {
    /// Folder with the node's description
    dir: PathBuf,
}

impl RealNode {
    /// Runs until a signal, or until a required process has ended.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.part {
            Part::Host(NodeDir { dir }) => super::block_on(async { real_node::run_host(&dir).await })?,
            Part::Init(NodeDir { dir }) => match real_node::run_init(&dir)? {},
            Part::Daemons(NodeDir { dir }) => {
                match super::block_on(async { real_node::run_daemons(&dir).await })? {}
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
