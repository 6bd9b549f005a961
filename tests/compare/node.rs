//! What is compared of Nodes: what any kubelet says of itself, images aside, at rest and after edits by another client. How
//! much a machine has is its own business.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node, storage::v1::CSINode};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    facts::{Aspect, Fact, Facts, Known, flatten, staying},
    systems::Target,
};

/// How these facts are called beside those of pods.
pub const NAME: &str = "the Node";
/// Time after an edit in which a kubelet has compared its status with the Node twice.
pub const REPAIRED: Duration = Duration::from_secs(25);
/// What every machine has some of.
const RESOURCES: [&str; 4] = ["cpu", "ephemeral-storage", "memory", "pods"];

/// The facts of a node.
pub async fn facts(client: &Client, place: &Target) -> Facts {
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let node = json!(nodes.get(&place.node).await.unwrap());
    let lease = json!(leases.get_opt(&place.node).await.unwrap());
    let known = Known { names: vec![(place.node.clone(), "NODE")], ..Known::default() };
    let mut facts = Facts::new();
    facts.insert(Aspect::Lease, staying(of_lease(&lease, &node)));
    facts.insert(Aspect::Metadata, staying(metadata(&node)));
    facts.insert(Aspect::Resources, staying(resources(&node["status"])));
    facts.insert(Aspect::Conditions, staying(conditions(&node, &known)));
    facts.insert(Aspect::Status, staying(status(&node["status"])));
    let csi_nodes: Api<CSINode> = Api::all(client.clone());
    let csi_node = json!(csi_nodes.get_opt(&place.node).await.unwrap());
    facts.insert(Aspect::CsiNode, staying(of_csi_node(&csi_node, &node)));
    facts
}

fn of_csi_node(csi_node: &Value, node: &Value) -> Vec<String> {
    if csi_node.is_null() {
        return vec!["none".to_owned()];
    }
    let owner = &csi_node["metadata"]["ownerReferences"][0];
    let migrated = &csi_node["metadata"]["annotations"]["storage.alpha.kubernetes.io/migrated-plugins"];
    vec![
        format!("owner: {}, by its UID: {}", owner["kind"], owner["uid"] == node["metadata"]["uid"]),
        format!("migrated plugins: {migrated}"),
        format!("drivers: {}", csi_node["spec"]["drivers"].as_array().map_or(0, Vec::len)),
    ]
}

