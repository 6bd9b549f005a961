//! What it costs to keep nodes, with pods on some of them, once nothing changes any more.

use std::time::Duration;

use anyhow::{Context, ensure};
use kube_node_testing::http;
use serde::Serialize;

use crate::{
    Arguments, ours,
    running::Running,
    shared::{Counter, Plane, Process},
    work,
};

/// Time for what the scale-up and the pods left to do, which is not idling.
const SETTLE: Duration = Duration::from_secs(15);
/// Longest that the pods may take to run.
const PODS_LIMIT: Duration = Duration::from_mins(10);

/// What it costs to keep the nodes.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    /// CPU, in cores.
    pub cores: f64,
    /// CPU of kube-apiserver meanwhile, in cores.
    pub apiserver_cores: f64,
    /// Resident memory at the end, in MiB.
    pub rss_mib: f64,
    /// Age of the oldest Lease at the end, in seconds.
    pub oldest_lease: f64,
    /// Nodes whose Ready condition left True meanwhile.
    pub turned_not_ready: usize,
    /// Reconciliations of NodeSets a minute; None for KWOK.
    pub set_reconciles: Option<f64>,
}

/// Creates the pods of `--pods` on nodes of kube-node, without events, and waits until all run.
pub async fn run_pods(plane: &Plane, counter: &Counter, arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { pods, pods_on, .. } = *arguments;
    if pods == 0 {
        return Ok(());
    }
    ours::without_events(plane).await?;
    let mut names = counter.names();
    names.truncate(pods_on);
    let running = Running::start(plane).await?;
    work::create(plane, &names, pods).await?;
    let reached = running.reach(pods, PODS_LIMIT).await;
    ensure!(reached == pods, "only {reached} of {pods} pods run");
    Ok(())
}

/// Measures for `span`.
pub async fn measure(
    plane: &Plane,
    counter: &Counter,
    process: &Process,
    span: Duration,
) -> anyhow::Result<Idle> {
    tokio::time::sleep(SETTLE).await;
    let apiserver = Process::of(plane.pid("kube-apiserver")?);
    let (before, apiserver_before) = (process.cpu_seconds()?, apiserver.cpu_seconds()?);
    let (lost_before, reconciles_before) = (counter.lost(), set_reconciles(plane)?);
    tokio::time::sleep(span).await;
    let seconds = span.as_secs_f64();
    let reconciles = set_reconciles(plane)?.zip(reconciles_before).map(|(after, before)| after - before);
    Ok(Idle {
        cores: (process.cpu_seconds()? - before) / seconds,
        apiserver_cores: (apiserver.cpu_seconds()? - apiserver_before) / seconds,
        rss_mib: process.memory()?.resident,
        turned_not_ready: counter.lost() - lost_before,
        oldest_lease: plane.oldest_lease().await?,
        set_reconciles: reconciles.map(|count| count / seconds * 60.0),
    })
}

/// Reconciliations of NodeSets so far; None without an operator.
fn set_reconciles(plane: &Plane) -> anyhow::Result<Option<f64>> {
    if plane.pid("operator").is_err() {
        return Ok(None);
    }
    let text = http::get(format!("http://127.0.0.1:{}/metrics", plane.port("operator")?));
    let text = text.context("the operator does not answer with metrics")?;
    let is_counted = |line: &&str| {
        line.starts_with("kube_node_reconciles_total{") && line.contains("controller=\"nodeset\"")
    };
    let counts =
        text.lines().filter(is_counted).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    Ok(Some(counts.sum()))
}
