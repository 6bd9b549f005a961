//! Tries the hollow kubelet on any cluster: creates Nodes, runs their machines, and says when all are Ready.
//!
//! `KUBECONFIG=… cargo run --release --example hollow -- --nodes 1000`. Ctrl-C ends the machines; the Nodes stay, and a
//! second run takes them up again.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use hollow_kubelet::{Hollow, MachineSpec, RESTART};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use kube::{Api, Client, Config, api::PostParams, runtime::watcher};
use kube_ext::telemetry::{self, LogFormat};
use kube_node_api::{FailureMode, Failures, GoDuration, Resources, machine_files::MachineSettings, names};
use kube_node_cache::{Cache, NodeView, PodView};
use prometheus::{Encoder as _, Registry, TextEncoder};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Requests under way at once while Nodes are created.
const CREATORS: usize = 32;

/// Create hollow Nodes and run their machines.
#[derive(Parser)]
struct Args {
    /// How many Nodes there are to be
    #[arg(long, default_value_t = 10)]
    nodes: usize,
    /// Prefix of their names
    #[arg(long, default_value = "hollow")]
    prefix: String,
    /// Fail periodically: unhealthy for this long, then healthy for as long
    #[arg(long)]
    fail_every: Option<GoDuration>,
    /// Fall silent instead of reporting Ready=False
    #[arg(long)]
    silent: bool,
    /// Stop after this time and print the metrics
    #[arg(long)]
    run_for: Option<GoDuration>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    telemetry::start(LogFormat::Text);
    let args = Args::parse();
    let mut config = Config::infer().await.context("cannot find a cluster: set KUBECONFIG")?;
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let (nodes, pods) = (Arc::new(Cache::<NodeView>::default()), Arc::new(Cache::<PodView>::default()));
    let registry = Registry::new();
    let (hollow, kubelets) = Hollow::new(client.clone(), &nodes, &pods, RESTART, &registry)?;
    let shutdown = CancellationToken::new();
    let ours = watcher::Config::default().labels(&format!("{}=hollow", names::LABEL_NODE_CONTROLLER));
    let bound = watcher::Config::default().fields("spec.nodeName!=");
    tokio::spawn(kube_node_cache::run_protobuf(client.clone(), ours, Arc::clone(&nodes)));
    tokio::spawn(kube_node_cache::run_protobuf(client.clone(), bound, Arc::clone(&pods)));
    let running = tokio::spawn(kubelets.run(shutdown.clone()));
    while !(nodes.in_sync() && pods.in_sync()) {
        sleep(Duration::from_millis(10)).await;
    }

    let begin = Instant::now();
    create(&client, &args, &nodes).await?;
    println!("{} Nodes exist after {:.1?}", args.nodes, begin.elapsed());
    let begin = Instant::now();
    // The watch may be behind the answers.
    while nodes.len() < args.nodes {
        sleep(Duration::from_millis(10)).await;
    }
    for node in nodes.all() {
        hollow.create(machine(&node, &args), None);
    }
    let (mut half, mut all) = (None, false);
    let stop = async {
        match args.run_for {
            Some(time) => sleep(time.0).await,
            None => std::future::pending().await,
        }
    };
    let watch = async {
        loop {
            sleep(Duration::from_millis(50)).await;
            let ready = nodes.all().iter().filter(|node| node.is_ready()).count();
            if ready * 2 >= args.nodes && half.is_none() {
                half = Some(begin.elapsed());
            }
            if all != (ready >= args.nodes) {
                all = !all;
                println!("{:.1?}: {ready} of {} Ready (half after {half:.1?})", begin.elapsed(), args.nodes);
            }
        }
    };
    tokio::select! {
        () = watch => {}
        () = stop => {}
        result = tokio::signal::ctrl_c() => result?,
    }
    shutdown.cancel();
    running.await?;
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}

/// Creates the Nodes that are missing.
async fn create(client: &Client, args: &Args, nodes: &Cache<NodeView>) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    let missing =
        (0..args.nodes).map(|n| format!("{}-{n}", args.prefix)).filter(|name| nodes.get(name).is_none());
    let names: Vec<String> = missing.collect();
    stream::iter(names)
        .map(|name| {
            let api = &api;
            async move {
                let node: Node = serde_json::from_value(json!({
                    "metadata": {
                        "name": name,
                        "labels": { names::LABEL_NODE_CONTROLLER: "hollow", "kubernetes.io/hostname": name,
                                    "kubernetes.io/os": "linux" },
                    },
                    "spec": { "providerID": format!("hollow://{name}") },
                    "status": { "conditions": [
                        { "type": "Ready", "status": "False", "reason": "Provisioning", "message": "no machine yet" },
                    ] },
                }))?;
                api.create(&PostParams::default(), &node).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(CREATORS)
        .try_collect::<()>()
        .await
}

fn machine(node: &NodeView, args: &Args) -> MachineSpec {
    let amounts = |rows: [(&str, &str); 3]| -> Resources {
        rows.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into()
    };
    let failures = args.fail_every.map(|time| Failures {
        unhealthy_duration: time,
        healthy_duration: Some(time),
        turn_unhealthy_periodically: Some(true),
        mode: args.silent.then_some(FailureMode::Silent),
        ..Failures::default()
    });
    MachineSpec {
        node: Arc::clone(&node.name),
        uid: Arc::clone(&node.uid),
        capacity: amounts([("cpu", "4"), ("memory", "16Gi"), ("pods", "110")]),
        allocatable: amounts([("cpu", "3900m"), ("memory", "15Gi"), ("pods", "110")]),
        kubelet_version: "v1.36.3".to_owned(),
        container_runtime: "containerd://2.1.0".to_owned(),
        ip: None,
        settings: MachineSettings { failures, ..MachineSettings::default() },
    }
}
