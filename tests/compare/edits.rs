//! Edits of a Node, its Lease and its `CSINode` by another client, and what is left of them later.

use std::time::Duration;

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node, storage::v1::CSINode};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    facts::{Fact, staying},
    systems::Target,
};

/// Time after an edit in which a kubelet has compared its status with the Node twice.
pub const REPAIRED: Duration = Duration::from_secs(25);

/// Places of a Node, and what another client writes there; null takes away.
fn of_nodes() -> Vec<(&'static str, Value)> {
    vec![
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

fn of_leases() -> Vec<(&'static str, Value)> {
    vec![
        ("/metadata/ownerReferences", Value::Null),
        ("/spec/holderIdentity", json!("edited")),
        ("/spec/leaseDurationSeconds", json!(99)),
    ]
}

fn of_csi_nodes() -> Vec<(&'static str, Value)> {
    vec![
        ("/metadata/annotations/storage.alpha.kubernetes.io~1migrated-plugins", json!("edited")),
        ("/metadata/ownerReferences", Value::Null),
        ("/spec/drivers", json!([{"name": "edited.example.com", "nodeID": "edited", "topologyKeys": null}])),
    ]
}

/// The objects of a node.
struct Objects {
    nodes: Api<Node>,
    leases: Api<Lease>,
    csi_nodes: Api<CSINode>,
}

impl Objects {
    fn new(client: &Client) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), "kube-node-lease"),
            csi_nodes: Api::all(client.clone()),
        }
    }

    /// The Node, its Lease and its `CSINode`; null where one is missing.
    async fn read(&self, name: &str) -> [Value; 3] {
        [
            json!(self.nodes.get_opt(name).await.unwrap()),
            json!(self.leases.get_opt(name).await.unwrap()),
            json!(self.csi_nodes.get_opt(name).await.unwrap()),
        ]
    }
}

/// The objects of a node as they were before edits.
pub struct Edited([Value; 3]);

/// Edits the objects of a node.
pub async fn edit(client: &Client, place: &Target) -> Edited {
    let objects = Objects::new(client);
    let before = objects.read(&place.node).await;
    let [node, lease, csi_node] = &before;
    // A merge patch replaces lists, so that it has whole ones.
    let edited = with_edits(
        &of_nodes(),
        json!({"metadata": {"labels": node["metadata"]["labels"]}, "status": node["status"]}),
    );
    objects.nodes.patch_status(&place.node, &PatchParams::default(), &Patch::Merge(edited)).await.unwrap();
    write(&objects.leases, &place.node, with_edits(&of_leases(), empty_edit(lease))).await;
    write(&objects.csi_nodes, &place.node, with_edits(&of_csi_nodes(), empty_edit(csi_node))).await;
    Edited(before)
}

/// A merge patch that changes nothing; null where there is no object.
fn empty_edit(object: &Value) -> Value {
    if object.is_null() { Value::Null } else { json!({"metadata": {"annotations": {}}, "spec": {}}) }
}

fn with_edits(edits: &[(&'static str, Value)], mut patch: Value) -> Value {
    for (place, value) in edits {
        let (parent, key) = place.rsplit_once('/').unwrap();
        if let Some(Value::Object(parent)) = patch.pointer_mut(parent) {
            parent.insert(key.replace("~1", "/"), value.clone());
        }
    }
    patch
}

async fn write<K>(api: &Api<K>, name: &str, patch: Value)
where
    K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    if !patch.is_null() {
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
}

impl Edited {
    /// What is left of the edits.
    pub async fn left(&self, client: &Client, place: &Target) -> Vec<Fact> {
        let after = Objects::new(client).read(&place.node).await;
        let of = |object: &Value, place: &str| object.pointer(place).cloned().unwrap_or_default();
        let kinds = [("", of_nodes()), ("Lease ", of_leases()), ("CSINode ", of_csi_nodes())];
        let mut lines = Vec::new();
        for (((kind, edits), before), after) in kinds.into_iter().zip(&self.0).zip(&after) {
            for (place, edit) in edits {
                let left = match of(after, place) {
                    _ if after.is_null() => "no object",
                    value if value == of(before, place) => "as before",
                    value if is_edit(&value, &edit) => "as edited",
                    _ => "something else",
                };
                lines.push(format!("{kind}{place}: {left}"));
            }
        }
        let added = "/status/allocatable/example.com~1added";
        lines.push(format!("{added}: {}", of(&after[0], added)));
        staying(lines)
    }
}

/// Returns true if a field is as the edit wrote it; the API server leaves out nulls within it.
fn is_edit(value: &Value, edit: &Value) -> bool {
    match (value, edit) {
        (Value::Object(value), Value::Object(edit)) => {
            edit.iter().all(|(key, edit)| is_edit(value.get(key).unwrap_or(&Value::Null), edit))
        }
        (Value::Array(values), Value::Array(edits)) => {
            values.len() == edits.len() && values.iter().zip(edits).all(|(value, edit)| is_edit(value, edit))
        }
        (value, edit) => value == edit,
    }
}
