//! Pod CIDRs at birth: no two Nodes have a part of the same one, whoever gave it and whatever happens to the operator.

use std::{collections::HashSet, time::Duration};

use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PropagationPolicy};
use nix::sys::signal::Signal;
use rand::RngExt;
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{
    Fixture, LONG, TemporaryCluster, always, class_spec, create, delete, eventually, name,
    operator::{OperatorIdentity, OperatorProcess},
    phase, test_target,
};

fn cidr(node: &Node) -> Ipv4Net {
    let spec = node.spec.as_ref().unwrap();
    let cidr = spec.pod_cidr.clone().unwrap();
    assert_eq!(spec.pod_cidrs.as_deref(), Some(&[cidr.clone()][..]));
    cidr.parse().unwrap()
}

/// All of these Nodes', each of them once.
fn cidrs(nodes: &[Node], range: &str) -> HashSet<Ipv4Net> {
    let range: Ipv4Net = range.parse().unwrap();
    let cidrs: HashSet<Ipv4Net> = nodes.iter().map(cidr).collect();
    assert_eq!(cidrs.len(), nodes.len(), "one is given twice");
    assert!(cidrs.iter().all(|cidr| range.contains(cidr) && cidr.prefix_len() == 24), "{cidrs:?}");
    cidrs
}

#[tokio::test]
async fn pods_have_addresses_of_their_nodes() {
    let own = Fixture::new(&CLUSTER, "cidr-pods", 3, class_spec()).await;
    let nodes = own.settled(3).await;
    cidrs(&nodes, "10.128.0.0/9");
    let mut ips = HashSet::new();
    for node in &nodes {
        for number in 0..3 {
            let pod = format!("{}-{number}", name(node));
            own.pod_on(&name(node), &pod, json!({}), json!({})).await;
            let ip = eventually(&format!("{pod} runs"), LONG, async || {
                let pod = own.pods.get(&pod).await.unwrap();
                (phase(&pod) == "Running").then(|| pod.status?.pod_ip).flatten()
            })
            .await;
            assert!(cidr(node).contains(&ip.parse::<std::net::Ipv4Addr>().unwrap()), "{ip}");
            ips.insert(ip);
        }
    }
    assert_eq!(ips.len(), 9);
    own.clean_up().await;
}

#[tokio::test]
async fn a_small_range_runs_out_and_a_larger_one_outlives_its_operators() {
    let cluster = TemporaryCluster::folder(test_target!(), "pod-cidrs");
    cluster.up(&["--without-operator"]);
    let own = Fixture::of(cluster.client().await, "cidrs");
    create(&own.classes, json!({"metadata": {"name": "cidrs"}, "spec": class_spec()})).await.unwrap();
    let start = |name: &str, range: &str| {
        let range = format!("--cluster-cidr={range}");
        OperatorProcess::start(
            &cluster,
            name,
            OperatorIdentity::ServiceAccounts,
            &["--leader-elect=false", &range],
        )
    };

    // Of four blocks somebody else's Node has one, and keeps it until it is gone.
    let by_hand = json!({"metadata": {"name": "by-hand", "finalizers": ["example.com/hold"]},
        "spec": {"podCIDR": "10.1.2.0/24"}});
    create(&own.nodes, by_hand).await.unwrap();
    let operator = start("small", "10.1.0.0/22");
    own.create_set(4, json!({})).await;
    let said = own.set_says("Degraded", "True", "CIDRNotAvailable").await;
    assert_eq!(
        said,
        "all 4 pod CIDRs of 10.1.0.0/22 (/24 a Node) are taken: give the operator a larger --cluster-cidr, or delete Nodes"
    );
    eventually("an event says so", LONG, async || own.event_of("cidrs", "CIDRNotAvailable").await).await;
    let metric = |name: &str| operator.metric(name).unwrap();
    assert!(metric("kube_node_node_creations_total{result=\"CIDRNotAvailable\"}") > 0);
    let counts =
        ["taken", "free", "shared"].map(|state| metric(&format!("kube_node_pod_cidrs{{state=\"{state}\"}}")));
    assert_eq!(counts, [4, 0, 0]);
    let held: Ipv4Net = "10.1.2.0/24".parse().unwrap();
    delete(&own.nodes, "by-hand", PropagationPolicy::Background).await;
    always("its block is taken", Duration::from_secs(3), async || {
        let nodes = own.my_nodes().await;
        nodes.len() == 3 && !cidrs(&nodes, "10.1.0.0/22").contains(&held)
    })
    .await;
    let free = json!({"metadata": {"finalizers": null}});
    own.nodes.patch("by-hand", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    let nodes = own.settled(4).await;
    assert!(cidrs(&nodes, "10.1.0.0/22").contains(&held));
    own.set_says("Degraded", "False", "AsExpected").await;

    // A larger range lets the set grow, and no operator gives what one before it gave.
    let mut operator = operator;
    for (crash, replicas) in [70, 140, 200].into_iter().enumerate() {
        operator.signal(Signal::SIGKILL);
        operator.ends().await;
        operator = start(&format!("large-{crash}"), "10.1.0.0/16");
        own.patch_set(json!({"spec": {"replicas": replicas}})).await;
        let before = own.my_nodes().await.len();
        eventually("it makes Nodes", LONG, async || (own.my_nodes().await.len() > before).then_some(()))
            .await;
        let moment = rand::rng().random_range(0..400);
        println!("crash {crash} {moment} ms later");
        tokio::time::sleep(Duration::from_millis(moment)).await;
    }
    let nodes = own.settled(200).await;
    cidrs(&nodes, "10.1.0.0/16");
    own.clean_up().await;
}
