//! From nothing to N Ready nodes, and then idle: a bare client as the limit, KWOK, and kube-node, on fresh control
//! planes, in turn.
//!
//! `cargo bench -- --nodes 1000,5000 --repeat 3`. Figures go to standard output as a table, to
//! `target/bench/nodes.json` and, as curves, to `docs/benchmarks/`.

mod bare;
mod beside;
mod idle;
#[path = "../kwok/mod.rs"]
mod kwok;
mod ours;
mod report;
#[path = "../pods/running.rs"]
#[allow(dead_code)]
mod running;
#[path = "../shared/mod.rs"]
mod shared;
#[path = "../pods/status.rs"]
#[allow(dead_code)]
mod status;
#[path = "../pods/work.rs"]
#[allow(dead_code)]
mod work;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::{
    idle::Idle,
    shared::{COMPONENTS, Costs, Counter, KUBE_NODE, Plane, Process},
};

/// What is written for a node.
const WRITTEN: [&str; 3] = ["nodes", "leases", "csinodes"];

/// Arguments after `cargo bench --`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Numbers of nodes
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 5_000])]
    nodes: Vec<usize>,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// What is measured, in this order, each round
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [System::Bare, System::KwokAfter, System::Kwok, System::Ours])]
    systems: Vec<System>,
    /// The program of another build, for the system `parent`
    #[arg(long, value_name = "PROGRAM")]
    parent: Option<PathBuf>,
    /// Numbers of Nodes that are not hollow beside those of kube-node
    #[arg(long, value_delimiter = ',', default_values_t = [0])]
    beside: Vec<usize>,
    /// Admission policies without which kube-node is measured as well
    #[arg(long, value_delimiter = ',')]
    without_policies: Vec<String>,
    /// Create a `CSIDriver` first, for which each node of kube-node gets a `CSINode`
    #[arg(long)]
    csi_driver: bool,
    /// Number of pods that run while kube-node idles
    #[arg(long, default_value_t = 0)]
    pods: usize,
    /// Number of nodes that these pods are spread over
    #[arg(long, default_value_t = 1_000)]
    pods_on: usize,
    /// How long it idles after the last node is Ready, in seconds
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// Give up on nodes that are not Ready after this many seconds
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// Where the curves go
    #[arg(long, default_value = "docs/benchmarks")]
    plots: PathBuf,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Who makes the nodes Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum System {
    /// A client that does the smallest sequence of writes: the limit.
    Bare,
    /// The nodes created by the bare client, then KWOK.
    KwokAfter,
    /// KWOK, running already while the bare client creates the nodes.
    Kwok,
    /// kube-node, from `replicas: N`.
    Ours,
    /// Another build of kube-node, usually that of the parent commit: `--parent`.
    Parent,
}

/// What is there besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Surroundings {
    /// Nodes that are not hollow.
    beside: usize,
    /// Whether the policies of `--without-policies` are gone.
    reduced: bool,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    system: System,
    nodes: usize,
    round: usize,
    #[serde(flatten)]
    surroundings: Surroundings,
    /// Seconds from the first write until the last node was Ready and open to pods.
    seconds: f64,
    /// Nodes that never came within the limit.
    missing: usize,
    /// Writes that the API server served to anybody, per node.
    writes_per_node: f64,
    /// Mean time of such a write in the API server, in milliseconds.
    latency: f64,
    /// CPU time per node until all were Ready, in milliseconds: the control plane's processes and who made them Ready.
    cpu_per_node: [f64; 5],
    /// Seconds and how many were Ready then.
    curve: Vec<(f64, usize)>,
    idle: Option<Idle>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let with_kwok = arguments.systems.iter().any(|system| matches!(system, System::Kwok | System::KwokAfter));
    let kwok = if with_kwok { Some(kwok::build()?) } else { None };
    let mut all = Vec::new();
    for round in 0..arguments.repeat {
        for &nodes in &arguments.nodes {
            for &system in &arguments.systems {
                for surroundings in surroundings(&arguments, system) {
                    let work = measure(&arguments, system, nodes, round, surroundings, kwok.as_ref());
                    let measured = runtime.block_on(work)?;
                    eprintln!(
                        "round {round}: {system:?} {nodes} nodes, {surroundings:?}, in {:.1} s, {:.1} writes a node, CPU {:.1?} ms a node, idle {:?}",
                        measured.seconds, measured.writes_per_node, measured.cpu_per_node, measured.idle
                    );
                    all.push(measured);
                    report::write(&all, &arguments.plots)?;
                }
            }
        }
    }
    println!("{}", report::table(&all));
    Ok(())
}

