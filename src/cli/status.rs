//! `kube-node status`: processes of a cluster of this machine, their health, and its nodes.

use std::{path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use clap::Args;
use local_cluster::{
    Component, Layout, Probe, State, client_of, count_nodes, layout::supervisor, procs::ProcessId, real_node,
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
            Output::Json => super::print_line(serde_json::to_string_pretty(&report)?),
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
    if let Some(State { addresses, components: processes, .. }) = &state {
        let exists = |component: &Component| addresses.network.is_some() || *component != Component::RealNode;
        for component in Component::ALL.iter().copied().filter(exists) {
            let process = processes.get(&component).copied().filter(|id| id.is_alive());
            let (endpoint, address) = (component.health(addresses), component.address(addresses));
            components.push(row(layout, component.name(), process, endpoint, address).await);
        }
        if let Some(network) = addresses.network {
            let running = real_node::daemons(layout.dir());
            for daemon in real_node::DaemonName::ALL {
                let process = running.iter().find(|(other, _)| *other == daemon).map(|(_, id)| *id);
                components.push(row(layout, daemon.name(), process, daemon.health(&network), None).await);
            }
        }
    }
    let healthy =
        components.iter().any(|row| row.name == Component::KubeApiserver.name() && row.health == "ok");
    // The supervisor itself serves these addresses.
    let reached_at = state.as_ref().filter(|_| running).map(|state| state.addresses.further_urls());
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

/// A process, and its health by the URL and path of its endpoint; a running process without an endpoint is `ok`.
async fn row(
    layout: &Layout,
    name: &'static str,
    process: Option<ProcessId>,
    endpoint: Option<(String, &'static str)>,
    address: Option<String>,
) -> Row {
    let health = match (process, endpoint, std::fs::read_to_string(layout.kubeconfig())) {
        (None, ..) => Err(anyhow!("not running")),
        (Some(_), None, _) => Ok(()),
        (Some(_), Some((url, path)), Ok(kubeconfig)) => {
            async { Probe::new(&url, path, &kubeconfig).await?.check().await }.await
        }
        (Some(_), Some(_), Err(_)) => Err(anyhow!("unknown")),
    };
    Row {
        name,
        pid: process.map(|id| id.pid),
        health: health.map_or_else(|error| error.to_string(), |()| "ok".to_owned()),
        resident_bytes: process.and_then(ProcessId::resident_bytes),
        address,
    }
}

fn print(report: &Report) {
    let Report { running, data_dir, kubeconfig, reached_at, kubernetes_version, components, nodes } = report;
    let state = if *running { "running" } else { "not running" };
    let version = kubernetes_version.as_ref().map_or_else(String::new, |it| format!(", Kubernetes {it}"));
    super::print_line(format_args!("Cluster      {state}{version}"));
    super::print_line(format_args!("Data         {}", data_dir.display()));
    super::print_line(format_args!("Kubeconfig   {}", kubeconfig.display()));
    for url in reached_at {
        super::print_line(format_args!("Reached at   {url}"));
    }
    if let Some((ready, wanted)) = nodes {
        super::print_line(format_args!("Nodes        {ready} of {wanted} Ready"));
    }
    if components.is_empty() {
        return;
    }
    super::print_line("");
    super::print_line(format_args!(
        "{:<24} {:>8} {:>9}  {:<28} HEALTH",
        "COMPONENT", "PID", "MEMORY", "ADDRESS"
    ));
    let dash = || "-".to_owned();
    for Row { name, pid, health, resident_bytes, address } in components {
        let pid = pid.map_or_else(dash, |pid| pid.to_string());
        let memory = resident_bytes.map_or_else(dash, |bytes| format!("{} MiB", bytes >> 20));
        let address = address.as_deref().unwrap_or("-");
        super::print_line(format_args!("{name:<24} {pid:>8} {memory:>9}  {address:<28} {health}"));
    }
}
