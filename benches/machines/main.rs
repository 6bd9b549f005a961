//! What one machine takes in memory that is a pod: our own image and upstream kubemark, side by side on one real node.
//!
//! `cargo bench --profile dist --bench machines`, as root, with the packages that tests/real-node/install.sh installs. The table goes to
//! standard output.

#[path = "../shared/mod.rs"]
mod shared;

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use kube_node_api::{NodeClass, NodeSet, names};
use local_cluster::images;
use serde_json::{Value, json};

use crate::shared::{Counter, KUBE_NODE, Memory, Plane, Process, median, spread};

/// Arguments after `cargo bench --bench machines --`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Machines of each image
    #[arg(long, default_value_t = 5)]
    machines: usize,
    /// How long they are left alone once all are Ready, in seconds; the kubelet looks every 10 to 20
    #[arg(long, default_value_t = 60)]
    settle: u64,
    /// Give up on machines that are not Ready after this many seconds
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// Another kube-node; without kube-node-machine of the same build beside it, machines run this one
    #[arg(long, default_value = KUBE_NODE)]
    program: PathBuf,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// What runs in the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Our own image: the whole machine.
    Own,
    /// kubemark.
    Upstream,
    /// What stands beside each kubemark.
    Proxy,
}

impl Part {
    const ALL: [Self; 3] = [Self::Own, Self::Upstream, Self::Proxy];

    /// Words on its command line, for a Node.
    fn words(self, node: &str) -> [String; 2] {
        match self {
            Self::Own => ["hollow-node".into(), format!("--node={node}")],
            Self::Upstream => ["--morph=kubelet".into(), format!("--name={node}")],
            Self::Proxy => ["kubemark-proxy".into(), format!("--node={node}")],
        }
    }

    /// Its container.
    fn container(self) -> &'static str {
        match self {
            Self::Own | Self::Upstream => "hollow-kubelet",
            Self::Proxy => "kubemark-proxy",
        }
    }
}

/// One program in one pod.
struct Measured {
    part: Part,
    process: Memory,
    /// What the kubelet says of its container, in MiB.
    working_set: f64,
    /// What the kubelet says of the whole pod, its sandbox included, in MiB.
    pod_working_set: f64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measured = runtime.block_on(measure(&arguments))?;
    println!("{}", table(&measured));
    Ok(())
}

async fn measure(arguments: &Arguments) -> anyhow::Result<Vec<Measured>> {
    let plane = Plane::start(&arguments.program, &["--real-node", "--kubemark"])?;
    let client = plane.client().await?;
    let counter = Counter::start(&plane).await?;
    create(&client, "own", json!({}), arguments.machines).await?;
    create(&client, "upstream", json!({"image": images::KUBEMARK}), arguments.machines).await?;
    // The real node counts, too.
    let wanted = 2 * arguments.machines + 1;
    let reached = counter.reach(wanted, Duration::from_secs(arguments.limit)).await;
    ensure!(reached.ready == wanted, "{} of {wanted} nodes are Ready", reached.ready);
    let lost = counter.lost();
    tokio::time::sleep(Duration::from_secs(arguments.settle)).await;
    ensure!(counter.lost() == lost, "a node turned not Ready meanwhile: the machine is too busy");

    let working_sets = working_sets(&client).await?;
    let pods: Api<Pod> = Api::namespaced(client, names::MACHINE_NAMESPACE);
    let mut measured = Vec::new();
    for pod in pods.list(&ListParams::default()).await? {
        let name = pod.metadata.name.context("a pod without a name")?;
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let node = annotations.get(names::ANNOTATION_NODE).context("a pod without a Node")?;
        let parts: &[Part] =
            if node.starts_with("own-") { &[Part::Own] } else { &[Part::Upstream, Part::Proxy] };
        for &part in parts {
            let process = Process::with_arguments(&part.words(node))?;
            let of = |container: &str| {
                let key = (name.clone(), container.to_owned());
                working_sets.get(&key).copied().with_context(|| {
                    format!("the kubelet knows no working set of {name} {container} yet: raise --settle")
                })
            };
            measured.push(Measured {
                part,
                process: process.memory()?,
                working_set: of(part.container())?,
                pod_working_set: of("")?,
            });
        }
    }
    Ok(measured)
}

/// A class and a set of it, by one name.
async fn create(client: &Client, name: &str, kubemark: Value, machines: usize) -> anyhow::Result<()> {
    let class = json!({
        "nodeController": "kubemark",
        "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
        "kubemark": kubemark,
    });
    let class = NodeClass::new(name, serde_json::from_value(class)?);
    Api::all(client.clone()).create(&PostParams::default(), &class).await?;
    let set = json!({"replicas": machines, "nodeClassName": name});
    let set = NodeSet::new(name, serde_json::from_value(set)?);
    Api::all(client.clone()).create(&PostParams::default(), &set).await?;
    Ok(())
}

/// What the real node's kubelet says, in MiB, by pod and container; the whole pod is the container without a name.
async fn working_sets(client: &Client) -> anyhow::Result<BTreeMap<(String, String), f64>> {
    let path = "/api/v1/nodes/real-node/proxy/stats/summary";
    let summary: Value = client.request(http::Request::get(path).body(Vec::new())?).await?;
    let mut found = BTreeMap::new();
    for pod in summary["pods"].as_array().context("the kubelet tells of no pods")? {
        let name = pod["podRef"]["name"].as_str().unwrap_or_default();
        let containers = pod["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
        for of in containers.iter().chain([pod]) {
            let container = of["name"].as_str().unwrap_or_default();
            if let Some(bytes) = of["memory"]["workingSetBytes"].as_f64() {
                found.insert((name.to_owned(), container.to_owned()), bytes / f64::from(1 << 20));
            }
        }
    }
    Ok(found)
}

/// What of a measurement a row shows, in MiB.
type Figure = fn(&Measured) -> f64;

/// A table in Markdown: medians, with the least and the greatest.
fn table(all: &[Measured]) -> String {
    let rows: [(&str, Figure); 5] = [
        ("VmRSS", |of| of.process.resident),
        ("of it anonymous", |of| of.process.anonymous),
        ("PSS", |of| of.process.proportional),
        ("working set of the container", |of| of.working_set),
        ("working set of the pod", |of| of.pod_working_set),
    ];
    let mut text = String::from(
        "| MiB a machine | own image | upstream kubemark | kubemark proxy beside it | own to upstream |\n| --- | --- | --- | --- | --- |",
    );
    for (name, figure) in rows {
        let [own, upstream, proxy] =
            Part::ALL.map(|part| all.iter().filter(|of| of.part == part).map(figure).collect::<Vec<f64>>());
        let ratio = match (median(&own), median(&upstream)) {
            (Some(own), Some(upstream)) => format!("1/{:.1}", upstream / own),
            _ => "–".to_owned(),
        };
        let [own, upstream, proxy] = [own, upstream, proxy].map(|values| spread(&values));
        let _ = write!(text, "\n| {name} | {own} | {upstream} | {proxy} | {ratio} |");
    }
    text
}
