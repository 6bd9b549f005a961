//! What one write costs, by what is written, in which form, and whether the server tracks its fields.
//!
//! `cargo bench --bench writes -- --nodes 1000 --repeat 3`. Each kind of write is done to fresh objects, 64 at once, on one control
//! plane without the operator; what went before (their creation, and what the controller-manager makes of it) is over
//! then. The controller-manager's answers to a write are part of its price.

#[path = "../nodes/bare.rs"]
#[allow(dead_code)]
mod bare;
mod forms;
#[path = "../kwok/mod.rs"]
#[allow(dead_code)]
mod kwok;
mod objects;
mod pods;
#[path = "../shared/mod.rs"]
mod shared;
#[path = "../pods/status.rs"]
mod status;

use std::{fmt::Write as _, time::Duration};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;

use crate::{
    forms::{Call, Form, Tracking},
    objects::Kind,
    shared::{COMPONENTS, Costs, Plane, Spent, spread},
};

/// Time for what the controller-manager makes of a change.
const SETTLING: Duration = Duration::from_secs(2);

/// Nobody renews the Lease of the Node that all pods are on.
const PATIENT: [&str; 2] = ["--component-arg", "kube-controller-manager=--node-monitor-grace-period=20h"];

/// Arguments after `cargo bench --bench writes --`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of objects that each kind of write is done to
    #[arg(long, default_value_t = 1_000)]
    nodes: usize,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Kinds of objects that are written
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Objects::Nodes, Objects::Leases, Objects::Pods])]
    objects: Vec<Objects>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Objects {
    Nodes,
    Leases,
    Pods,
}

/// A kind of write, and what its rounds cost.
struct Row {
    what: &'static str,
    body: &'static str,
    tracking: Tracking,
    watchers: usize,
    rounds: Vec<Spent>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rows = runtime.block_on(async {
        let plane = Plane::without_operator(&PATIENT)?;
        let mut rows = Vec::new();
        for objects in &arguments.objects {
            rows.extend(match objects {
                Objects::Nodes => measured(&plane, &arguments, forms::nodes()).await?,
                Objects::Leases => measured(&plane, &arguments, forms::leases()).await?,
                Objects::Pods => {
                    // They are all on one.
                    bare::nodes_to_ready(&plane, 1).await?;
                    measured(&plane, &arguments, pods::pods()).await?
                }
            });
        }
        anyhow::Ok(rows)
    })?;
    println!("{}", table(&rows, arguments.nodes));
    Ok(())
}

/// All forms in turn, and again, so that a slow minute of the machine hits no form alone.
async fn measured<T: Kind>(
    plane: &Plane,
    arguments: &Arguments,
    forms: Vec<Form<T>>,
) -> anyhow::Result<Vec<Row>> {
    let client = &plane.client().await?;
    let row = |form: &Form<T>| Row {
        what: form.what,
        body: form.body,
        tracking: form.tracking,
        watchers: form.watchers,
        rounds: Vec::new(),
    };
    let mut rows: Vec<Row> = forms.iter().map(row).collect();
    for _ in 0..arguments.repeat {
        for (form, row) in forms.iter().zip(&mut rows) {
            let objects = objects::prepared(client, arguments.nodes, form).await?;
            let calls = objects.iter().map(form.call).collect::<Vec<Call>>();
            let watchers = watch(plane, T::PATH, form.watchers).await?;
            tokio::time::sleep(SETTLING).await;
            let costs = Costs::begin(plane, None, &["nodes", "leases", "pods"]).await?;
            all(client, calls).await.with_context(|| format!("{}, {}", form.what, form.body))?;
            let spent = costs.end().await?;
            eprintln!(
                "{}, {}: {:.2} ms a write",
                form.what,
                form.body,
                spent.cpu[0] * 1_000.0 / arguments.nodes as f64
            );
            row.rounds.push(spent);
            watchers.iter().for_each(tokio::task::JoinHandle::abort);
            Call::delete_all(T::PATH).done(client).await?;
            tokio::time::sleep(SETTLING).await;
        }
    }
    Ok(rows)
}

/// Does all of them, many at once.
async fn all(client: &Client, calls: Vec<Call>) -> anyhow::Result<()> {
    stream::iter(calls).map(anyhow::Ok).try_for_each_concurrent(bare::AT_ONCE, |call| call.done(client)).await
}

/// Watches that were opened and are read, in protobuf as controllers do.
async fn watch(plane: &Plane, path: &str, count: usize) -> anyhow::Result<Vec<tokio::task::JoinHandle<()>>> {
    let mut watchers = Vec::new();
    for _ in 0..count {
        let answer = plane.client().await?.send(Call::watch(path).request()?).await?;
        anyhow::ensure!(answer.status().is_success(), "no watch of {path}: {}", answer.status());
        watchers.push(tokio::spawn(async move {
            let _ = answer.into_body().collect_bytes().await;
        }));
    }
    Ok(watchers)
}

/// A table in Markdown: medians, with the least and the greatest.
fn table(rows: &[Row], objects: usize) -> String {
    let mut text = String::from(
        "| write | body | fields tracked | further watchers | ms of CPU: kube-apiserver | etcd | controller-manager | scheduler | ms until answered |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        let figure =
            |value: &dyn Fn(&Spent) -> f64| spread(&row.rounds.iter().map(value).collect::<Vec<_>>());
        let _ = write!(text, "| {} | {} | {} | {} |", row.what, row.body, row.tracking.word(), row.watchers);
        for at in 0..COMPONENTS.len() {
            let _ = write!(text, " {} |", figure(&|spent| spent.cpu[at] * 1_000.0 / objects as f64));
        }
        let _ = writeln!(text, " {} |", figure(&|spent| spent.latency));
    }
    text
}