/// Only kube-node has policies, and something to protect.
fn surroundings(arguments: &Arguments, system: System) -> Vec<Surroundings> {
    if system != System::Ours {
        return vec![Surroundings::default()];
    }
    let reduced: &[bool] = if arguments.without_policies.is_empty() { &[false] } else { &[false, true] };
    let each = arguments
        .beside
        .iter()
        .flat_map(|&beside| reduced.iter().map(move |&reduced| Surroundings { beside, reduced }));
    each.collect()
}

async fn measure(
    arguments: &Arguments,
    system: System,
    nodes: usize,
    round: usize,
    surroundings: Surroundings,
    kwok: Option<&kwok::Kwok>,
) -> anyhow::Result<Measured> {
    let plane = match system {
        System::Ours => Plane::start(Path::new(KUBE_NODE), &[])?,
        System::Parent => {
            Plane::start(arguments.parent.as_ref().context("name its program by --parent")?, &[])?
        }
        System::Bare | System::KwokAfter | System::Kwok => Plane::without_operator(&[])?,
    };
    if surroundings.reduced {
        beside::without_policies(&plane, &arguments.without_policies).await?;
    }
    if arguments.csi_driver {
        beside::csi_driver(&plane).await?;
    }
    let _renewed = beside::create(&plane, surroundings.beside).await?;
    // As long in each case, so that they differ in nothing else.
    if arguments.beside != [0] || !arguments.without_policies.is_empty() {
        tokio::time::sleep(beside::SETTLE).await;
    }
    let counter = Counter::start(&plane).await?;
    let process = match system {
        System::Bare | System::KwokAfter => None,
        System::Kwok => {
            let process = started(kwok, &plane)?;
            // Its informers take a moment.
            tokio::time::sleep(Duration::from_secs(5)).await;
            Some(process)
        }
        System::Ours | System::Parent => Some(Process::of(plane.pid("operator")?)),
    };
    let costs = Costs::begin(&plane, process.as_ref(), &WRITTEN).await?;
    counter.begin();
    let work = async {
        match system {
            System::Bare => bare::nodes_to_ready(&plane, nodes).await?,
            System::Kwok => bare::create_all(&plane, nodes).await?,
            System::KwokAfter => {
                bare::create_all(&plane, nodes).await?;
                return Ok(Some(started(kwok, &plane)?));
            }
            System::Ours | System::Parent => ours::scale_to(&plane, nodes).await?,
        }
        anyhow::Ok(None)
    };
    let limit = Duration::from_secs(arguments.limit);
    let (done, reached) = tokio::try_join!(work, async { Ok(counter.reach(nodes, limit).await) })?;
    let mut spent = costs.end().await?;
    if let Some(process) = done {
        // It began with nothing.
        spent.cpu[COMPONENTS.len()] = process.cpu_seconds()?;
    }
    let idle = match process {
        Some(process) if arguments.idle > 0 => {
            if matches!(system, System::Ours | System::Parent) {
                idle::run_pods(&plane, &counter, arguments).await?;
            }
            Some(idle::measure(&plane, &counter, &process, Duration::from_secs(arguments.idle)).await?)
        }
        _ => None,
    };
    let curve = counter.curve();
    Ok(Measured {
        system,
        nodes,
        round,
        surroundings,
        seconds: reached.seconds,
        missing: nodes.saturating_sub(reached.ready),
        writes_per_node: spent.writes / nodes as f64,
        latency: spent.latency,
        cpu_per_node: spent.cpu.map(|seconds| seconds * 1_000.0 / nodes as f64),
        curve,
        idle,
    })
}

fn started(kwok: Option<&kwok::Kwok>, plane: &Plane) -> anyhow::Result<Process> {
    Ok(Process::owned(kwok.context("KWOK is built")?.start(
        &plane.kubeconfig(),
        kwok::OWN,
        kwok::FAST_PODS,
    )?))
}
