//! `kube-node real-node`: the processes of a real node that are ours; `up --real-node` starts the first of them.

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
    /// Outside: cgroups, link and door
    Host(Described),
    /// The first process inside
    Init(Described),
    /// Inside: runs containerd, kubelet and kube-proxy
    Daemons(Described),
}

/// Which node.
#[derive(Debug, Args)]
struct Described {
    /// Folder with its description
    dir: PathBuf,
}

impl RealNode {
    /// Runs until it is told to end, or until something has ended that must not.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.part {
            Part::Host(Described { dir }) => {
                super::block_on(async { Ok(real_node::run_host(&dir).await?) })?;
                Ok(ExitCode::SUCCESS)
            }
            Part::Init(Described { dir }) => match real_node::run_init(&dir)? {},
            Part::Daemons(Described { dir }) => {
                match super::block_on(async { Ok(real_node::run_daemons(&dir).await?) })? {}
            }
        }
    }
}
