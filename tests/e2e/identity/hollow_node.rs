//! `kube-node-machine hollow-node` as a process: one machine with the identity of its Node, without a real node under it.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube_node_api::{
    Failures, GoDuration,
    machine_files::{self, MachineSettings},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use super::Stage;
use crate::CLUSTER;
use kube_node_testing::{
    Fixture, LONG, always, condition, eventually, free_port, http::Request, is_ready, phase,
};

/// A machine's folders and its process, while it runs.
struct Machine {
    node: String,
    dir: PathBuf,
    port: u16,
    process: Option<Child>,
}

impl Machine {
    /// What its provider writes.
    async fn new(stage: &Stage, node: &str, commands: &[&str]) -> Self {
        let uid = stage.node(node).await;
        let options = stage.options(node, &uid).await;
        let dir = options.store.bootstrap.parent().unwrap().to_owned();
        let machine = json!({
            "node": node, "uid": uid, "commands": commands,
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
            "allocatable": {"cpu": "3900m", "memory": "15Gi", "pods": "110"},
            "kubeletVersion": "v1.36.3", "containerRuntime": "containerd://2.1.0",
        });
        fs::write(dir.join(machine_files::MACHINE), machine.to_string()).unwrap();
        let machine = Self { node: node.to_owned(), dir, port: free_port(), process: None };
        machine.set(&MachineSettings::default());
        machine
    }

    /// Writes the settings as the kubelet does: beside, then moved.
    fn set(&self, settings: &MachineSettings) {
        let beside = self.dir.join("settings.new");
        fs::write(&beside, serde_json::to_vec(settings).unwrap()).unwrap();
        fs::rename(beside, self.dir.join(machine_files::SETTINGS)).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node-machine"));
        command.args(["hollow-node", "--node", &self.node, "--node-ip", "10.1.2.3"]);
        command.arg("--machine-dir").arg(&self.dir).arg("--state-dir").arg(self.dir.join("state"));
        command.args(["--probe-port", &self.port.to_string()]);
        command
    }

    fn start(&mut self) {
        let log = fs::File::create(self.dir.join("log")).unwrap();
        self.process = Some(self.command().stderr(log).stdin(Stdio::null()).spawn().unwrap());
    }

    /// Runs it to its end.
    fn run(&self) -> Output {
        self.command().output().unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.as_ref().unwrap().id();
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
    }

    /// Waits for its end; whether it went well, and what it said.
    async fn ended(&mut self) -> (bool, String) {
        let mut process = self.process.take().unwrap();
        let status = eventually("the process ends", LONG, async || process.try_wait().unwrap()).await;
        (status.success(), fs::read_to_string(self.dir.join("log")).unwrap())
    }

