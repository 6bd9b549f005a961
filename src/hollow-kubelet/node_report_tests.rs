use std::sync::LazyLock;

use kube_node_api::{Resources, names};
use kube_node_cache::ProtobufNode;
use serde_json::from_value;

use super::*;
use crate::pod::allocatable::Allocatable;

static SHAPE: LazyLock<Shape> = LazyLock::new(|| {
    let capacity: Resources = from_value(json!({"cpu": "4", "memory": "8192Mi", "pods": "110"})).unwrap();
    let allocatable: Resources =
        from_value(json!({"cpu": "3900m", "memory": "8192Mi", "pods": "110"})).unwrap();
    Shape {
        parsed: Allocatable::of(&allocatable),
        capacity,
        allocatable,
        kubelet_version: "v1.36.3".to_owned(),
        container_runtime: "containerd://2.1.0".to_owned(),
    }
});
static UID: LazyLock<Arc<str>> = LazyLock::new(|| "u-1".into());

fn report(healthy: bool) -> Report<'static> {
    Report {
        node: "a",
        uid: &UID,
        shape: &SHAPE,
        ip: Ipv4Addr::new(100, 64, 0, 1),
        port: 11_000,
        boot: Uuid::nil(),
        healthy,
    }
}

fn patch(report: &Report<'_>, node: &NodeView, at: &str) -> Value {
    serde_json::from_slice(&report.patch(node, at.parse().unwrap())).unwrap()
}

/// A Node with this status, as the cache has it.
fn view(labels: &Value, status: &Value) -> NodeView {
    let node = json!({"metadata": {"name": "a", "uid": "u-1", "labels": labels}, "status": status});
    from_value::<ProtobufNode>(node).unwrap().into()
}

fn labels() -> Value {
    json!({ names::LABEL_NODE_CONTROLLER: "hollow" })
}

/// The status of a Node that shows `report`, since the epoch.
fn status(report: &Report<'_>) -> Value {
    let mut status = patch(report, &view(&labels(), &json!({})), "1970-01-01T00:00:00Z")["status"].take();
    let addresses = status["addresses"].as_array_mut().unwrap();
    addresses.retain(|address| address.get("$patch").is_none());
    status
}

fn shown(report: &Report<'_>) -> NodeView {
    view(&labels(), &status(report))
}

#[test]
fn unchanged_status_is_not_written() {
    let healthy = report(true);
    let node = shown(&healthy);
    assert!(healthy.is_shown_by(&node));
    assert!(!report(false).is_shown_by(&node));
    assert!(!healthy.is_shown_by(&view(&labels(), &json!({}))));
    let moved = Report { ip: Ipv4Addr::new(100, 64, 0, 2), ..healthy.clone() };
    assert!(!moved.is_shown_by(&node));
    assert!(!Report { port: 11_001, ..healthy.clone() }.is_shown_by(&node));
}

#[test]
fn every_field_of_a_kubelet_that_another_client_overwrites_is_written_again() {
    for (pointer, value) in [
        ("/capacity/cpu", json!("1")),
        ("/capacity/memory", Value::Null),
        ("/allocatable/cpu", json!("4")),
        ("/allocatable/pods", Value::Null),
        ("/allocatable/example.com~1gone", json!("1")),
        ("/addresses/0/address", json!("10.0.0.1")),
        ("/addresses/2", json!({"type": "ExternalIP", "address": "192.0.2.1"})),
        ("/daemonEndpoints/kubeletEndpoint/Port", json!(10_250)),
        ("/nodeInfo/machineID", json!("other")),
        ("/nodeInfo/bootID", json!("other")),
        ("/nodeInfo/osImage", json!("other")),
        ("/nodeInfo/kernelVersion", json!("other")),
        ("/nodeInfo/containerRuntimeVersion", json!("other")),
        ("/nodeInfo/kubeletVersion", json!("other")),
        ("/nodeInfo/kubeProxyVersion", json!("other")),
        ("/nodeInfo/architecture", json!("other")),
        ("/nodeInfo/swap", json!({"capacity": 1})),
        ("/conditions/0/status", json!("True")),
        ("/conditions/3/status", json!("Unknown")),
        ("/conditions/3/reason", json!("other")),
        ("/conditions/3/message", json!("other")),
    ] {
        let mut edited = status(&report(true));
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        match edited.pointer_mut(parent).unwrap() {
            Value::Array(items) => items.push(value),
            parent if value.is_null() => {
                parent.as_object_mut().unwrap().remove(key).unwrap();
            }
            parent => parent[key.replace("~1", "/")] = value,
        }
        assert!(!report(true).is_shown_by(&view(&labels(), &edited)), "{pointer}");
    }
}

