//! Whether the operator keeps what it should have let go: an hour of failures, restarts and churn, and its memory over it.
//!
//! `cargo bench --bench soak -- --minutes 60`. On a cluster of [its own](manifests.yaml) two sets of nodes fail in turn, one is
//! scaled and rolled, a deployment is restarted each minute, a job of 60 pods begins each minute, containers crash all the
//! time, and kube-apiserver is killed every ten minutes. Samples go to `target/tmp/bench/soak.csv`. What counts is the
//! resident memory of the operator, which carries all machines: medians of each sixth of the time after a tenth to warm up.

#[path = "../shared/mod.rs"]
mod shared;

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Parser;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::shared::{KUBE_NODE, Plane, Process, median};

/// What the cluster is made of.
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/soak/manifests.yaml");
/// Time between two samples.
const SAMPLE: Duration = Duration::from_secs(10);
/// Samples between two turns of churn.
const TURN: usize = 6;
/// Turns between two rollouts of the nodes.
const ROLLOUT: usize = 5;
/// Turns between two deaths of kube-apiserver.
const OUTAGE: usize = 10;
/// Parts of the time that are compared.
const PARTS: usize = 6;

/// Arguments after `cargo bench --bench soak --`.
#[derive(Debug, Parser)]
struct Arguments {
    /// How long, in minutes
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(soak(Duration::from_mins(arguments.minutes)))
}

async fn soak(time: Duration) -> anyhow::Result<()> {
    let plane = Plane::start(Path::new(KUBE_NODE), &[])?;
    plane.kubectl(&["apply", "-f", MANIFESTS])?;
    let operator = Process::of(plane.pid("operator")?);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench");
    fs::create_dir_all(&dir)?;
    let (begin, mut samples) = (Instant::now(), Vec::new());
    let mut text = String::from("seconds,rss_mib,anonymous_mib,cpu_seconds\n");
    let mut turns = tokio::time::interval(SAMPLE);
    for at in 1.. {
        turns.tick().await;
        if begin.elapsed() >= time {
            break;
        }
        let memory = operator.memory()?;
        samples.push(memory.resident);
        let seconds = begin.elapsed().as_secs();
        let cpu = operator.cpu_seconds()?;
        writeln!(text, "{seconds},{:.1},{:.1},{cpu:.1}", memory.resident, memory.anonymous)?;
        fs::write(dir.join("soak.csv"), &text)?;
        if at % TURN == 0 {
            // An API server that is away is a part of it: what fails now is done at the next turn.
            if let Err(error) = churn(&plane, at / TURN) {
                eprintln!("{seconds} s: {error:#}");
            }
        }
    }
    print!("{}", told(&plane, &samples).await?);
    Ok(())
}

/// What happens each minute.
fn churn(plane: &Plane, turn: usize) -> anyhow::Result<()> {
    if turn.is_multiple_of(OUTAGE) {
        let pid = Pid::from_raw(i32::try_from(plane.pid("kube-apiserver")?)?);
        return kill(pid, Signal::SIGKILL).context("kube-apiserver does not run");
    }
    plane.kubectl(&["rollout", "restart", "deployment/web"])?;
    let replicas = if turn.is_multiple_of(2) { "--replicas=70" } else { "--replicas=30" };
    plane.kubectl(&["scale", "nodeset/rolls", replicas])?;
    if turn.is_multiple_of(ROLLOUT) {
        let change = format!(r#"{{"spec":{{"machineType":"soak-{turn}"}}}}"#);
        plane.kubectl(&["patch", "nodeclass/rolls", "--type=merge", "--patch", &change])?;
    }
    Ok(())
}

/// The table, and what happened meanwhile.
async fn told(plane: &Plane, samples: &[f64]) -> anyhow::Result<String> {
    let warm = samples.get(samples.len() / 10..).unwrap_or_default();
    let parts: Vec<f64> = warm.chunks((warm.len() / PARTS).max(1)).take(PARTS).filter_map(median).collect();
    let mut text = String::from("| part of the time | RSS, MiB |\n| --- | --- |\n");
    for (part, rss) in parts.iter().enumerate() {
        writeln!(text, "| {} of {PARTS} | {rss:.1} |", part + 1)?;
    }
    if let (Some(first), Some(last)) = (parts.first(), parts.last()) {
        writeln!(text, "\nfrom the first part to the last: {:+.1} %", (last / first - 1.0) * 100.0)?;
    }
    let request = http::Request::get("/api/v1/nodes?limit=1").body(Vec::new())?;
    let nodes: Value = serde_json::from_str(&plane.client().await?.request_text(request).await?)?;
    let rest = nodes["metadata"]["remainingItemCount"].as_u64().unwrap_or_default();
    writeln!(text, "Nodes at the end: {}", rest + 1)?;
    Ok(text)
}
