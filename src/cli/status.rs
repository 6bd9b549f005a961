//! `kube-node status`: the processes of a cluster of this machine, their health, and its nodes.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::cluster::{Component, Layout, Probe, client_of, count_nodes, layout::supervisor, state::State};

/// Exit code when nothing runs, as systemctl and service scripts have it.
const NOT_RUNNING: u8 = 3;

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Folder of the cluster; the user's default one when absent
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Form of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// What is to be said.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    running: bool,
    data_dir: PathBuf,
    kubeconfig: PathBuf,
    kubernetes_version: Option<String>,
    components: Vec<Row>,
    /// Ready and wanted; absent while nobody can say.
    nodes: Option<(i32, i32)>,
}

/// One process.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: &'static str,
    pid: Option<i32>,
    /// `ok`, or what is wrong.
    health: String,
    resident_bytes: Option<u64>,
    address: Option<String>,
}

impl Status {
    /// Says how the cluster stands; exit code 0 when it runs, 3 when it does not.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        super::block_on(async {
            let layout = Layout::new(self.data_dir.as_deref())?;
            let report = report(&layout).await?;
            match self.output {
                Output::Json => super::say(serde_json::to_string_pretty(&report)?),
                Output::Text => print(&report),
            }
            Ok(if report.running { ExitCode::SUCCESS } else { ExitCode::from(NOT_RUNNING) })
        })
    }
}

/// How many nodes are Ready, and how many should be.
pub(super) async fn ready_nodes(layout: &Layout) -> anyhow::Result<(i32, i32)> {
    let kubeconfig = std::fs::read_to_string(layout.kubeconfig())?;
    Ok(count_nodes(&client_of(&kubeconfig).await?).await?)
}

async fn report(layout: &Layout) -> anyhow::Result<Report> {
    let state = layout.load()?;
    let running = state.as_ref().is_some_and(|state| supervisor(state).is_some());
    let mut components = Vec::new();
    if let Some(state) = &state {
        for component in Component::ALL {
            components.push(row(layout, state, component).await);
        }
    }
    let healthy = components.iter().any(|row| row.name == Component::Apiserver.name() && row.health == "ok");
    Ok(Report {
        running,
        data_dir: layout.dir().to_owned(),
        kubeconfig: layout.kubeconfig(),
        kubernetes_version: state.map(|state| state.kubernetes_version),
        components,
        nodes: if healthy { ready_nodes(layout).await.ok() } else { None },
    })
}

async fn row(layout: &Layout, state: &State, component: Component) -> Row {
    let process = state.components.get(&component).copied().filter(|id| id.is_alive());
    let health = match (process, &state.ports, std::fs::read_to_string(layout.kubeconfig())) {
        (None, ..) => "not running".to_owned(),
        (Some(_), Some(ports), Ok(kubeconfig)) => match Probe::new(component, ports, &kubeconfig).await {
            Ok(probe) => probe.check().await.map_or_else(|error| error.to_string(), |()| "ok".to_owned()),
            Err(error) => error.to_string(),
        },
        (Some(_), ..) => "unknown".to_owned(),
    };
    Row {
        name: component.name(),
        pid: process.map(|id| id.pid),
        health,
        resident_bytes: process.and_then(crate::cluster::procs::ProcessId::resident_bytes),
        address: state.ports.as_ref().map(|ports| component.address(ports)),
    }
}

fn print(report: &Report) {
    let Report { running, data_dir, kubeconfig, kubernetes_version, components, nodes } = report;
    let state = if *running { "running" } else { "not running" };
    let version =
        kubernetes_version.as_ref().map(|version| format!(", Kubernetes {version}")).unwrap_or_default();
    super::say(format_args!("Cluster      {state}{version}"));
    super::say(format_args!("Data         {}", data_dir.display()));
    super::say(format_args!("Kubeconfig   {}", kubeconfig.display()));
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
