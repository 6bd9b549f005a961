//! `kube-node guard`: the helper beside an upstream kubemark in its pod.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;

use crate::{
    guard::{self, Options},
    operator,
    runtime::telemetry::{self, LogFormat},
};

/// Longest time for an answer to the probe.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// Arguments of `guard`.
#[derive(Debug, Args)]
pub struct Guard {
    /// Name of the machine's Node, which must exist
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "probe",
        default_value_if("probe", "true", "")
    )]
    node: Option<String>,
    /// Folder with bootstrap.kubeconfig, machine.json and settings.json
    #[arg(long, value_name = "DIR", default_value = "/var/run/kube-node/machine")]
    machine_dir: PathBuf,
    /// Folder for the certificate and its key, the only one that is written to
    #[arg(long, value_name = "DIR", default_value = "/var/run/kube-node/state")]
    state_dir: PathBuf,
    /// Where kubemark finds the API server: an address of loopback
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6444")]
    listen: SocketAddr,
    /// Ask the guard that listens there whether kubemark may start, and say so by the exit code
    #[arg(long)]
    probe: bool,
    /// Form of the logs
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

impl Guard {
    /// Works until SIGINT or SIGTERM, or until the Node is gone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self { node, machine_dir, state_dir, listen, log_format, .. } = self;
        // Without a Node it is the probe that was asked for.
        let Some(node) = node.filter(|_| !self.probe) else { return probe(listen) };
        telemetry::start(log_format);
        let options = Options { node, machine_dir, state_dir, listen };
        // One thread: a guard has little to do, and there is one to each machine.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.context("cannot start the runtime")?.block_on(async {
            guard::run(options, operator::signals()?).await?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Asks a guard whether it is ready. A pod's own probe would come from outside, where a guard does not listen.
fn probe(address: SocketAddr) -> anyhow::Result<ExitCode> {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, PROBE_LIMIT)?;
        stream.set_read_timeout(Some(PROBE_LIMIT))?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().with_context(|| format!("no guard listens on {address}"))?;
    let code = answer.split(' ').nth(1).unwrap_or_default();
    if code != "200" {
        bail!("the guard on {address} is not ready: {}", answer.lines().next_back().unwrap_or_default());
    }
    Ok(ExitCode::SUCCESS)
}
