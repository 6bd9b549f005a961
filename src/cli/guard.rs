//! `kube-node guard`: the helper beside an upstream kubemark in its pod.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;

use crate::{
    guard::{self, Options},
    operator,
    runtime::telemetry::{self, LogFormat},
};

/// Arguments of `guard`.
#[derive(Debug, Args)]
pub struct Guard {
    /// Name of the machine's Node, which must exist
    #[arg(long, value_name = "NAME")]
    node: String,
    /// Folder with bootstrap.kubeconfig, machine.json and settings.json
    #[arg(long, value_name = "DIR", default_value = "/var/run/kube-node/machine")]
    machine_dir: PathBuf,
    /// Folder for the certificate and its key, the only one that is written to
    #[arg(long, value_name = "DIR", default_value = "/var/run/kube-node/state")]
    state_dir: PathBuf,
    /// Where kubemark finds the API server: an address of loopback
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6444")]
    listen: SocketAddr,
    /// Port of /healthz and /readyz, which is when kubemark may start; none when absent
    #[arg(long, value_name = "PORT")]
    probe_port: Option<u16>,
    /// Form of the logs
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

impl Guard {
    /// Works until SIGINT or SIGTERM, or until the Node is gone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        telemetry::start(self.log_format);
        let options = Options {
            node: self.node,
            machine_dir: self.machine_dir,
            state_dir: self.state_dir,
            listen: self.listen,
            probes: self.probe_port.map(|port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
        };
        // One thread: a guard has little to do, and there is one to each machine.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.context("cannot start the runtime")?.block_on(async {
            guard::run(options, operator::signals()?).await?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
