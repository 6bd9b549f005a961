//! `kube-node guard`: the helper beside an upstream kubemark in its pod. People have no use for it.

use std::{
    fs, io,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{sync::watch, time::sleep};
use tracing::warn;

use crate::{
    api::{Failures, Resources},
    guard::{Guard, GuardError, Machine},
    operator,
    runtime::telemetry::{self, LogFormat},
};

/// Exit code when the machine's Node is gone: its pod is of no use any more.
const GONE: u8 = 10;
/// How often the settings are looked at: the kubelet needs up to a minute to change them, so this adds nothing.
const SETTINGS_POLL: Duration = Duration::from_secs(1);
/// Longest time for an answer to the probe.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// Arguments of `guard`.
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// Name of the machine's Node
    #[arg(long, value_name = "NODE", required_unless_present = "probe")]
    node: Option<String>,
    /// Folder with machine.json, settings.json and bootstrap.kubeconfig
    #[arg(long, value_name = "DIR", default_value = "/var/run/kube-node/machine")]
    machine_dir: PathBuf,
    /// Kubeconfig of the machine
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
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

/// What of machine.json concerns a guard.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MachineFile {
    uid: String,
    container_runtime: Option<String>,
    allocatable: Option<Resources>,
}

/// What of settings.json concerns a guard.
#[derive(Debug, Default, Deserialize)]
struct SettingsFile {
    failures: Option<Failures>,
}

impl GuardArgs {
    /// Serves kubemark until SIGINT or SIGTERM, or until its Node is gone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.probe {
            return probe(self.listen);
        }
        telemetry::start(self.log_format);
        super::block_on(async {
            let Some(node) = self.node else { bail!("the name of the Node is missing: give --node NAME") };
            let MachineFile { uid, container_runtime, allocatable } =
                read(&self.machine_dir.join("machine.json"))?;
            let guard =
                Guard::bind(self.listen, Machine { node, uid, container_runtime, allocatable }).await?;
            let client = operator::client(self.kubeconfig.as_deref()).await?.unreached();
            let failures = follow(self.machine_dir.join("settings.json"))?;
            match guard.run(client, failures, operator::signals()?).await {
                Ok(()) => Ok(ExitCode::SUCCESS),
                Err(gone @ GuardError::Gone(_)) => {
                    eprintln!("error: {gone}");
                    Ok(ExitCode::from(GONE))
                }
                Err(error) => Err(error.into()),
            }
        })
    }
}

/// Asks a guard whether it is ready. A pod's own probe would come from outside, where a guard does not listen.
fn probe(address: SocketAddr) -> anyhow::Result<ExitCode> {
    use io::{Read, Write};
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, PROBE_LIMIT)?;
        stream.set_read_timeout(Some(PROBE_LIMIT))?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().with_context(|| format!("no guard listens on {address}"))?;
    let first = answer.lines().next().unwrap_or_default();
    if first.split(' ').nth(1) == Some("200") {
        return Ok(ExitCode::SUCCESS);
    }
    bail!("the guard on {address} is not ready: {}", answer.lines().next_back().unwrap_or_default())
}

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not valid", path.display()))
}

/// The failures of the settings, and those of each later version of the file.
fn follow(path: PathBuf) -> anyhow::Result<watch::Receiver<Option<Failures>>> {
    let SettingsFile { failures } = read(&path)?;
    let (sender, receiver) = watch::channel(failures);
    tokio::spawn(async move {
        let mut is_bad = false;
        while !sender.is_closed() {
            sleep(SETTINGS_POLL).await;
            match read::<SettingsFile>(&path) {
                Ok(SettingsFile { failures }) => {
                    is_bad = false;
                    sender.send_if_modified(|known| {
                        let is_new = *known != failures;
                        *known = failures;
                        is_new
                    });
                }
                Err(error) if !is_bad => {
                    is_bad = true;
                    warn!(error = format!("{error:#}"), "the settings stay as they were");
                }
                Err(_) => {}
            }
        }
    });
    Ok(receiver)
}
