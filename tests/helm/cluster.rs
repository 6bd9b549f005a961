//! The cluster of this test binary, what helm does to it, and what is alive there.

use std::{fs, net::SocketAddr, path::PathBuf, process::Output, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};
use kube_node_api::NodeSet;
use kube_node_controllers::autoscaler::proto::RefreshRequest;
use local_cluster::pki::Identity;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use super::{
    CLUSTER,
    channel::{Credentials, connect_to},
    program::{copy_of_chart, said, try_helm},
};
use kube_node_testing::{
    Fixture, LONG, class_spec, condition, create, eventually, http, name, real_node::said_of_pods,
};

/// Where a release is.
pub const NAMESPACE: &str = "kube-node-system";
/// How the autoscaler server is called.
pub const SERVER: &str = "kube-node-autoscaler.kube-node-system.svc";
/// A Secret that a running pod mounts is looked at by its kubelet every minute or two.
const SECRET_LIMIT: Duration = Duration::from_mins(4);
/// How many operators there are.
const REPLICAS: usize = 2;

/// Runs helm on the cluster, in the release's namespace.
pub fn try_helm_here(args: &[&str]) -> Output {
    try_helm(&CLUSTER.dir.join("kubeconfig"), &[args, &["--namespace", NAMESPACE]].concat())
}

pub fn helm(args: &[&str]) -> String {
    let output = try_helm_here(args);
    assert!(output.status.success(), "helm {args:?}: {}\n{}", said(&output), pods_said());
    said(&output)
}

/// What stands in the way, for whoever reads a failed test.
pub fn pods_said() -> String {
    let pods = said_of_pods(&CLUSTER, NAMESPACE);
    let logs =
        CLUSTER.try_kubectl(&["-n", NAMESPACE, "logs", "--prefix", "-l", "app.kubernetes.io/name=kube-node"]);
    pods + &said(&logs)
}

/// Installs or upgrades, with values of this step alone, and waits until the operator is Ready and the jobs are done.
pub fn upgrade(chart: &str, set: &[&str]) -> String {
    let mut args = vec!["upgrade", "--install", "kube-node", chart, "--create-namespace", "--reset-values"];
    args.extend(["--wait", "--wait-for-jobs", "--timeout", "4m"]);
    let replicas = format!("replicas={REPLICAS}");
    for value in [&[replicas.as_str()], set].concat() {
        args.extend(["--set", value]);
    }
    helm(&args)
}

pub fn uninstall() -> Output {
    try_helm_here(&["uninstall", "kube-node", "--wait", "--timeout", "4m"])
}

/// The operators that are not leaving, once there are as many as are wanted.
pub async fn operators(client: &Client) -> Vec<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let of_operator = ListParams::default().labels("app.kubernetes.io/component=operator");
    eventually("the operator's pods", LONG, async || {
        let mut pods = pods.list(&of_operator).await.unwrap().items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        (pods.len() == REPLICAS).then_some(pods)
    })
    .await
}

/// The one operator that leads carries so many machines. It is asked at its own address.
pub async fn machines_carried(client: &Client, count: usize) {
    eventually(&format!("{count} machines are carried"), LONG, async || {
        let mut carried = Vec::new();
        for pod in operators(client).await {
            let url = format!("http://{}:8080/metrics", pod.status?.pod_ip?);
            let metrics = http::get(&url).unwrap_or_default();
            let machines = metrics.lines().find_map(|line| line.strip_prefix("kube_node_hollow_machines "));
            carried.extend(machines.and_then(|machines| machines.parse::<usize>().ok()));
        }
        // One that stands by has no such metric.
        (carried == [count]).then_some(())
    })
    .await;
}

/// Who leads, by the Lease, once it is another one than `before`: who leaves may have it for a moment still.
pub async fn leader(client: &Client, before: &str) -> String {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    eventually(&format!("another one leads than {before}"), LONG, async || {
        let holder = leases.get("kube-node-operator").await.ok()?.spec?.holder_identity?;
        (!holder.is_empty() && holder != before).then_some(holder)
    })
    .await
}

/// SIGKILL to the operator in the pod of this leader. Its kubelet is this machine's, and so are its processes.
pub async fn crash(client: &Client, leader: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pod = pods.get(leader.split('_').next().unwrap()).await.unwrap().uid().unwrap();
    let operator = fs::read_dir("/proc").unwrap().filter_map(Result::ok).find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).ok();
        let is_it = read("cgroup")?.contains(&pod) && read("cmdline")?.contains("operator\0");
        is_it.then_some(Pid::from_raw(pid))
    });
    kill(operator.expect("its process"), Signal::SIGKILL).unwrap();
}

/// A Node that must be the same later: its name, its UID, and since when it is Ready without a break.
type Living = (String, String, Timestamp);

