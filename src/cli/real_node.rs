//! `kube-node real-node`: our own processes of a real node; `up --real-node` starts the first of them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use local_cluster::real_node;

/// Arguments of `real-node`.
#[derive(Debug, Args)]
pub struct RealNode {
    /// Part to run
    #[arg(value_enum)]
    part: Part,
    /// Folder with the node's description
    dir: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    /// Part in the host's namespaces: cgroups, link and TCP proxy
    Host,
    /// First process inside the node
    Init,
    /// Supervisor of containerd, kubelet and kube-proxy inside the node
    Daemons,
}

impl RealNode {
    /// Runs until a signal, or until a required process has ended.
    pub fn run(self) -> anyhow::Result<()> {
        match self.part {
            Part::Host => super::block_on(real_node::run_host(&self.dir)),
            Part::Init => match real_node::run_init(&self.dir)? {},
            Part::Daemons => match super::block_on(real_node::run_daemons(&self.dir))? {},
        }
    }
}
