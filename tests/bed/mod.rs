//! The test bed: one real control plane with the operator for all tests of a process, started by the command that
//! users start theirs with. It ends by itself when the process does.

// Each test binary uses a part of it.
#![allow(dead_code)]

pub mod audit;
pub mod containers;
pub mod diary;
pub mod disruptor;
pub mod further;
pub mod go_program;
pub mod http;
pub mod operators;
mod workload;

use std::{
    fmt::Debug,
    path::PathBuf,
    process::{Command, Output},
    sync::OnceLock,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
    config::{KubeConfigOptions, Kubeconfig},
};
use kube_node_api::{NodeClass, NodeSet};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

/// Enough for anything that is going to happen at all, on a slow machine too.
pub const LONG: Duration = Duration::from_secs(90);

/// A running cluster.
pub struct Bed {
    pub dir: PathBuf,
}

/// The cluster of the suite that this module is part of, started with the suite's arguments `UP`.
pub fn bed() -> &'static Bed {
    static BED: OnceLock<Bed> = OnceLock::new();
    BED.get_or_init(|| {
        // Suites of one binary have clusters of their own.
        let suite = module_path!().rsplit("::").nth(1).unwrap_or("tests");
        let name = format!("bed-{suite}-{}", std::process::id());
        let bed = Bed { dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name) };
        bed.up(super::UP);
        bed
    })
}

impl Bed {
    /// Starts it, without nodes, until this process ends.
    pub fn up(&self, more: &[&str]) {
        let parent = std::process::id().to_string();
        let json = "operator=--log-format=json";
        let own = ["up", "--detach", "--nodes", "0", "--with-parent", &parent, "--component-arg", json];
        let audit = audit::arguments(&self.dir);
        let audit: Vec<&str> = audit.iter().map(String::as_str).collect();
        let up = self.kube_node(&[&own, &audit[..], more].concat());
        assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
    }

    /// Stops it; what it holds stays.
    pub fn down(&self) {
        let down = self.kube_node(&["down"]);
        assert!(down.status.success(), "down failed:\n{}", String::from_utf8_lossy(&down.stderr));
    }

    /// Runs `kube-node COMMAND --data-dir DIR ARGS`.
    pub fn kube_node(&self, args: &[&str]) -> Output {
        let (command, rest) = args.split_first().expect("a command");
        Command::new(env!("CARGO_BIN_EXE_kube-node"))
            .arg(command)
            .arg("--data-dir")
            .arg(&self.dir)
            .args(rest)
            .output()
            .expect("kube-node runs")
    }

    /// Runs kubectl; its standard output.
    pub fn kubectl(&self, args: &[&str]) -> String {
        let output = self.try_kubectl(args);
        assert!(output.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs kubectl, which may fail.
    pub fn try_kubectl(&self, args: &[&str]) -> Output {
        self.kube_node(&[&["kubectl", "--"], args].concat())
    }

    /// A client of the admin. Each test has a runtime of its own, and a client lives in one.
    pub async fn client(&self) -> Client {
        self.client_of(None, &[]).await
    }

    /// A client that acts as `user` of these groups.
    pub async fn client_as(&self, user: &str, groups: &[&str]) -> Client {
        self.client_of(Some(user.to_owned()), groups).await
    }

    async fn client_of(&self, user: Option<String>, groups: &[&str]) -> Client {
        let kubeconfig = Kubeconfig::read_from(self.dir.join("kubeconfig")).expect("a kubeconfig");
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        config.auth_info.impersonate = user;
        config.auth_info.impersonate_groups =
            (!groups.is_empty()).then(|| groups.iter().map(|&group| group.to_owned()).collect());
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }

    /// What `cluster.json` says.
    pub fn state(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.dir.join("cluster.json")).unwrap()).unwrap()
    }

    /// The process of a component, where there is one.
    pub fn pid(&self, component: &str) -> Option<Pid> {
        let pid = self.state()["components"][component]["pid"].as_i64()?;
        Some(Pid::from_raw(i32::try_from(pid).unwrap()))
    }

    /// SIGKILL; whether there was a process to kill.
    pub fn kill(&self, component: &str) -> bool {
        self.pid(component).is_some_and(|pid| kill(pid, Signal::SIGKILL).is_ok())
    }

    /// The operator's metrics.
    pub fn metrics(&self) -> String {
        let port = self.state()["ports"]["operator"].as_u64().unwrap();
        http::get(format!("http://127.0.0.1:{port}/metrics")).unwrap_or_default()
    }
}

