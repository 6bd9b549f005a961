//! A loop of cluster-autoscaler in which nothing is to be done, over mTLS, one call after another: at 1,000 Nodes in 20
//! sets, at 5,000 in 100 and at 10,000 in 200, without and with `limits.nodes` of their class. The Nodes are hollow ones that
//! live: the operator renews their Leases meanwhile.
//!
//! `cargo bench --bench autoscaler -- --sets 20,100`; figures go to standard output as a table.

// What cannot be measured is said by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../tests/disruptive/autoscaler/caller.rs"]
#[allow(dead_code)]
mod caller;
#[path = "../../tests/disruptive/autoscaler/channel.rs"]
#[allow(dead_code)]
mod channel;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use kube_node_api::{NodeClass, NodeSet};
use kube_node_controllers::autoscaler::proto::{
    GetAvailableGpuTypesRequest, GpuLabelRequest, NodeGroupAutoscalingOptions,
};
use serde_json::json;
use tonic::Code;

use crate::{
    caller::{Caller, external},
    channel::{Credentials, connect},
};
use kube_node_testing::{TestCluster, class_spec, create, eventually, test_target};

/// The cluster of this suite.
static CLUSTER: LazyLock<TestCluster> =
    LazyLock::new(|| TestCluster::shared(test_target!(), "bench-autoscaler", &["--autoscaler-server"]));
/// Nodes of a set.
const NODES: usize = 50;
/// How many sets, where nobody says otherwise.
const SETS: [usize; 3] = [20, 100, 200];
/// `limits.nodes` of the class: none, and one that is far away.
const LIMITS: [Option<usize>; 2] = [None, Some(100_000)];
/// How often a loop is measured.
const LOOPS: usize = 7;
/// How long the Nodes may take to come.
const PATIENCE: Duration = Duration::from_mins(10);

fn main() {
    // One call after another: a second thread would only have to be woken for each of them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let client = CLUSTER.client().await;
    let (classes, sets): (Api<NodeClass>, Api<NodeSet>) =
        (Api::all(client.clone()), Api::all(client.clone()));
    let nodes: Api<Node> = Api::all(client);
    create(&classes, json!({"metadata": {"name": "bench"}, "spec": class_spec()})).await.unwrap();
    let port = u16::try_from(CLUSTER.state()["ports"]["autoscaler"].as_u64().unwrap()).unwrap();
    let credentials = Credentials::of(&CLUSTER.dir.join("autoscaler-pki"));
    println!(
        "| nodes | sets | limits.nodes | calls | a loop, s (least, most) | p50, ms | p99, ms | longest, ms |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut made = 0;
    for count in counts() {
        for set in made..count {
            let spec = json!({"replicas": NODES, "nodeClassName": "bench",
                "autoscaling": {"minReplicas": 0, "maxReplicas": 2 * NODES}});
            create(&sets, json!({"metadata": {"name": format!("bench-{set:03}")}, "spec": spec}))
                .await
                .unwrap();
        }
        made = count;
        eventually("the Nodes are Ready", PATIENCE, async || {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let listed = sets.list(&ListParams::default()).await.ok()?;
            let ready = |set: &NodeSet| set.status.as_ref().map_or(0, |status| status.ready_replicas);
            let ready: i32 = listed.iter().map(ready).sum();
            (usize::try_from(ready).ok()? == count * NODES).then_some(())
        })
        .await;
        let selector = ListParams::default().labels("kube-node.io/nodeset");
        let listed = nodes.list(&selector).await.unwrap().items;
        let mut caller = Caller(connect(port, &credentials).await.unwrap());
        for limit in LIMITS {
            let change =
                Patch::Merge(json!({"spec": {"limits": limit.map(|nodes| json!({"nodes": nodes}))}}));
            classes.patch("bench", &PatchParams::default(), &change).await.unwrap();
            // Until its sets have been reconciled.
            tokio::time::sleep(Duration::from_secs(10)).await;
            quiet_loop(&mut caller, &listed, |_| {}).await;
            let (mut loops, mut calls, mut each) = (Vec::new(), 0, Vec::new());
            for _ in 0..LOOPS {
                let start = Instant::now();
                calls = quiet_loop(&mut caller, &listed, |took| each.push(took)).await;
                loops.push(start.elapsed());
            }
            loops.sort();
            each.sort();
            let at = |hundredths: usize| each[(each.len() - 1) * hundredths / 100].as_secs_f64() * 1_000.0;
            println!(
                "| {} | {count} | {} | {calls} | {:.2} ({:.2}, {:.2}) | {:.3} | {:.3} | {:.2} |",
                listed.len(),
                limit.map_or("none".to_owned(), |limit| limit.to_string()),
                loops[LOOPS / 2].as_secs_f64(),
                loops[0].as_secs_f64(),
                loops[LOOPS - 1].as_secs_f64(),
                at(50),
                at(99),
                at(100),
            );
        }
    }
}

/// The numbers of sets: those of `--sets`, else the usual ones.
fn counts() -> Vec<usize> {
    let arguments: Vec<String> = std::env::args().collect();
    let sets = arguments.iter().skip_while(|argument| *argument != "--sets").nth(1);
    sets.map_or_else(
        || SETS.to_vec(),
        |sets| sets.split(',').map(|count| count.parse().expect("--sets is written as 20,100")).collect(),
    )
}

/// The calls of a loop in which nothing is to be done, as cluster-autoscaler makes them over these Nodes; how many
/// they were. `took` is told of each.
async fn quiet_loop(caller: &mut Caller, nodes: &[Node], mut took: impl FnMut(Duration)) -> usize {
    let mut calls = 0;
    macro_rules! call {
        ($call:expr) => {{
            let start = Instant::now();
            let answer = $call;
            took(start.elapsed());
            calls += 1;
            answer
        }};
    }
    call!(caller.refresh().await).unwrap();
    let groups = call!(caller.groups().await).unwrap();
    for node in nodes {
        call!(caller.group_of(external(node)).await).unwrap();
    }
    for group in &groups {
        call!(caller.nodes(&group.id).await).unwrap();
        // The state of the cluster, its accepted ranges, upcoming nodes: each asks anew.
        for _ in 0..3 {
            call!(caller.target(&group.id).await).unwrap();
        }
        call!(caller.template(&group.id).await).unwrap();
    }
    // For the time a Node may take to start, to be unneeded, to be unready: twice a Node, and the rest of what a loop
    // asks of each.
    for node in nodes {
        let group = groups.iter().find(|group| {
            node.metadata.labels.as_ref().is_some_and(|labels| labels["kube-node.io/nodeset"] == group.id)
        });
        let id = group.map_or("", |group| group.id.as_str());
        for _ in 0..2 {
            let answer = call!(caller.options(id, NodeGroupAutoscalingOptions::default()).await);
            assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
        }
        for _ in 0..3 {
            call!(caller.target(id).await).unwrap();
        }
    }
    call!(caller.0.gpu_label(GpuLabelRequest {}).await).unwrap();
    call!(caller.0.get_available_gpu_types(GetAvailableGpuTypesRequest {}).await).unwrap();
    calls
}