/// The sets that live through all steps.
pub struct Fleet {
    /// Machines in the operator's process.
    pub hollow: Fixture,
    /// Kubemark machines.
    pub pods: Fixture,
    nodes: Vec<Living>,
}

impl Fleet {
    /// Asks for ten hollow Nodes, and two whose machines are pods.
    pub async fn new(client: &Client) -> Self {
        let hollow = Fixture::of(client.clone(), "helm-hollow");
        let pods = Fixture::of(client.clone(), "helm-pods");
        for (own, provider, replicas) in [(&hollow, "hollow", 10), (&pods, "kubemark", 2)] {
            let mut class = class_spec();
            class["nodeController"] = json!(provider);
            // Nobody is to end up there; and it is no taint of ours, which has to go.
            class["template"] = json!({"taints": [{"key": "example.com/hollow", "effect": "NoSchedule"}]});
            create(&own.classes, json!({"metadata": {"name": own.name}, "spec": class})).await.unwrap();
            own.create_set(replicas, json!({})).await;
        }
        Self { hollow, pods, nodes: Vec::new() }
    }

    /// From now on these Nodes are to live.
    pub async fn remember(&mut self) {
        self.nodes = self.living().await;
    }

    async fn living(&self) -> Vec<Living> {
        let nodes = [self.hollow.my_nodes().await, self.pods.my_nodes().await].concat();
        let living = nodes.iter().map(|node| {
            let ready = condition(node, "Ready").expect("a condition");
            (name(node), node.uid().unwrap(), ready.last_transition_time.as_ref().unwrap().0)
        });
        let mut living: Vec<Living> = living.collect();
        living.sort();
        living
    }

    /// All Nodes are the same, were Ready all the time, and are so under the operator that is there now.
    pub async fn is_alive(&self, step: &str) {
        let pods = self.pods.my_nodes().await.len();
        self.hollow.settled(self.nodes.len() - pods).await;
        self.pods.settled(pods).await;
        assert_eq!(self.living().await, self.nodes, "{step}");
        for pod in operators(&self.hollow.client).await {
            let status = &pod.status.unwrap().container_statuses.unwrap()[0];
            assert_eq!(status.restart_count, 0, "{step}: {}", pods_said());
        }
    }
}

/// Whether the definitions are those of this version, once they say so: they are served a moment after they are written.
pub async fn definitions_are_new(client: &Client, new: bool) {
    let sets: Api<NodeSet> = Api::all(client.clone());
    let spec = json!({"nodeClassName": "a", "minReadyTime": "5s", "progressDeadline": "1s"});
    let set: NodeSet = serde_json::from_value(json!({"metadata": {"name": "rule"}, "spec": spec})).unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    eventually(&format!("definitions of this version: {new}"), LONG, async || {
        let refused = match sets.create(&dry_run, &set).await {
            Ok(_) => false,
            Err(error) => error.to_string().contains(NEW_RULE),
        };
        (refused == new).then_some(())
    })
    .await;
}

/// A call of cluster-autoscaler with these credentials succeeds, at the first address of the Service that answers.
pub async fn is_served(client: &Client, credentials: &Credentials) {
    eventually("cluster-autoscaler is served", SECRET_LIMIT, async || {
        for pod in operators(client).await {
            let address = SocketAddr::new(pod.status?.pod_ip?.parse().unwrap(), 8086);
            if let Ok(mut caller) = connect_to(address, SERVER, credentials).await {
                return caller.refresh(RefreshRequest {}).await.ok();
            }
        }
        None
    })
    .await;
}

pub fn credentials(ca: &str, own: &Identity) -> Credentials {
    Credentials { ca: ca.into(), own: Some((own.certificate.clone().into(), own.key.clone().into())) }
}

/// A rule of this version's NodeSets that the one before has not.
const NEW_RULE: &str = "progressDeadline must be longer than minReadyTime";

/// What stands for the version before this one, packed, as long as there is none: this chart under another number, with a
/// definition that lacks a rule. The program is this one: it would not work with definitions that lack a field.
pub fn earlier_version() -> PathBuf {
    let copy = copy_of_chart("earlier", "0.0.9", |chart| {
        let path = chart.join("files/crds/nodesets.yaml");
        let text = fs::read_to_string(&path).unwrap();
        let rule = text.find(NEW_RULE).expect("the rule is there");
        let begin = text[..rule].rfind("            x-kubernetes-validations:").unwrap();
        let end = rule + text[rule..].find("          status:").unwrap();
        fs::write(path, [&text[..begin], &text[end..]].concat()).unwrap();
    });
    let dir = copy.parent().unwrap().to_owned();
    helm(&["package", copy.to_str().unwrap(), "--destination", dir.to_str().unwrap()]);
    dir.join("kube-node-0.0.9.tgz")
}
