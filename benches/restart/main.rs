//! Whether Leases outlast the death of a lone operator in the middle of a scale-up, when it has put renewals off.
//!
//! `cargo bench --bench restart -- --nodes 10000 --after 15,30,45`: on a fresh control plane each, the operator is killed so
//! many seconds after the scale-up began, and `up` starts another one. A Lease counts as renewed when a watch shows it, as
//! kube-controller-manager's node controller counts; one that is older than its 40 s has run out, and the benchmark fails.

#[path = "../nodes/ours.rs"]
mod ours;
#[path = "../shared/mod.rs"]
mod shared;

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::ensure;
use clap::Parser;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use kube_node_api::node_lease;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::shared::{Counter, KUBE_NODE, Plane};

/// After the last Node is Ready: what was put off has come by then, or has run out.
const AFTERWARDS: Duration = Duration::from_mins(1);

/// Arguments after `cargo bench --bench restart --`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of nodes
    #[arg(long, default_value_t = 10_000)]
    nodes: usize,
    /// When the operator is killed, in seconds after the scale-up begins; each is measured by itself
    #[arg(long, value_delimiter = ',', default_values_t = [15, 30, 45])]
    after: Vec<u64>,
    /// Give up on nodes that are not Ready after this many seconds
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let limit = Duration::from_secs(arguments.limit);
    println!(
        "| killed after, s | Ready then | oldest Lease then, s | all Ready after, s | longest between renewals, s: as written | as seen | closed to pods again |\n| --- | --- | --- | --- | --- | --- | --- |"
    );
    let mut oldest = Duration::ZERO;
    for after in arguments.after {
        oldest = oldest.max(runtime.block_on(restart(arguments.nodes, Duration::from_secs(after), limit))?);
    }
    ensure!(oldest <= node_lease::DURATION, "a Lease was {:.1} s old: it ran out", oldest.as_secs_f64());
    Ok(())
}

/// One death; the age that a Lease had at most, as it was seen.
async fn restart(nodes: usize, after: Duration, limit: Duration) -> anyhow::Result<Duration> {
    let plane = Plane::start(Path::new(KUBE_NODE), &[])?;
    let counter = Counter::start(&plane).await?;
    let ages = Arc::new(Ages::default());
    let following = tokio::spawn(follow(plane.client().await?, Arc::clone(&ages)));
    let operator = Pid::from_raw(i32::try_from(plane.pid("operator")?)?);
    let begin = Instant::now();
    ours::scale_to(&plane, nodes).await?;
    tokio::time::sleep(after).await;
    kill(operator, Signal::SIGKILL)?;
    let (ready, oldest) = (counter.names().len(), ages.oldest());
    let reached = counter.reach(nodes, limit).await;
    let took = begin.elapsed();
    ensure!(
        reached.ready >= nodes,
        "{} of {nodes} are Ready after {:.0} s",
        reached.ready,
        took.as_secs_f64()
    );
    tokio::time::sleep(AFTERWARDS).await;
    following.abort();
    let (written, seen) = ages.longest();
    let seen = seen.max(ages.oldest());
    println!(
        "| {} | {ready} | {:.1} | {:.1} | {:.1} | {:.1} | {} |",
        after.as_secs(),
        oldest.as_secs_f64(),
        took.as_secs_f64(),
        written.as_secs_f64(),
        seen.as_secs_f64(),
        counter.lost(),
    );
    Ok(seen)
}

/// When each Lease was renewed, as far as a watch has shown.
#[derive(Default)]
struct Ages(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    renewed: HashMap<String, (Timestamp, Instant)>,
    /// The longest from one renewal to the next: by the times that stand in the Lease, and as it was seen.
    longest: (Duration, Duration),
}

impl Ages {
    fn saw(&self, lease: Lease) {
        let Some(MicroTime(renewed)) = lease.spec.and_then(|spec| spec.renew_time) else { return };
        let (name, now) = (lease.metadata.name.unwrap_or_default(), Instant::now());
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((before, since)) =
            inner.renewed.get(&name).copied().filter(|(before, _)| *before != renewed)
        else {
            inner.renewed.entry(name).or_insert((renewed, now));
            return;
        };
        let written = Duration::try_from(renewed.duration_since(before)).unwrap_or_default();
        let seen = now.duration_since(since);
        if seen > node_lease::DURATION {
            eprintln!(
                "the Lease of {name} ran out: renewed at {before}, then at {renewed}, {seen:.1?} later"
            );
        }
        inner.longest = (inner.longest.0.max(written), inner.longest.1.max(seen));
        inner.renewed.insert(name, (renewed, now));
    }

    /// The longest from one renewal to the next: as written, and as seen.
    fn longest(&self) -> (Duration, Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).longest
    }

    /// Age of the oldest now.
    fn oldest(&self) -> Duration {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.renewed.values().map(|(_, since)| since.elapsed()).max().unwrap_or_default()
    }
}

async fn follow(client: Client, ages: Arc<Ages>) {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let mut seen = watcher(leases, watcher::Config::default()).default_backoff().applied_objects().boxed();
    while let Some(lease) = seen.next().await {
        match lease {
            Ok(lease) => ages.saw(lease),
            Err(error) => eprintln!("the watch of Leases: {error}"),
        }
    }
}