#[test]
fn amounts_in_another_notation_are_the_same() {
    let mut status = status(&report(true));
    status["capacity"]["memory"] = json!("8Gi");
    status["allocatable"]["cpu"] = json!("3.9");
    assert!(report(true).is_shown_by(&view(&labels(), &status)));
}

#[test]
fn allocatable_follows_the_capacity_that_another_client_adds() {
    let mut status = status(&report(true));
    status["capacity"]["example.com/dongle"] = json!("4");
    status["allocatable"]["example.com/gone"] = json!("1");
    let node = view(&labels(), &status);
    assert!(!report(true).is_shown_by(&node));
    let patch = patch(&report(true), &node, "2026-01-01T00:00:00Z");
    let expected = json!({
        "cpu": "3900m", "memory": "8192Mi", "pods": "110", "example.com/dongle": "4", "example.com/gone": null,
    });
    assert_eq!(patch["status"]["allocatable"], expected);
    assert!(patch["status"]["capacity"].get("example.com/dongle").is_none(), "the capacity is that client's");
    status["allocatable"] =
        json!({"cpu": "3900m", "memory": "8Gi", "pods": "110", "example.com/dongle": "4"});
    assert!(report(true).is_shown_by(&view(&labels(), &status)));
}

#[test]
fn a_condition_keeps_the_reason_of_another_client_while_its_status_is_right() {
    let mut status = status(&report(true));
    status["conditions"][0]["reason"] = json!("Other");
    let node = view(&labels(), &status);
    assert!(report(true).is_shown_by(&node));
    let written = &patch(&report(true), &node, "2026-01-01T00:00:00Z")["status"]["conditions"][0];
    assert_eq!(*written, json!({"type": "MemoryPressure", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}));
}

#[test]
fn a_transition_has_its_own_time_and_only_that() {
    let node = shown(&report(true));
    let patch = patch(&report(false), &node, "2026-01-01T00:00:00.7Z");
    assert_eq!(patch["metadata"]["uid"], "u-1");
    let conditions = &patch["status"]["conditions"];
    assert_eq!(conditions[0]["lastTransitionTime"], Value::Null);
    assert_eq!(conditions[0]["lastHeartbeatTime"], "2026-01-01T00:00:00Z");
    assert_eq!(conditions[3]["status"], "False");
    assert_eq!(conditions[3]["lastTransitionTime"], "2026-01-01T00:00:00Z");
    assert!(patch["status"].get("capacity").is_none(), "a machine that is shown is not written again");
}

#[test]
fn the_first_patch_takes_the_node_over() {
    let patch = patch(&report(true), &NodeView::default(), "1970-01-01T00:00:00Z");
    let status = &patch["status"];
    assert_eq!(status["addresses"][0]["address"], "100.64.0.1");
    assert_eq!(status["nodeInfo"]["machineID"], "u1");
    assert_eq!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"], 11_000);
    assert_eq!(status["nodeInfo"]["operatingSystem"], "linux");
    assert!(status.get("capacity").is_some() && status.get("allocatable").is_some());
}

#[test]
fn a_machine_reports_architecture_and_operating_system_of_its_nodes_labels() {
    let node = view(&json!({"kubernetes.io/arch": "arm64", "kubernetes.io/os": "windows"}), &json!({}));
    let info = &patch(&report(true), &node, "1970-01-01T00:00:00Z")["status"]["nodeInfo"];
    assert_eq!((&info["architecture"], &info["operatingSystem"]), (&json!("arm64"), &json!("windows")));
}