/// Asks until there is an answer.
pub async fn eventually<T, F: AsyncFnMut() -> Option<T>>(what: &str, limit: Duration, mut ask: F) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Whether something holds for as long as this.
pub async fn always<F: AsyncFnMut() -> bool>(what: &str, span: Duration, mut holds: F) {
    let start = Instant::now();
    while start.elapsed() < span {
        assert!(holds().await, "{what}: no more after {:?}", start.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A class and a set of one name, both of one test.
pub struct Own {
    pub name: String,
    pub client: Client,
    pub sets: Api<NodeSet>,
    pub classes: Api<NodeClass>,
    pub nodes: Api<Node>,
    pub pods: Api<Pod>,
}

/// The class that tests use unless they want another one.
pub fn class_spec() -> Value {
    json!({
        "nodeController": "hollow",
        "machineType": "test",
        "capacity": {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"},
        "reserved": {"cpu": "100m", "memory": "512Mi"},
    })
}

impl Own {
    /// A class with a spec and a set of it.
    pub async fn new(name: &str, replicas: i32, class: Value) -> Self {
        let own = Self::without_set(name, class).await;
        own.create_set(replicas, json!({})).await;
        own
    }

    /// A Node that stays Ready while a test waits for another one to become Unknown. Without any the controller-manager
    /// thinks itself cut off, and each time it ceases to, the grace of all Nodes begins anew.
    pub async fn anchor(name: &str) -> Self {
        let own = Self::new(name, 1, class_spec()).await;
        own.settled(1).await;
        own
    }

    /// A class alone.
    pub async fn without_set(name: &str, class: Value) -> Self {
        let own = Self::nothing(name).await;
        create(&own.classes, json!({"metadata": {"name": name}, "spec": class})).await.unwrap();
        own
    }

    /// Only the names.
    pub async fn nothing(name: &str) -> Self {
        Self::of(bed().client().await, name)
    }

    /// Only the names, in the cluster that `client` leads to.
    pub fn of(client: Client, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            sets: Api::all(client.clone()),
            classes: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
            pods: Api::default_namespaced(client.clone()),
            client,
        }
    }

    /// The set; `more` is merged into its spec.
    pub async fn create_set(&self, replicas: i32, more: Value) {
        let mut spec = json!({"replicas": replicas, "nodeClassName": self.name});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        create(&self.sets, json!({"metadata": {"name": self.name}, "spec": spec})).await.unwrap();
    }

    pub async fn patch_set(&self, change: Value) {
        self.sets.patch(&self.name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    pub async fn patch_class(&self, change: Value) {
        self.classes.patch(&self.name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    /// The Nodes that carry the set's label.
    pub async fn my_nodes(&self) -> Vec<Node> {
        let selector = ListParams::default().labels(&format!("kube-node.io/nodeset={}", self.name));
        self.nodes.list(&selector).await.unwrap().items
    }

    /// Waits until exactly so many Nodes are there, all Ready and open to pods, and the set says so.
    pub async fn settled(&self, count: usize) -> Vec<Node> {
        let nodes = eventually(&format!("{count} Ready nodes of {}", self.name), LONG, async || {
            let nodes = self.my_nodes().await;
            (nodes.len() == count && nodes.iter().all(|node| is_ready(node) && taints_of_ours(node) == 0))
                .then_some(nodes)
        })
        .await;
        eventually(&format!("status of {}", self.name), LONG, async || {
            let status = self.sets.get(&self.name).await.unwrap().status?;
            (usize::try_from(status.ready_replicas).ok()? == count
                && status.replicas == status.ready_replicas)
                .then_some(())
        })
        .await;
        nodes
    }

    /// The reason and message of a condition of the set with this status.
    pub async fn set_says(&self, r#type: &str, status: &str, reason: &str) -> String {
        eventually(&format!("{}: {type} {status} {reason}", self.name), LONG, async || {
            let conditions = self.sets.get_opt(&self.name).await.unwrap()?.status?.conditions;
            conditions
                .into_iter()
                .find(|c| c.type_ == r#type && c.status == status && c.reason == reason)
                .map(|condition| condition.message)
        })
        .await
    }

    /// Deletes set and class, and waits until everything is gone.
    pub async fn clean_up(self) {
        delete(&self.sets, &self.name, PropagationPolicy::Background).await;
        delete(&self.classes, &self.name, PropagationPolicy::Background).await;
        eventually(&format!("{} is gone", self.name), LONG, async || {
            let gone = self.my_nodes().await.is_empty()
                && self.sets.get_opt(&self.name).await.unwrap().is_none()
                && self.classes.get_opt(&self.name).await.unwrap().is_none();
            gone.then_some(())
        })
        .await;
    }

    /// What an event with this reason says of an object of this name, in any namespace. Unlike a condition, which the
    /// next step writes over at once, it stays to be read.
    pub async fn event_of(&self, object: &str, reason: &str) -> Option<String> {
        let of_it = format!("involvedObject.name={object},reason={reason}");
        let events: Api<Event> = Api::all(self.client.clone());
        events.list(&ListParams::default().fields(&of_it)).await.unwrap().items.pop()?.message
    }

    /// A pod bound to a Node directly, as a DaemonSet's old controller did; `more` is merged into its spec.
    pub async fn pod_on(&self, node: &str, name: &str, annotations: Value, more: Value) -> Pod {
        let mut spec = json!({
            "nodeName": node,
            "containers": [{"name": "main", "image": "example.com/main:1"}],
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 30,
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let metadata = json!({"name": name, "annotations": annotations, "labels": {"app": name}});
        create(&self.pods, json!({"metadata": metadata, "spec": spec})).await.unwrap()
    }
}

/// Creates an object written as JSON.
pub async fn create<K>(api: &Api<K>, object: Value) -> Result<K, kube::Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let mut object = object;
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    let request = kube::core::Request::new(api.resource_url())
        .create(&PostParams::default(), serde_json::to_vec(&object).unwrap())
        .unwrap();
    api.clone().into_client().request(request).await
}

/// Deletes an object; one that is gone is fine.
pub async fn delete<K>(api: &Api<K>, name: &str, cascade: PropagationPolicy)
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + serde::de::DeserializeOwned,
{
    let params = DeleteParams { propagation_policy: Some(cascade), ..DeleteParams::default() };
    match api.delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => drop(other.unwrap()),
    }
}

pub fn is_ready(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|ready| ready.status == "True")
}

pub fn condition<'a>(node: &'a Node, r#type: &str) -> Option<&'a k8s_openapi::api::core::v1::NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == r#type)
}

pub fn name(node: &Node) -> String {
    node.metadata.name.clone().unwrap()
}

/// Keys and effects of the Node's taints.
pub fn taints(node: &Node) -> Vec<(String, String)> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    taints.into_iter().map(|taint| (taint.key, taint.effect)).collect()
}

fn taints_of_ours(node: &Node) -> usize {
    taints(node).iter().filter(|(key, _)| key.starts_with("kube-node.io/")).count()
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}
