//! `kube-node hollow-node`: one machine, as a pod of its own runs it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;

use crate::{
    hollow_node::{self, Options},
    operator,
    runtime::telemetry::{self, LogFormat},
};

/// Arguments of `hollow-node`.
#[derive(Debug, Args)]
pub struct HollowNode {
    /// Name of its Node, which must exist
    #[arg(long, value_name = "NAME")]
    node: String,
    /// Folder with bootstrap.kubeconfig, machine.json and settings.json
    #[arg(long, value_name = "DIR", default_value = "/var/run/kube-node/machine")]
    machine_dir: PathBuf,
    /// Folder for the certificate and its key, the only one that is written to
    #[arg(long, value_name = "DIR", default_value = "/var/run/kube-node/state")]
    state_dir: PathBuf,
    /// Address that the Node shows; one that hollow machines have when absent
    #[arg(long, value_name = "ADDRESS", env = "POD_IP")]
    node_ip: Option<Ipv4Addr>,
    /// Port of /healthz, /readyz and /metrics; none when absent
    #[arg(long, value_name = "PORT")]
    probe_port: Option<u16>,
    /// Form of the logs
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

impl HollowNode {
    /// Works until SIGINT or SIGTERM, or until the Node is gone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        telemetry::start(self.log_format);
        let options = Options {
            node: self.node,
            machine_dir: self.machine_dir,
            state_dir: self.state_dir,
            ip: self.node_ip,
            probes: self.probe_port.map(|port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
        };
        // One thread: a machine has little to do, and thousands of them run on few cores.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.context("cannot start the runtime")?.block_on(async {
            Box::pin(hollow_node::run(options, operator::signals()?)).await?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
