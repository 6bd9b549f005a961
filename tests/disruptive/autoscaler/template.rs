//! What a further Node would look like: to a program in Go, beside a Node that came of it, and over several sets.

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use kube_node_api::quantity;
use kube_node_controllers::autoscaler::proto::{
    ExternalGrpcNode, GetAvailableGpuTypesRequest, GpuLabelRequest, PricingNodePriceRequest,
    PricingPodPriceRequest,
};
use prost::Message;
use serde_json::json;
use tonic::Code;

use super::{caller, caller::external, group};
use kube_node_testing::{class_spec, taints};

/// The Node as Kubernetes' own types read it.
fn read_by_go(bytes: &[u8]) -> Node {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/disruptive/autoscaler/template-node");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("template-node");
    let built = Command::new("go")
        .args(["build", "-trimpath", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .env("CGO_ENABLED", "0")
        .output()
        .expect("go");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

type ResourceList = Option<std::collections::BTreeMap<String, Quantity>>;

fn amounts(amounts: &ResourceList) -> Vec<(String, i128)> {
    let amounts = amounts.as_ref().expect("amounts");
    amounts.iter().map(|(name, amount)| (name.clone(), quantity::nanos(amount).unwrap())).collect()
}

pub async fn as_go_reads_it() {
    let mut class = class_spec();
    class["capacity"]["nvidia.com/gpu"] = json!("2");
    class["capacity"]["example.com/licence"] = json!("7");
    class["template"] = json!({
        "labels": {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r"},
        "annotations": {"example.com/note": "x"},
        "taints": [{"key": "example.com/dedicated", "value": "x", "effect": "NoSchedule"}],
        "startupTaints": [],
    });
    let own = group("as-template", 0, 0, 3, class).await;
    let mut caller = caller().await;
    let (as_message, as_bytes) = caller.template("as-template").await.unwrap();
    assert_eq!(as_message, as_bytes);
    let template = read_by_go(&as_bytes);

    caller.increase("as-template", 1).await.unwrap();
    let real = own.settled(1).await.remove(0);
    // Labels: all of a real Node's, with its own name in one of them.
    let labels = |node: &Node| {
        let mut labels = node.metadata.labels.clone().unwrap();
        let host = labels.remove("kubernetes.io/hostname");
        assert_eq!(host, node.metadata.name);
        labels
    };
    assert_eq!(labels(&template), labels(&real));
    assert_eq!(labels(&template)["topology.kubernetes.io/zone"], "a");
    assert_eq!(template.metadata.annotations.as_ref().unwrap()["example.com/note"], "x");
    assert_eq!(taints(&template), taints(&real));
    let (template_status, shown) = (template.status.unwrap(), real.status.clone().unwrap());
    assert_eq!(amounts(&template_status.capacity), amounts(&shown.capacity));
    assert_eq!(amounts(&template_status.allocatable), amounts(&shown.allocatable));
    assert!(template_status.allocatable.unwrap().contains_key("nvidia.com/gpu"));
    let ready = template_status.conditions.unwrap().remove(0);
    assert_eq!((ready.type_.as_str(), ready.status.as_str()), ("Ready", "True"));
    let (template_status, shown) = (template_status.node_info.unwrap(), shown.node_info.unwrap());
    assert_eq!(
        (template_status.architecture, template_status.operating_system),
        (shown.architecture, shown.operating_system)
    );
    own.clean_up().await;
}

/// From the epoch, in seconds.
const fn at(seconds: i64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds, nanos: 0 }
}

pub async fn several_sets() {
    let with = |cpu: &str, price: &str, zone: &str, gpu: Option<&str>| {
        let mut class = class_spec();
        class["capacity"]["cpu"] = json!(cpu);
        class["price"] = json!(price);
        class["template"] = json!({"labels": {"topology.kubernetes.io/zone": zone}});
        if let Some(gpu) = gpu {
            class["template"]["labels"]["autoscaler.kube-node.io/gpu"] = json!(gpu);
            class["capacity"]["nvidia.com/gpu"] = json!("1");
        }
        class
    };
    let small = group("as-small", 1, 0, 3, with("2", "0.1", "a", None)).await;
    let large = group("as-large", 0, 0, 3, with("32", "1.2", "b", Some("H100"))).await;
    let mut caller = caller().await;
    let ids: Vec<String> = caller.groups().await.unwrap().into_iter().map(|group| group.id).collect();
    assert!(ids.is_sorted() && ids.contains(&"as-small".to_owned()) && ids.contains(&"as-large".to_owned()));
    for (id, zone) in [("as-small", "a"), ("as-large", "b")] {
        let (_, bytes) = caller.template(id).await.unwrap();
        let node = k8s_pb::api::core::v1::Node::decode(bytes.as_slice()).unwrap();
        assert_eq!(node.metadata.unwrap().labels["topology.kubernetes.io/zone"], zone);
    }
    let label = caller.0.gpu_label(GpuLabelRequest {}).await.unwrap().into_inner().label;
    assert_eq!(label, "autoscaler.kube-node.io/gpu");
    let kinds = caller.0.get_available_gpu_types(GetAvailableGpuTypesRequest {}).await.unwrap();
    assert!(kinds.into_inner().gpu_types.contains_key("H100"));

    let price = async |node: ExternalGrpcNode| {
        let request = PricingNodePriceRequest {
            node: Some(node),
            start_timestamp: Some(at(0)),
            end_timestamp: Some(at(7_200)),
        };
        caller.0.clone().pricing_node_price(request).await.map(|answer| answer.into_inner().price)
    };
    let node = small.settled(1).await.remove(0);
    assert!((price(external(&node)).await.unwrap() - 0.2).abs() < 1e-9);
    let template = ExternalGrpcNode {
        name: "template-node-for-as-large".to_owned(),
        labels: [("kube-node.io/nodeclass".to_owned(), "as-large".to_owned())].into(),
        ..ExternalGrpcNode::default()
    };
    assert!((price(template).await.unwrap() - 2.4).abs() < 1e-9);
    let foreign = ExternalGrpcNode { name: "somebody".to_owned(), ..ExternalGrpcNode::default() };
    assert_eq!(price(foreign).await.unwrap_err().code(), Code::InvalidArgument);

    let amount =
        |text: &str| k8s_pb::apimachinery::pkg::api::resource::Quantity { string: Some(text.to_owned()) };
    let pod = k8s_pb::api::core::v1::Pod {
        spec: Some(k8s_pb::api::core::v1::PodSpec {
            containers: vec![k8s_pb::api::core::v1::Container {
                resources: Some(k8s_pb::api::core::v1::ResourceRequirements {
                    requests: [("cpu".to_owned(), amount("1"))].into(),
                    ..Default::default()
                }),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    };
    let request = PricingPodPriceRequest {
        pod_bytes: pod.encode_to_vec(),
        start_timestamp: Some(at(0)),
        end_timestamp: Some(at(3_600)),
    };
    let cost = caller.0.pricing_pod_price(request).await.unwrap().into_inner().price;
    assert!(
        (cost - 1.2 / 32.0).abs() < 1e-9,
        "a 32nd of the large one costs less than a half of the small one: {cost}"
    );
    small.clean_up().await;
    large.clean_up().await;
}
