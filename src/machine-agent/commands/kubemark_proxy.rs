//! `kube-node kubemark-proxy`: the kubemark proxy, beside an upstream kubemark in its pod.

use std::{net::SocketAddr, process::ExitCode};

use clap::Args;
use kube_ext::process::signals;

use super::machine_args::{self, MachineArgs};
use crate::kubemark_proxy::{self, Options};

/// Arguments of `kubemark-proxy`. Its /readyz says when kubemark may start.
#[derive(Debug, Args)]
pub struct KubemarkProxy {
    #[command(flatten)]
    machine: MachineArgs,
    /// Where kubemark finds the API server: an address of loopback
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6444")]
    listen: SocketAddr,
}

impl KubemarkProxy {
    /// Runs until SIGINT or SIGTERM, or until the Node is gone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (log_format, probes) = (self.machine.log_format(), self.machine.probes());
        let MachineArgs { node, machine_dir, state_dir, .. } = self.machine;
        let options = Options { node, machine_dir, state_dir, listen: self.listen, probes };
        machine_args::run(log_format, async { Ok(kubemark_proxy::run(options, signals()?).await?) })
    }
}
