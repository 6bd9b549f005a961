//! `kube-node status`: processes of a cluster of this machine, their health, and its nodes.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use local_cluster::{
    Component, Layout, Probe, State, client_of, count_nodes,
    layout::supervisor,
    procs::ProcessId,
    real_node::{self, DaemonName},
};
use serde::Serialize;

use super::Output;

/// Exit code of a cluster that does not run, as in systemctl and service scripts.
const NOT_RUNNING: u8 = 3;

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Folder of the cluster; the user's default one when absent
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// The printed report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    running: bool,
    data_dir: PathBuf,
    kubeconfig: PathBuf,
    /// Addresses of kube-apiserver besides 127.0.0.1.
    reached_at: Vec<String>,
    kubernetes_version: Option<String>,
    components: Vec<Row>,
    /// Numbers of Ready and of wanted nodes; absent while they are unknown.
    nodes: Option<(i32, i32)>,
}

/// One process in the report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: &'static str,
    pid: Option<i32>,
    /// `ok`, or the problem.
    health: String,
    resident_bytes: Option<u64>,
    address: Option<String>,
}

impl Status {
    /// Prints the report. Returns exit code 0 if the cluster runs, else 3.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let layout = Layout::new(self.data_dir.as_deref())?;
        let report = report(&layout).await?;
        match self.output {
            Output::Json => super::say(serde_json::to_string_pretty(&report)?),
            Output::Text => print(&report),
        }
        Ok(if report.running { ExitCode::SUCCESS } else { ExitCode::from(NOT_RUNNING) })
    }
}

/// Numbers of Ready and of wanted nodes.
pub(super) async fn ready_nodes(layout: &Layout) -> anyhow::Result<(i32, i32)> {
    let kubeconfig = std::fs::read_to_string(layout.kubeconfig())?;
    Ok(count_nodes(&client_of(&kubeconfig).await?).await?)
}

async fn report(layout: &Layout) -> anyhow::Result<Report> {
    let state = layout.load()?;
    let running = state.as_ref().is_some_and(|state| supervisor(state).is_some());
    let mut components = Vec::new();
    if let Some(state) = &state {
        let there = |component: &Component| state.network.is_some() || *component != Component::RealNode;
        for component in Component::ALL.into_iter().filter(there) {
            components.push(row(layout, state, component).await);
        }
        components.extend(daemons(layout, state).await);
    }
    let healthy =
        components.iter().any(|row| row.name == Component::KubeApiserver.name() && row.health == "ok");
    // The supervisor itself serves these addresses.
    let addresses = state.as_ref().filter(|_| running).and_then(State::addresses);
    let reached_at = addresses.map(|addresses| addresses.further_urls());
    Ok(Report {
        running,
        data_dir: layout.dir().to_owned(),
        kubeconfig: layout.kubeconfig(),
        reached_at: reached_at.unwrap_or_default(),
        kubernetes_version: state.map(|state| state.kubernetes_version),
        components,
        nodes: if healthy { ready_nodes(layout).await.ok() } else { None },
    })
}

async fn row(layout: &Layout, state: &State, component: Component) -> Row {
    let process = state.components.get(&component).copied().filter(|id| id.is_alive());
    let addresses = state.addresses();
    let asked = addresses.as_ref().and_then(|addresses| component.health(addresses));
    Row {
        name: component.name(),
        pid: process.map(|id| id.pid),
        health: health(layout, process, asked).await,
        resident_bytes: process.and_then(ProcessId::resident_bytes),
        address: addresses.as_ref().and_then(|addresses| component.address(addresses)),
    }
}

/// Processes inside the real node, if there is one.
async fn daemons(layout: &Layout, state: &State) -> Vec<Row> {
    let Some(network) = state.network else { return Vec::new() };
    let running = real_node::daemons(layout.dir());
    let mut rows = Vec::new();
    for daemon in DaemonName::ALL {
        let process = running.iter().find(|(other, _)| *other == daemon).map(|(_, id)| *id);
        rows.push(Row {
            name: daemon.name(),
            pid: process.map(|id| id.pid),
            health: health(layout, process, daemon.health(&network)).await,
            resident_bytes: process.and_then(ProcessId::resident_bytes),
            address: None,
        });
    }
    rows
}

/// Health of a process; `ok` for a running process without a health endpoint.
async fn health(
    layout: &Layout,
    process: Option<ProcessId>,
    asked: Option<(String, &'static str)>,
) -> String {
    let said = match (process, asked, std::fs::read_to_string(layout.kubeconfig())) {
        (None, ..) => return "not running".to_owned(),
        (Some(_), None, _) => return "ok".to_owned(),
        (Some(_), Some((url, path)), Ok(kubeconfig)) => Probe::new(&url, path, &kubeconfig).await,
        (Some(_), Some(_), Err(_)) => return "unknown".to_owned(),
    };
    match said {
        Ok(probe) => probe.check().await.map_or_else(|error| error.to_string(), |()| "ok".to_owned()),
        Err(error) => error.to_string(),
    }
}

fn print(report: &Report) {
    let Report { running, data_dir, kubeconfig, reached_at, kubernetes_version, components, nodes } = report;
    let state = if *running { "running" } else { "not running" };
    let version =
        kubernetes_version.as_ref().map(|version| format!(", Kubernetes {version}")).unwrap_or_default();
    super::say(format_args!("Cluster      {state}{version}"));
    super::say(format_args!("Data         {}", data_dir.display()));
    super::say(format_args!("Kubeconfig   {}", kubeconfig.display()));
    for url in reached_at {
        super::say(format_args!("Reached at   {url}"));
    }
    if let Some((ready, wanted)) = nodes {
        super::say(format_args!("Nodes        {ready} of {wanted} Ready"));
    }
    if components.is_empty() {
        return;
    }
    super::say("");
    super::say(format_args!("{:<24} {:>8} {:>9}  {:<28} HEALTH", "COMPONENT", "PID", "MEMORY", "ADDRESS"));
    for row in components {
        let pid = row.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let memory =
            row.resident_bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        let address = row.address.as_deref().unwrap_or("-");
        super::say(format_args!("{:<24} {pid:>8} {memory:>9}  {address:<28} {}", row.name, row.health));
    }
}