    /// What a probe gets: the code, or None while nobody listens.
    fn probe(&self, path: &str) -> Option<String> {
        let (code, _) = Request::get(format!("http://127.0.0.1:{}{path}", self.port)).answer()?;
        Some(code.to_string())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

async fn ready(stage: &Stage, node: &str) -> Node {
    eventually("the Node is Ready", LONG, async || {
        Some(stage.nodes.get(node).await.unwrap()).filter(is_ready)
    })
    .await
}

fn info(node: &Node) -> k8s_openapi::api::core::v1::NodeSystemInfo {
    node.status.clone().unwrap().node_info.unwrap()
}

#[tokio::test]
async fn a_machine_lives_through_kill_and_change_and_ends_with_its_node() {
    let stage = Stage::new("process.example.com").await;
    stage.approve();
    let touched = stage.dir.join("touched");
    let mut machine = Machine::new(&stage, "process-1", &[&format!("touch {}", touched.display())]).await;
    machine.start();

    let node = ready(&stage, "process-1").await;
    assert!(touched.exists(), "the command ran before");
    assert_eq!(info(&node).kubelet_version, "v1.36.3");
    let address = &node.status.as_ref().unwrap().addresses.as_ref().unwrap()[0].address;
    assert_eq!(address, "10.1.2.3");
    eventually("probes", LONG, async || (machine.probe("/readyz")? == "200").then_some(())).await;
    assert_eq!(machine.probe("/healthz").as_deref(), Some("200"));
    let own = Fixture::nothing(&CLUSTER, "process").await;
    own.pod_on("process-1", "process-pod", json!({}), json!({})).await;
    eventually("its pod runs", LONG, async || {
        (phase(&own.pods.get("process-pod").await.unwrap()) == "Running").then_some(())
    })
    .await;

    // Killed, it comes back with the same identity and the same boot.
    let boot = info(&node).boot_id;
    machine.signal(Signal::SIGKILL);
    machine.process.take().unwrap().wait().unwrap();
    // Its token is of no more use: the certificate is enough.
    fs::write(machine.dir.join(machine_files::BOOTSTRAP), stale(&machine)).unwrap();
    let before = Timestamp::now();
    machine.start();
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(stage.admin.clone(), "kube-node-lease");
    eventually("its Lease is renewed again", LONG, async || {
        let renewed = leases.get("process-1").await.unwrap().spec?.renew_time?.0;
        (renewed > before).then_some(())
    })
    .await;
    assert_eq!(info(&stage.nodes.get("process-1").await.unwrap()).boot_id, boot);
    assert_eq!(stage.requests("process-1").await.len(), 1, "no second request");

    // Fault injection, set in place: unhealthy for 5 s, healthy for 4 s, counted from the boot.
    let failures = Failures {
        unhealthy_duration: GoDuration(Duration::from_secs(5)),
        healthy_duration: Some(GoDuration(Duration::from_secs(4))),
        turn_unhealthy_periodically: Some(true),
        ..Failures::default()
    };
    machine.set(&MachineSettings { failures: Some(failures), ..MachineSettings::default() });
    let turns = turns(&stage, "process-1", 5).await;
    // The settings came in the middle of the first phase: phases count from the boot.
    for pair in turns[1..].windows(2) {
        let (status, at) = &pair[0];
        let took = pair[1].1.duration_since(*at).as_secs();
        // Times on conditions are whole seconds.
        let wanted = if status == "False" { 4..=6 } else { 3..=5 };
        assert!(wanted.contains(&took), "{turns:?}");
    }
    machine.set(&MachineSettings::default());
    ready(&stage, "process-1").await;

    // Told to stop, it does, and well.
    machine.signal(Signal::SIGTERM);
    let (success, said) = machine.ended().await;
    assert!(success, "{said}");

    // Its Node goes: it ends by itself, and says why.
    machine.start();
    eventually("it is at work", LONG, async || (machine.probe("/readyz")? == "200").then_some(())).await;
    let _ = own.pods.delete("process-pod", &kube::api::DeleteParams::default().grace_period(0)).await;
    stage.remove("process-1").await;
    let (success, said) = machine.ended().await;
    let last = said.lines().last().unwrap_or_default();
    assert!(!success && last.starts_with("error: Node process-1 with the UID"), "{said}");
    assert!(last.ends_with("is gone: its machine ends"), "{last}");
}

/// A kubeconfig like the machine's, with a token that nobody takes.
fn stale(machine: &Machine) -> String {
    let text = fs::read_to_string(machine.dir.join(machine_files::BOOTSTRAP)).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&text).unwrap();
    kubeconfig["users"][0]["user"]["token"] = json!("e30.eyJleHAiOjYwfQ.c2ln");
    kubeconfig.to_string()
}

fn without_commands(machine: &Machine) -> String {
    let text = fs::read_to_string(machine.dir.join(machine_files::MACHINE)).unwrap();
    let mut spec: Value = serde_json::from_str(&text).unwrap();
    spec["commands"] = json!([]);
    spec.to_string()
}

/// The next turns of the Ready condition: its status, and since when.
async fn turns(stage: &Stage, node: &str, count: usize) -> Vec<(String, Timestamp)> {
    let mut seen: Vec<(String, Timestamp)> = Vec::new();
    eventually("the phases of fault injection", LONG, async || {
        let node = stage.nodes.get(node).await.unwrap();
        let ready = condition(&node, "Ready")?;
        let turn = (ready.status.clone(), ready.last_transition_time.as_ref()?.0);
        if seen.last() != Some(&turn) {
            seen.push(turn);
        }
        // The first one began before fault injection did.
        (seen.len() > count).then(|| seen.split_off(1))
    })
    .await
}

#[tokio::test]
async fn what_keeps_a_machine_from_starting_is_its_last_line() {
    let stage = Stage::new("refusal.example.com").await;
    stage.approve();
    let mut machine = Machine::new(&stage, "refusal-1", &["true", "echo broken >&2; exit 7"]).await;
    let said = |output: Output| {
        assert!(!output.status.success());
        let text = String::from_utf8(output.stderr).unwrap();
        text.lines().last().unwrap_or_default().to_owned()
    };
    let last = said(machine.run());
    assert_eq!(last, "error: provisioning.commands[1] failed with exit status: 7: echo broken >&2; exit 7");
    fs::write(machine.dir.join(machine_files::MACHINE), without_commands(&machine)).unwrap();

    // A token that is stale is waited for, and named; a new one is taken.
    let good = fs::read_to_string(machine.dir.join(machine_files::BOOTSTRAP)).unwrap();
    fs::write(machine.dir.join(machine_files::BOOTSTRAP), stale(&machine)).unwrap();
    machine.start();
    eventually("it names the token", LONG, async || {
        let log = fs::read_to_string(machine.dir.join("log")).unwrap();
        (log.contains("bootstrap.kubeconfig expired at 1970-01-01T00:01:00Z")).then_some(())
    })
    .await;
    always("it is not ready", Duration::from_secs(1), async || {
        machine.probe("/readyz").as_deref() == Some("503")
    })
    .await;
    fs::write(machine.dir.join(machine_files::BOOTSTRAP), good).unwrap();
    ready(&stage, "refusal-1").await;
    machine.signal(Signal::SIGTERM);
    assert!(machine.ended().await.0);

    // The machine of another Node, and a folder that it may not write.
    fs::rename(machine.dir.join("state"), machine.dir.join("away")).unwrap();
    assert!(said(machine.run()).contains("state: it must be a folder that this user may write"));
    fs::rename(machine.dir.join("away"), machine.dir.join("state")).unwrap();
    machine.node = "refusal-2".to_owned();
    assert!(said(machine.run()).contains("is that of Node refusal-1, and --node is refusal-2"));
    stage.remove("refusal-1").await;
}
