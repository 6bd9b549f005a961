//! `kube-node hollow-node`: one machine in a pod of its own.

use std::{net::Ipv4Addr, process::ExitCode};

use clap::Args;
use kube_ext::process::signals;

use super::machine_args::{self, MachineArgs};
use crate::hollow_node::{self, Options};

/// Arguments of `hollow-node`.
#[derive(Debug, Args)]
pub struct HollowNode {
    #[command(flatten)]
    machine: MachineArgs,
    /// Address that the Node shows; one that hollow machines have when absent
    #[arg(long, value_name = "ADDRESS", env = "POD_IP")]
    node_ip: Option<Ipv4Addr>,
}

impl HollowNode {
    /// Runs until SIGINT or SIGTERM, or until the Node is gone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (log_format, probes) = (self.machine.log_format(), self.machine.probes());
        let MachineArgs { node, machine_dir, state_dir, .. } = self.machine;
        let options = Options { node, machine_dir, state_dir, ip: self.node_ip, probes };
        machine_args::run(log_format, async { Ok(Box::pin(hollow_node::run(options, signals()?)).await?) })
    }
}
