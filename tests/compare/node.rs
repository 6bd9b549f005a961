//! What is compared of Nodes at rest: what any kubelet says of itself, images aside. How much a machine has is its own business.

use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node, storage::v1::CSINode};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{
    facts::{Aspect, Facts, Known, flatten, staying},
    systems::Target,
};

/// How these facts are called beside those of pods.
pub const NAME: &str = "the Node";
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
