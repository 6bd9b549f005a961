//! Arguments of both programs in a machine's pod, as its provider sets them, and their single thread.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::Context;
use clap::Args;
use kube_ext::{
    admin::Readiness,
    connection::any_address,
    telemetry::{self, LogFormat},
};

/// Arguments of `hollow-node` and `kubemark-proxy`.
#[derive(Debug, Args)]
pub struct MachineArgs {
    /// Name of the machine's Node, which must exist
    #[arg(long, value_name = "NAME")]
    pub(crate) node: String,
    /// Folder with bootstrap.kubeconfig, machine.json and settings.json
    #[arg(long, value_name = "DIR", default_value = "/var/run/kube-node/machine")]
    pub(crate) machine_dir: PathBuf,
    /// Folder for the certificate and its key, the only one that is written to
    #[arg(long, value_name = "DIR", default_value = "/var/run/kube-node/state")]
    pub(crate) state_dir: PathBuf,
    /// Port of /healthz, /readyz and /metrics; none when absent
    #[arg(long, value_name = "PORT")]
    probe_port: Option<u16>,
    /// Form of the logs
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
}

impl MachineArgs {
    /// Address for probes: the kubelet connects from outside the pod, to the pod's first address.
    pub(crate) fn probes(&self) -> Option<SocketAddr> {
        self.probe_port.map(|port| SocketAddr::from((any_address(), port)))
    }
}

/// Ready once `is_ready` returns true; `why` says what is missing until then.
pub(crate) fn readiness(why: &'static str, is_ready: impl Fn() -> bool + Send + Sync + 'static) -> Readiness {
    Arc::new(move || if is_ready() { Vec::new() } else { vec![why.to_owned()] })
}

/// Runs the program on one thread: it has little to do, and thousands of them run on few cores.
pub(crate) fn run(
    log_format: LogFormat,
    program: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<ExitCode> {
    telemetry::start(log_format);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(program)?;
    Ok(ExitCode::SUCCESS)
}
