//! An operator that is started by hand: plainly on a unix socket, with the options of sets; and how it may not be started.

use std::{
    path::Path,
    process::{Child, Command, Output},
};

use kube::Api;
use kube_node::{
    api::{NodeClass, NodeSet},
    autoscaler::proto::NodeGroupAutoscalingOptions,
};
use serde_json::json;

use crate::{
    bed::{LONG, class_spec, create, eventually, further::Further},
    caller::Caller,
    channel::connect_to_socket,
};

/// Ends with its test.
struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn operator(kubeconfig: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-node"));
    command.args(["operator", "--admin-address", "127.0.0.1:0", "--kubeconfig"]).arg(kubeconfig).args(args);
    command
}

const fn span(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

/// What cluster-autoscaler would do by its flags.
fn defaults() -> NodeGroupAutoscalingOptions {
    NodeGroupAutoscalingOptions {
        scale_down_utilization_threshold: 0.5,
        scale_down_gpu_utilization_threshold: 0.25,
        scale_down_unneeded_duration: Some(span(600)),
        scale_down_unready_duration: Some(span(1_200)),
        max_node_provision_duration: Some(span(900)),
        max_node_startup_duration: Some(span(901)),
        ..NodeGroupAutoscalingOptions::default()
    }
}

#[tokio::test]
async fn plainly_on_a_socket_with_options() {
    let cluster = Further::start("socket", &["--without-operator"]);
    let client = cluster.client().await;
    let (classes, sets): (Api<NodeClass>, Api<NodeSet>) = (Api::all(client.clone()), Api::all(client));
    create(&classes, json!({"metadata": {"name": "plain"}, "spec": class_spec()})).await.unwrap();
    let wishes = json!({"scaleDownUnneededTime": "1m30s", "scaleDownUtilizationThreshold": "0.7", "zeroOrMaxNodeScaling": "true"});
    for (name, options) in [("wishes", wishes), ("silent", json!({}))] {
        let autoscaling = json!({"minReplicas": 0, "maxReplicas": 3, "options": options});
        let spec = json!({"replicas": 0, "nodeClassName": "plain", "autoscaling": autoscaling});
        create(&sets, json!({"metadata": {"name": name}, "spec": spec})).await.unwrap();
    }
    let kubeconfig = cluster.dir.join("kubeconfig");
    let socket = cluster.dir.join("autoscaler.sock");
    let address = format!("--autoscaler-address=unix://{}", socket.display());
    // One after the other, and the second one need not wait for the end of the first one's Lease.
    let alone = "--leader-elect=false";
    let args = [address.as_str(), alone, "--autoscaler-plaintext", "--autoscaler-options"];
    let start = || Operator(operator(&kubeconfig, &args).spawn().unwrap());
    let answers = async || {
        let mut caller = Caller(connect_to_socket(&socket).await.ok()?);
        caller.refresh().await.ok()?;
        (caller.groups().await.ok()?.len() == 2).then_some(caller)
    };
    let first = start();
    let mut caller = eventually("it answers on the socket", LONG, answers).await;
    let granted = caller.options("wishes", defaults()).await.unwrap();
    let expected = NodeGroupAutoscalingOptions {
        scale_down_unneeded_duration: Some(span(90)),
        scale_down_utilization_threshold: 0.7,
        zero_or_max_node_scaling: true,
        ..defaults()
    };
    assert_eq!(granted, expected);
    assert_eq!(caller.options("silent", defaults()).await.unwrap(), defaults());

    // A socket that a killed process left is taken over.
    drop(first);
    assert!(socket.exists());
    let _second = start();
    let mut caller = eventually("it answers again", LONG, answers).await;
    caller.increase("silent", 2).await.unwrap();
    assert_eq!(caller.target("silent").await.unwrap(), 2);
    assert_eq!(sets.get("silent").await.unwrap().spec.replicas, 2);
}

#[test]
fn how_it_may_not_be_started() {
    let said = |args: &[&str]| {
        let Output { status, stderr, .. } = operator(Path::new("/nowhere"), args).output().unwrap();
        assert!(!status.success(), "{args:?}");
        String::from_utf8(stderr).unwrap()
    };
    let bare = said(&["--autoscaler-address=127.0.0.1:0"]);
    assert!(bare.contains("--autoscaler-cert") && bare.contains("--autoscaler-plaintext"), "{bare}");
    let open = said(&["--autoscaler-address=0.0.0.0:0", "--autoscaler-plaintext"]);
    assert!(open.contains("loopback") && open.contains("0.0.0.0:0"), "{open}");
    let without_key =
        said(&["--autoscaler-address=127.0.0.1:0", "--autoscaler-cert=/c", "--autoscaler-client-ca=/a"]);
    assert!(without_key.contains("--autoscaler-key"), "{without_key}");
    let nowhere = said(&["--autoscaler-plaintext"]);
    assert!(nowhere.contains("--autoscaler-address"), "{nowhere}");
    let nonsense = said(&["--autoscaler-address=somewhere", "--autoscaler-plaintext"]);
    assert!(nonsense.contains("somewhere"), "{nonsense}");
}
