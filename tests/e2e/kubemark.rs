//! An upstream kubemark of the pinned Kubernetes and its proxy, as processes of this machine: what a machine's pod holds.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::watcher,
};
use kube_node_api::machine_files;
use local_cluster::{Binaries, Progress, binaries};
use serde_json::{Value, json};

use crate::identity::Stage;
use kube_node_testing::{
    LONG, TestCluster, eventually, fault_injection::FaultTarget, free_port, http::Request, is_ready, release,
};

/// A machine of a provider of the test's own.
pub struct Kubemark {
    pub stage: Stage,
    pub node: String,
    /// The machine's folder.
    pub dir: PathBuf,
    /// The proxy's port.
    pub port: u16,
    pub probe_port: u16,
    kubelet_port: u16,
    program: PathBuf,
    pub proxy: Option<Process>,
    pub kubelet: Option<Process>,
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

impl Kubemark {
    /// The Node as an operator makes it, and the folder of its machine; no process yet.
    pub async fn prepared(node: &str, failures: &Value) -> Self {
        let stage = Stage::new(Box::leak(format!("{node}.example.com").into_boxed_str())).await;
        stage.approve();
        let built = Binaries::of(release(), &binaries::KUBEMARK, &Progress::silent()).await.unwrap();
        let uid = stage.node(node).await;
        let provider_id = json!({"spec": {"providerID": format!("kubemark://{node}")}});
        stage.nodes.patch(node, &PatchParams::default(), &Patch::Merge(provider_id)).await.unwrap();
        let provisioning = json!({"status": {"conditions": [{"type": "Ready", "status": "False",
            "reason": "Provisioning", "lastTransitionTime": jiff::Timestamp::now()}]}});
        stage.nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(provisioning)).await.unwrap();
        let options = stage.options(node, &uid).await;
        let dir = options.store.bootstrap.parent().unwrap().to_owned();
        fs::create_dir_all(dir.join("tmp")).unwrap();
        let machine = json!({
            "node": node, "uid": uid,
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110", "example.com/gpu": "2"},
            "allocatable": {"cpu": "3900m", "memory": "15Gi"},
            "kubeletVersion": "v1.36.3", "containerRuntime": "containerd://2.1.0",
        });
        fs::write(dir.join(machine_files::MACHINE), machine.to_string()).unwrap();
        let (port, probe_port, kubelet_port) = (free_port(), free_port(), free_port());
        let server = json!({"apiVersion": "v1", "kind": "Config", "current-context": "kubemark-proxy",
            "clusters": [{"name": "kubemark-proxy", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "contexts": [{"name": "kubemark-proxy", "context": {"cluster": "kubemark-proxy", "user": "kubemark-proxy"}}],
            "users": [{"name": "kubemark-proxy", "user": {}}]});
        fs::write(dir.join("kubemark"), server.to_string()).unwrap();
        let machine = Self {
            stage,
            node: node.to_owned(),
            dir,
            port,
            probe_port,
            kubelet_port,
            program: built.path("kubemark"),
            proxy: None,
            kubelet: None,
        };
        machine.set_failures(failures.clone()).await;
        machine
    }

    /// The command of its proxy.
    pub fn proxy_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node-machine"));
        command.args([
            "kubemark-proxy",
            "--node",
            &self.node,
            "--listen",
            &format!("127.0.0.1:{}", self.port),
        ]);
        command.arg(format!("--probe-port={}", self.probe_port));
        command.arg("--machine-dir").arg(&self.dir).arg("--state-dir").arg(self.dir.join("state"));
        command
    }

    pub fn start_proxy(&mut self) {
        self.proxy = Some(Process::start(&mut self.proxy_command(), &self.dir.join("proxy.log")));
    }

    pub fn start_kubelet(&mut self) {
        let mut command = Command::new(&self.program);
        command
            .args(["--morph=kubelet", "--kube-api-content-type=application/json"])
            .args(["--use-host-image-service=false", "--kubelet-read-only-port=0"])
            .arg("--extended-resources=cpu=4,memory=16Gi,ephemeral-storage=100Gi")
            .arg(format!("--name={}", self.node))
            .arg(format!("--kubelet-port={}", self.kubelet_port))
            .arg(format!("--kubeconfig={}", self.dir.join("kubemark").display()))
            .arg(format!("--cert-dir={}", self.dir.join("tmp").display()))
            .env("TMPDIR", self.dir.join("tmp"));
        self.kubelet = Some(Process::start(&mut command, &self.dir.join("kubemark.log")));
    }

    /// The exit code of the proxy, once it has ended by itself.
    pub async fn proxy_ended(&mut self) -> i32 {
        let proxy = self.proxy.as_mut().unwrap();
        eventually("the proxy ends", LONG, async || proxy.code()).await
    }

    pub async fn ready(&self) -> Node {
        eventually(&format!("{} is Ready", self.node), LONG, async || {
            Some(self.stage.nodes.get(&self.node).await.unwrap()).filter(is_ready)
        })
        .await
    }

    /// The Node as it is.
    pub async fn now(&self) -> Node {
        self.stage.nodes.get(&self.node).await.unwrap()
    }

    /// Asks the proxy, as whoever is inside the pod may.
    pub fn ask(&self, path: &str, change: impl FnOnce(Request) -> Request) -> Value {
        let request = Request::get(format!("http://127.0.0.1:{}{path}", self.port));
        let (_, answer) = change(request).answer().unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|_| json!(answer))
    }

    pub fn said(&self, log: &str) -> String {
        fs::read_to_string(self.dir.join(log)).unwrap()
    }
}

impl FaultTarget for Kubemark {
    async fn start(_cluster: &TestCluster, name: &str, failures: &Value) -> Self {
        let mut machine = Self::prepared(name, failures).await;
        machine.start_proxy();
        machine.start_kubelet();
        machine
    }

    /// In one step, as the kubelet of the pod does.
    async fn set_failures(&self, failures: Value) {
        let new = self.dir.join("settings.new");
        fs::write(&new, json!({"failures": failures}).to_string()).unwrap();
        fs::rename(new, self.dir.join(machine_files::SETTINGS)).unwrap();
    }

    fn selector(&self) -> watcher::Config {
        watcher::Config::default().fields(&format!("metadata.name={}", self.node))
    }

    fn nodes(&self) -> &Api<Node> {
        &self.stage.nodes
    }

    async fn clean_up(self) {
        drop((self.kubelet, self.proxy));
        self.stage.remove(&self.node).await;
    }
}
