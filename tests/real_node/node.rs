//! The node itself: it takes pods, they reach the API server and are reached, its images are those that are written, and
//! what dies in it comes back under the pods.

use std::{path::PathBuf, process::Command, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::PropagationPolicy};
use local_cluster::{Binaries, images};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use crate::CLUSTER;
use kube_node_testing::{
    LONG, create, delete, eventually, git_version, is_ready, phase, real_node::daemons, summary, taints,
};

/// A pod of the node itself: the hollow ones of other tests take pods too, and run nothing. It may have to wait for the
/// service account of its namespace.
async fn run(pods: &Api<Pod>, name: &str, args: &[&str]) {
    let pod = json!({"metadata": {"name": name}, "spec": {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": "real-node"},
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": images::KUBE_NODE, "args": args, "imagePullPolicy": "IfNotPresent",
            "securityContext": {"runAsNonRoot": true, "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
    }});
    eventually(&format!("{name} is accepted"), LONG, async || create(pods, pod.clone()).await.ok()).await;
}

async fn in_phase(pods: &Api<Pod>, name: &str, wanted: &str) -> Pod {
    eventually(&format!("{name} is {wanted}"), LONG, async || {
        pods.get(name).await.ok().filter(|pod| phase(pod) == wanted)
    })
    .await
}

async fn pods() -> Api<Pod> {
    Api::default_namespaced(CLUSTER.client().await)
}

/// Runs containerd's own client against the node.
pub fn ctr(args: &[&str]) -> String {
    let program = Binaries::runtime_cache_dir().unwrap().join("ctr");
    let socket = format!("/proc/{}/root/run/containerd/containerd.sock", daemons(&CLUSTER)["containerd"]);
    let output =
        Command::new(program).args(["--address", &socket, "-n", "k8s.io"]).args(args).output().unwrap();
    assert!(output.status.success(), "ctr {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub async fn the_node_is_ready_and_open_to_all() {
    let _node = crate::NODE.read().await;
    let nodes: Api<Node> = Api::all(CLUSTER.client().await);
    // kube-controller-manager takes `not-ready` off some seconds after the node is Ready.
    let node = eventually("the node is Ready and has no taint", LONG, async || {
        let node = nodes.get("real-node").await.unwrap();
        if is_ready(&node) && taints(&node).is_empty() { Ok(node) } else { Err(summary(&node)) }
    })
    .await;
    let info = node.status.unwrap().node_info.unwrap();
    assert!(info.container_runtime_version.starts_with("containerd://"), "{info:?}");
    assert_eq!(info.kubelet_version, git_version());
    assert_eq!(daemons(&CLUSTER).len(), 3);
    let text = String::from_utf8(CLUSTER.kube_node(&["status"]).stdout).unwrap();
    for name in ["real-node", "containerd", "kubelet", "kube-proxy"] {
        assert!(text.contains(name), "{name}: {text}");
    }
}

pub async fn pods_of_our_image_run_and_are_reached() {
    let _node = crate::NODE.read().await;
    let pods = pods().await;
    run(&pods, "says", &["--version"]).await;
    run(&pods, "stays", &["pause"]).await;
    in_phase(&pods, "says", "Succeeded").await;
    let version = concat!("kube-node ", env!("CARGO_PKG_VERSION"));
    assert_eq!(CLUSTER.kubectl(&["logs", "says"]).trim(), version);
    let stays = in_phase(&pods, "stays", "Running").await;
    assert_eq!(stays.spec.unwrap().node_name.as_deref(), Some("real-node"));
    assert_eq!(CLUSTER.kubectl(&["exec", "stays", "--", "kube-node", "--version"]).trim(), version);
    for name in ["says", "stays"] {
        delete(&pods, name, PropagationPolicy::Background).await;
        eventually(&format!("{name} is gone"), LONG, async || {
            pods.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }
}

pub async fn pods_reach_the_api_server_at_its_service() {
    let _node = crate::NODE.read().await;
    let pods = pods().await;
    // It asks the API server, by the Service, whether it may work, and is told that it may not.
    run(&pods, "asks", &["operator", "--admin-address", "127.0.0.1:0"]).await;
    in_phase(&pods, "asks", "Failed").await;
    let said = CLUSTER.kubectl(&["logs", "asks"]);
    assert!(said.contains("may not: watch nodes"), "{said}");
    delete(&pods, "asks", PropagationPolicy::Background).await;
}

pub async fn images_are_those_that_are_written() {
    let _node = crate::NODE.read().await;
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("images-{}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_kube-node"))
        .args(["image", "--output-dir"])
        .arg(&dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = ctr(&["images", "ls"]);
    let written = String::from_utf8(output.stdout).unwrap();
    assert_eq!(written.lines().count(), 3, "{written}");
    for line in written.lines() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (path, name, digest) = (columns[0], columns[columns.len() - 2], columns[columns.len() - 1]);
        let is_there = |listed: &str| {
            let row = listed
                .lines()
                .find(|row| row.starts_with(name))
                .unwrap_or_else(|| panic!("{name}: {listed}"));
            assert!(row.contains(digest), "{name}: {digest} was written, the node has {row}");
        };
        is_there(&listed);
        // Once more, as somebody else would.
        ctr(&["images", "import", path]);
        is_there(&ctr(&["images", "ls"]));
    }
    std::fs::remove_dir_all(dir).unwrap();
}

pub async fn what_is_killed_comes_back_under_the_pods() {
    let _node = crate::NODE.write().await;
    let pods = pods().await;
    run(&pods, "survivor", &["pause"]).await;
    let identity = |pod: &Pod| {
        let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
        (status.container_id, status.restart_count)
    };
    let before = identity(&in_phase(&pods, "survivor", "Running").await);
    for name in ["containerd", "kubelet"] {
        let old = daemons(&CLUSTER)[name];
        kill(Pid::from_raw(old), Signal::SIGKILL).unwrap();
        eventually(&format!("{name} is back"), LONG, async || {
            daemons(&CLUSTER).get(name).filter(|&&pid| pid != old).copied()
        })
        .await;
    }
    eventually("the node still serves its pods", Duration::from_mins(2), async || {
        CLUSTER
            .try_kubectl(&["exec", "survivor", "--", "kube-node", "--version"])
            .status
            .success()
            .then_some(())
    })
    .await;
    assert_eq!(identity(&in_phase(&pods, "survivor", "Running").await), before);
    delete(&pods, "survivor", PropagationPolicy::Background).await;
}
