//! An operator that is started by hand: plainly on a unix socket, with the options of sets, until it is told to stop; and how it
//! may not be started.

use std::{
    path::Path,
    process::{Child, Command, Output},
    time::Duration,
};

use futures::{future::join_all, stream};
use kube::Api;
use kube_node_api::{NodeClass, NodeSet};
use kube_node_controllers::autoscaler::proto::{
    NodeGroupAutoscalingOptions, cloud_provider_server::SERVICE_NAME,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::{
    caller::Caller,
    channel::{channel_to_socket, connect_to_socket},
};
use kube_node_testing::{LONG, TemporaryCluster, class_spec, create, eventually, test_target};

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
    let cluster = TemporaryCluster::start(test_target!(), "socket", &["--without-operator"]);
    let client = cluster.client().await;
    let (classes, sets): (Api<NodeClass>, Api<NodeSet>) = (Api::all(client.clone()), Api::all(client));
    create(&classes, json!({"metadata": {"name": "plain"}, "spec": class_spec()})).await.unwrap();
    let wishes = json!({"scaleDownUnneededTime": "1m30s", "scaleDownUtilizationThreshold": "0.7", "zeroOrMaxNodeScaling": true});
    for (name, options) in [("wishes", wishes), ("silent", json!({}))] {
        let autoscaling = json!({"minReplicas": 0, "maxReplicas": 100, "options": options});
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

    health_and_reflection(channel_to_socket(&socket).await.unwrap()).await;

    // A socket that a killed process left is taken over.
    drop(first);
    assert!(socket.exists());
    let mut second = start();
    let mut caller = eventually("it answers again", LONG, answers).await;
    caller.increase("silent", 2).await.unwrap();
    assert_eq!(caller.target("silent").await.unwrap(), 2);
    assert_eq!(sets.get("silent").await.unwrap().spec.replicas, 2);

    // Told to stop in the middle of forty orders: those that it took are answered, the others had no effect.
    let orders = (0..40).map(|_| {
        let mut caller = caller.clone();
        async move { caller.increase("silent", 1).await.is_ok() }
    });
    let pid = Pid::from_raw(second.0.id().try_into().unwrap());
    let resumed = async {
        tokio::time::sleep(Duration::from_millis(40)).await;
        kill(pid, Signal::SIGTERM).unwrap();
    };
    let (answers, ()) = tokio::join!(join_all(orders), resumed);
    let carried_out = answers.iter().filter(|ok| **ok).count();
    println!("{carried_out} of 40 orders were carried out");
    assert_eq!(sets.get("silent").await.unwrap().spec.replicas, 2 + i32::try_from(carried_out).unwrap());
    let ended = eventually("it ends", LONG, async || second.0.try_wait().unwrap()).await;
    assert!(ended.success(), "{ended}");
}

async fn health_and_reflection(channel: Channel) {
    let mut health = HealthClient::new(channel.clone());
    for service in ["", SERVICE_NAME] {
        eventually(&format!("{service:?} serves"), LONG, async || {
            let request = HealthCheckRequest { service: service.to_owned() };
            let answer = health.check(request).await.unwrap().into_inner();
            (answer.status() == ServingStatus::Serving).then_some(())
        })
        .await;
    }
    let nobody = HealthCheckRequest { service: "nobody".to_owned() };
    assert_eq!(health.check(nobody).await.unwrap_err().code(), Code::NotFound);
    let question = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(channel);
    let answers = reflection.server_reflection_info(stream::iter([question])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    assert!(list.service.iter().any(|service| service.name == SERVICE_NAME), "{list:?}");
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
