//! From bound to Running: pods by the thousand on Ready nodes, under bare clients as the limits, KWOK, and kube-node, on
//! fresh control planes, in turn.
//!
//! `cargo bench --bench pods -- --pods 20000 --nodes 1000 --repeat 3`. In each the nodes are Ready first. Then whoever runs the
//! pods is halted (SIGSTOP) while all pods are created with their Node's name, so that their creation counts for nobody, and let
//! go; time runs from then until the last one is Running and Ready. `--meanwhile` does not halt it: then time runs from the
//! first creation.

#[path = "../nodes/bare.rs"]
#[allow(dead_code)]
mod bare;
#[path = "../kwok/mod.rs"]
mod kwok;
#[path = "../nodes/ours.rs"]
mod ours;
mod running;
#[path = "../shared/mod.rs"]
mod shared;
mod status;
mod work;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};

use crate::shared::{COMPONENTS, Costs, Counter, KUBE_NODE, Plane, Process, Spent, spread};

/// Who is halted renews no Lease, and the bare client has none to renew: their nodes stay Ready all the same.
const PATIENT: [&str; 2] = ["--component-arg", "kube-controller-manager=--node-monitor-grace-period=20m"];

/// Arguments after `cargo bench --bench pods --`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of pods
    #[arg(long, default_value_t = 20_000)]
    pods: usize,
    /// Number of nodes that they are spread over
    #[arg(long, default_value_t = 1_000)]
    nodes: usize,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// What is measured, in this order, each round
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [System::Bare, System::Whole, System::Kwok, System::Ours])]
    systems: Vec<System>,
    /// Measure from the first creation, with everything running
    #[arg(long)]
    meanwhile: bool,
    /// Write events too, as kubelets do (ours only: the others have none)
    #[arg(long)]
    events: bool,
    /// Give up on pods that are not Running after this many seconds
    #[arg(long, default_value_t = 900)]
    limit: u64,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Who runs the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum System {
    /// A client that writes one short status for each pod, 256 at once: the limit.
    Bare,
    /// The same with all that a kubelet says: the limit of what is as true as ours.
    Whole,
    /// KWOK with the stages that kwokctl gives it.
    Kwok,
    /// kube-node.
    Ours,
}

/// One measurement.
struct Measured {
    seconds: f64,
    missing: usize,
    /// What they cost since all were created; with `--meanwhile` since before.
    spent: Spent,
    /// Resident memory of who runs the pods, in MiB.
    rss: f64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let kwok = arguments.systems.contains(&System::Kwok).then(kwok::build).transpose()?;
    let mut all: BTreeMap<System, Vec<Measured>> = BTreeMap::new();
    for round in 0..arguments.repeat {
        for &system in &arguments.systems {
            let measured = runtime.block_on(measure(&arguments, system, kwok.as_ref()))?;
            eprintln!("round {round}: {system:?} {:.1} s, {} missing", measured.seconds, measured.missing);
            all.entry(system).or_default().push(measured);
        }
    }
    println!("{}", table(&arguments, &all));
    Ok(())
}

async fn measure(
    arguments: &Arguments,
    system: System,
    kwok: Option<&kwok::Kwok>,
) -> anyhow::Result<Measured> {
    let plane = if system == System::Ours {
        Plane::start(Path::new(KUBE_NODE), &PATIENT)?
    } else {
        Plane::without_operator(&PATIENT)?
    };
    let nodes = Counter::start(&plane).await?;
    let process = match system {
        System::Bare | System::Whole => {
            bare::nodes_to_ready(&plane, arguments.nodes).await?;
            None
        }
        System::Kwok => {
            let process = Process::owned(kwok.context("KWOK is built")?.start(
                &plane.kubeconfig(),
                kwok::OWN,
                kwok::FAST_PODS,
            )?);
            bare::create_all(&plane, arguments.nodes).await?;
            Some(process)
        }
        System::Ours => {
            if !arguments.events {
                ours::without_events(&plane).await?;
            }
            ours::scale_to(&plane, arguments.nodes).await?;
            Some(Process::of(plane.pid("operator")?))
        }
    };
    let reached = nodes.reach(arguments.nodes, Duration::from_mins(5)).await;
    ensure!(reached.ready == arguments.nodes, "only {} nodes are Ready", reached.ready);
    let names = nodes.names();
    // What the nodes left to do is not part of it.
    tokio::time::sleep(Duration::from_secs(5)).await;

    let running = running::Running::start(&plane).await?;
    let halted = process.as_ref().filter(|_| !arguments.meanwhile).map(Process::halt).transpose()?;
    if !arguments.meanwhile {
        work::create(&plane, &names, arguments.pods).await?;
        running.seen(arguments.pods, Duration::from_mins(2)).await;
    }
    let costs = Costs::begin(&plane, process.as_ref(), &["pods"]).await?;
    let begin = Instant::now();
    drop(halted);
    if arguments.meanwhile {
        work::create(&plane, &names, arguments.pods).await?;
    }
    if matches!(system, System::Bare | System::Whole) {
        running.seen(arguments.pods, Duration::from_mins(2)).await;
        work::run_all(&plane, &running.pods(), system == System::Whole).await?;
    }
    let reached = running.reach(arguments.pods, Duration::from_secs(arguments.limit)).await;
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Measured {
        seconds,
        missing: arguments.pods.saturating_sub(reached),
        spent: costs.end().await?,
        rss: process.map(|process| process.memory()).transpose()?.map_or(0.0, |memory| memory.resident),
    })
}

/// A table in Markdown: medians, with the least and the greatest.
fn table(arguments: &Arguments, all: &BTreeMap<System, Vec<Measured>>) -> String {
    let pods = arguments.pods as f64;
    let mut text = format!(
        "{pods} pods on {} nodes\n\n| system | seconds to Running | never came | writes a pod | ms a write | CPU, ms a pod: kube-apiserver | etcd | controller-manager | scheduler | itself | RSS, MiB |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        arguments.nodes
    );
    for (system, of) in all {
        let figure = |value: &dyn Fn(&Measured) -> f64| spread(&of.iter().map(value).collect::<Vec<_>>());
        let mut cells = vec![
            figure(&|measured| measured.seconds),
            figure(&|measured| measured.missing as f64),
            figure(&|measured| measured.spent.writes / pods),
            figure(&|measured| measured.spent.latency),
        ];
        cells.extend(
            (0..=COMPONENTS.len()).map(|at| figure(&|measured| measured.spent.cpu[at] * 1_000.0 / pods)),
        );
        cells.push(figure(&|measured| measured.rss));
        let _ = writeln!(text, "| {system:?} | {} |", cells.join(" | "));
    }
    text
}
