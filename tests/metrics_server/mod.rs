//! A stock metrics-server reads hollow kubelets as it reads others, and `kubectl top` shows what their pods were told to use.
//!
//! Needs Go, which builds metrics-server before there is a cluster that it could starve.

// A test that cannot go on says so by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{Fixture, LONG, class_spec, eventually, free_port, go_program::GoProgram, name};

const METRICS_SERVER: GoProgram = GoProgram {
    name: "metrics-server",
    folder: "tests/metrics_server",
    module: "sigs.k8s.io/metrics-server",
    package: "sigs.k8s.io/metrics-server/cmd/metrics-server",
};
/// The flags of its own manifests, but for the certificates, which are self-signed here; and a quicker look.
const FLAGS: [&str; 5] = [
    "--kubelet-use-node-status-port",
    "--kubelet-preferred-address-types=InternalIP",
    "--kubelet-insecure-tls",
    "--kubelet-request-timeout=5s",
    "--metric-resolution=10s",
];
const SERVICE: &str = "v1beta1.metrics.k8s.io";

/// It runs, and the API server knows where.
struct Running {
    process: Child,
}

impl Running {
    async fn start(program: &Path) -> Self {
        let kubeconfig = CLUSTER.dir.join("kubeconfig").display().to_string();
        let port = free_port();
        let process = Command::new(program)
            .args(FLAGS)
            .args(
                ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
                    .map(|flag| format!("--{flag}={kubeconfig}")),
            )
            .arg(format!("--secure-port={port}"))
            .arg(format!("--cert-dir={}", CLUSTER.dir.join("metrics-server").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("metrics-server runs");
        let running = Self { process };
        // An API that does not answer yet would be everybody's trouble.
        eventually("metrics-server listens", LONG, async || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        })
        .await;
        let place = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "metrics-server", "namespace": "kube-system"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        });
        let service = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": SERVICE},
            "spec": {
                "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true,
                "service": {"name": "metrics-server", "namespace": "kube-system", "port": port},
            },
        });
        let file = CLUSTER.dir.join("metrics-server.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [place, service]});
        std::fs::write(&file, list.to_string()).unwrap();
        CLUSTER.kubectl(&["apply", "-f", &file.display().to_string()]);
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        CLUSTER.try_kubectl(&["delete", "apiservice", SERVICE]);
        CLUSTER.try_kubectl(&["delete", "service", "metrics-server", "--namespace=kube-system"]);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The number in front of `unit`.
fn amount(text: &str, unit: &str) -> u32 {
    text.strip_suffix(unit)
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{text} in {unit}"))
}

#[tokio::test]
async fn kubectl_top_shows_what_is_used() {
    let program = METRICS_SERVER.path().expect("metrics-server is built");
    let own = Fixture::new(&CLUSTER, "top", 1, class_spec()).await;
    let node = name(&own.settled(1).await[0]);
    let used = json!({"hollow.kube-node.io/cpu": "250m", "hollow.kube-node.io/memory": "100Mi"});
    own.pod_on(&node, "top-busy", used, json!({})).await;
    let running = Running::start(&program).await;
    let top = |words: &[&str]| {
        let output = CLUSTER.try_kubectl(&[&["top"], words, &["--no-headers"]].concat());
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    };
    let line = eventually("the pod is measured", LONG, async || top(&["pod", "top-busy"])).await;
    let [pod, cpu, memory] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert_eq!((pod, memory), ("top-busy", "100Mi"));
    assert!(amount(cpu, "m").abs_diff(250) <= 2, "{line}");
    let line = eventually("its Node is measured", LONG, async || top(&["node", &node])).await;
    let [_, cpu, _, memory, _] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
    // A twentieth of its 4 cores, and its pod.
    assert!(amount(cpu, "m").abs_diff(200 + 250) <= 5 && amount(memory, "Mi") > 100, "{line}");
    drop(running);
    own.clean_up().await;
}