/// Edits of a Node: places, and what another client writes there; null takes away.
fn edits() -> [(&'static str, Value); 11] {
    [
        ("/metadata/labels/kubernetes.io~1arch", json!("edited")),
        ("/status/capacity/cpu", json!("1")),
        ("/status/capacity/example.com~1added", json!("4")),
        ("/status/allocatable/pods", Value::Null),
        ("/status/addresses/0/address", json!("192.0.2.1")),
        ("/status/daemonEndpoints/kubeletEndpoint/Port", json!(1)),
        ("/status/nodeInfo/osImage", json!("edited")),
        ("/status/nodeInfo/kubeletVersion", json!("v0.0.0")),
        ("/status/conditions/0/reason", json!("Edited")),
        ("/status/conditions/1/status", json!("True")),
        ("/status/conditions/3/message", json!("edited")),
    ]
}

/// Edits a Node; returns the Node before.
pub async fn edit(client: &Client, place: &Target) -> Value {
    let nodes: Api<Node> = Api::all(client.clone());
    let before = json!(nodes.get(&place.node).await.unwrap());
    // A merge patch replaces lists, so it has whole ones.
    let mut edited =
        json!({"metadata": {"labels": before["metadata"]["labels"]}, "status": before["status"]});
    for (place, value) in edits() {
        let (parent, key) = place.rsplit_once('/').unwrap();
        if let Some(Value::Object(parent)) = edited.pointer_mut(parent) {
            parent.insert(key.replace("~1", "/"), value);
        }
    }
    nodes.patch_status(&place.node, &PatchParams::default(), &Patch::Merge(edited)).await.unwrap();
    before
}

/// What of the edits of the Node that was `before` is left.
pub async fn facts_after_edits(client: &Client, place: &Target, before: &Value) -> Vec<Fact> {
    let nodes: Api<Node> = Api::all(client.clone());
    let after = json!(nodes.get(&place.node).await.unwrap());
    let of = |node: &Value, place: &str| node.pointer(place).cloned().unwrap_or_default();
    let mut lines = Vec::new();
    for (place, edit) in edits() {
        let left = match of(&after, place) {
            value if value == of(before, place) => "as before",
            value if value == edit => "as edited",
            _ => "something else",
        };
        lines.push(format!("{place}: {left}"));
    }
    let added = "/status/allocatable/example.com~1added";
    lines.push(format!("{added}: {}", of(&after, added)));
    staying(lines)
}

fn conditions(node: &Value, known: &Known<'_>) -> Vec<String> {
    let all = node["status"]["conditions"].as_array().unwrap().iter();
    let by_type = all.map(|condition| (condition["type"].as_str().unwrap(), condition));
    // Conditions of others than kubelets have names with a domain.
    let own: Vec<_> = by_type.filter(|(name, _)| !name.contains('/')).collect();
    let order: Vec<&str> = own.iter().map(|(name, _)| *name).collect();
    let mut lines = vec![format!("in this order: {}", order.join(", "))];
    for (name, condition) in own {
        flatten(name, condition, node, known, &["type"], &mut lines);
    }
    lines
}

fn of_lease(lease: &Value, node: &Value) -> Vec<String> {
    let owner = &lease["metadata"]["ownerReferences"][0];
    let renewed = lease["spec"]["renewTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
    let age = renewed.map(|time| Timestamp::now().duration_since(time).as_secs());
    vec![
        format!("holder is the Node's name: {}", lease["spec"]["holderIdentity"] == node["metadata"]["name"]),
        format!("duration: {}", lease["spec"]["leaseDurationSeconds"]),
        format!("owner: {}, by its UID: {}", owner["kind"], owner["uid"] == node["metadata"]["uid"]),
        format!("renewed within its duration: {}", age.is_some_and(|age| age < 40)),
    ]
}

fn metadata(node: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    // What a cloud or a class says besides, the kubelet does not: such as the type of machine.
    for (field, keys) in [
        (
            "labels",
            &[
                "kubernetes.io/arch",
                "kubernetes.io/hostname",
                "kubernetes.io/os",
                "beta.kubernetes.io/arch",
                "beta.kubernetes.io/os",
            ][..],
        ),
        ("annotations", &["volumes.kubernetes.io/controller-managed-attach-detach"][..]),
    ] {
        for key in keys {
            let value = &node["metadata"][field][key];
            let is_name = *value == node["metadata"]["name"];
            lines.push(format!("{key}: {}", if is_name { "its name".to_owned() } else { value.to_string() }));
        }
    }
    lines
}

fn resources(status: &Value) -> Vec<String> {
    let there = |field: &str| {
        let has = RESOURCES.iter().filter(|resource| status[field][resource].is_string());
        format!("{field}: {}", has.copied().collect::<Vec<_>>().join(", "))
    };
    vec![there("capacity"), there("allocatable")]
}

/// Fields and whether they say anything; versions, addresses and identifiers differ between machines.
fn status(status: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for (key, value) in status.as_object().unwrap() {
        match key.as_str() {
            // Compared by other facts, or dependent on earlier pods.
            "conditions" | "capacity" | "allocatable" | "images" => {}
            "addresses" => {
                let types = value.as_array().unwrap().iter().map(|address| address["type"].as_str().unwrap());
                lines.push(format!("addresses: {}", types.collect::<Vec<_>>().join(", ")));
            }
            "nodeInfo" => {
                for (key, value) in value.as_object().unwrap().iter().filter(|(key, _)| *key != "swap") {
                    let said = match key.as_str() {
                        "kubeletVersion" | "operatingSystem" | "architecture" => value.to_string(),
                        _ if value.as_str() == Some("") => "nothing".to_owned(),
                        _ => "something".to_owned(),
                    };
                    lines.push(format!("nodeInfo.{key}: {said}"));
                }
            }
            _ => lines.push(format!("{key}: something")),
        }
    }
    lines
}
