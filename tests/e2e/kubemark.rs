//! An upstream kubemark of the pinned Kubernetes and its guard, as processes of this machine: what a machine's pod holds.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::PropagationPolicy, runtime::watcher};
use kube_node::cluster::binaries::Binaries;
use serde_json::{Value, json};

use crate::{
    bed::{LONG, bed, create, delete, eventually, is_ready},
    disruptor::Subject,
};

/// A machine that is not one of the bed's operator: it was made by hand.
pub struct Kubemark {
    pub node: String,
    pub nodes: Api<Node>,
    pub client: Client,
    pub dir: PathBuf,
    /// The guard's port.
    pub port: u16,
    kubelet_port: u16,
    pub guard: Process,
    pub kubelet: Process,
}

/// A process that ends with its owner.
pub struct Process(Child);

impl Process {
    fn start(command: &mut Command, log: &Path) -> Self {
        let log = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let command = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self(command.spawn().unwrap())
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// The exit code, once it has ended by itself.
    pub fn code(&mut self) -> Option<i32> {
        self.0.try_wait().unwrap().map(|status| status.code().expect("nobody killed it"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What a guard is told of its machine.
pub fn machine(node: &Node) -> Value {
    json!({
        "uid": node.metadata.uid,
        "containerRuntime": "containerd://2.1.0",
        "allocatable": {"cpu": "3900m", "memory": "15Gi"},
    })
}

impl Kubemark {
    /// The Node as an operator would make it, and the folder of its machine; no process yet.
    pub async fn prepared(node: &str, failures: &Value) -> (Node, PathBuf) {
        let nodes: Api<Node> = Api::all(bed().client().await);
        let made = create(
            &nodes,
            json!({
                "metadata": {"name": node, "labels": {"kube-node.io/provider": "kubemark"}},
                "spec": {"providerID": format!("kubemark://{node}")},
                "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Provisioning",
                    "message": "", "lastTransitionTime": jiff::Timestamp::now()}]},
            }),
        )
        .await
        .unwrap();
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{node}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("tmp")).unwrap();
        fs::write(dir.join("machine.json"), machine(&made).to_string()).unwrap();
        write_settings(&dir, failures);
        // The machine's identity: Node authorization and NodeRestriction hold for it.
        let admin = fs::read_to_string(bed().dir.join("kubeconfig")).unwrap();
        let who = format!(
            "as: system:node:{node}\n    as-groups: [system:nodes, system:authenticated]\n    client-key-data:"
        );
        fs::write(dir.join("identity"), admin.replace("client-key-data:", &who)).unwrap();
        (made, dir)
    }

    /// Starts the guard of a machine.
    pub fn guard(node: &str, dir: &Path, port: u16) -> Process {
        Process::start(
            Command::new(env!("CARGO_BIN_EXE_kube-node"))
                .args(["guard", "--node", node, "--listen", &format!("127.0.0.1:{port}")])
                .arg("--machine-dir")
                .arg(dir)
                .arg("--kubeconfig")
                .arg(dir.join("identity")),
            &dir.join("guard.log"),
        )
    }

    /// Starts its kubelet.
    pub fn kubelet(node: &str, dir: &Path, kubelet_port: u16) -> Process {
        let program = Binaries::cache_dir().unwrap().join("kubemark");
        assert!(program.exists(), "{} is not built", program.display());
        Process::start(
            Command::new(program)
                .args(["--morph=kubelet", "--kube-api-content-type=application/json"])
                .args(["--use-host-image-service=false", "--kubelet-read-only-port=0"])
                .arg("--extended-resources=cpu=4,memory=16Gi,ephemeral-storage=100Gi")
                .arg(format!("--name={node}"))
                .arg(format!("--kubelet-port={kubelet_port}"))
                .arg(format!("--kubeconfig={}", dir.join("kubemark").display()))
                .arg(format!("--cert-dir={}", dir.join("tmp").display()))
                .env("TMPDIR", dir.join("tmp")),
            &dir.join("kubemark.log"),
        )
    }

    pub fn start_guard(&mut self) {
        self.guard = Self::guard(&self.node, &self.dir, self.port);
    }

    pub fn start_kubelet(&mut self) {
        self.kubelet = Self::kubelet(&self.node, &self.dir, self.kubelet_port);
    }

    pub async fn ready(&self) -> Node {
        eventually(&format!("{} is Ready", self.node), LONG, async || {
            Some(self.nodes.get(&self.node).await.unwrap()).filter(is_ready)
        })
        .await
    }

    /// The Node as it is.
    pub async fn now(&self) -> Node {
        self.nodes.get(&self.node).await.unwrap()
    }

    /// Asks the guard, as whoever is inside the pod may.
    pub fn curl(&self, args: &[&str], path: &str) -> Value {
        let Output { stdout, .. } = Command::new("curl")
            .args(["-s", "--max-time", "20"])
            .args(args)
            .arg(format!("http://127.0.0.1:{}{path}", self.port))
            .output()
            .unwrap();
        serde_json::from_slice(&stdout).unwrap_or_else(|_| json!(String::from_utf8_lossy(&stdout)))
    }

    pub fn said(&self, log: &str) -> String {
        fs::read_to_string(self.dir.join(log)).unwrap()
    }
}

/// Replaces the settings in one step, as the kubelet of the pod does.
fn write_settings(dir: &Path, failures: &Value) {
    let new = dir.join("settings.new");
    fs::write(&new, json!({"failures": failures}).to_string()).unwrap();
    fs::rename(new, dir.join("settings.json")).unwrap();
}

impl Subject for Kubemark {
    async fn start(name: &str, failures: &Value) -> Self {
        let (_, dir) = Self::prepared(name, failures).await;
        let (port, kubelet_port) = (free_port(), free_port());
        let server = json!({"apiVersion": "v1", "kind": "Config", "current-context": "guard",
            "clusters": [{"name": "guard", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "contexts": [{"name": "guard", "context": {"cluster": "guard", "user": "guard"}}],
            "users": [{"name": "guard", "user": {}}]});
        fs::write(dir.join("kubemark"), server.to_string()).unwrap();
        let guard = Self::guard(name, &dir, port);
        let kubelet = Self::kubelet(name, &dir, kubelet_port);
        let client = bed().client().await;
        let nodes = Api::all(client.clone());
        Self { node: name.to_owned(), nodes, client, dir, port, kubelet_port, guard, kubelet }
    }

    async fn set_failures(&self, failures: Value) {
        write_settings(&self.dir, &failures);
    }

    fn selector(&self) -> watcher::Config {
        watcher::Config::default().fields(&format!("metadata.name={}", self.node))
    }

    fn nodes(&self) -> &Api<Node> {
        &self.nodes
    }

    async fn clean_up(self) {
        drop((self.kubelet, self.guard));
        delete(&self.nodes, &self.node, PropagationPolicy::Background).await;
        let _ = fs::remove_dir_all(&self.dir);
    }
}
