//! Kubernetes' protobuf, as far as kube-node's clients use it: Nodes and pods whole, of other objects the metadata; and
//! Nodes, Leases and Events in requests.

use jiff::Timestamp;
use k8s_pb::{
    api::{coordination::v1::Lease, core::v1, storage::v1::CSINode},
    apimachinery::pkg::{
        apis::meta::v1::{
            ListMeta, ObjectMeta, PartialObjectMetadata, Status, StatusCause, StatusDetails, WatchEvent,
        },
        runtime::{RawExtension, Unknown},
    },
};
use kube_ext::transport;
use kube_node_cache::{ProtobufNode, ProtobufPod};
use prost::Message;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// First bytes of the envelope.
const MAGIC: &[u8] = b"k8s\0";

/// A list whose items are encoded already. Tags of every list type of Kubernetes.
#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    items: Vec<Vec<u8>>,
}

/// An object in the envelope.
pub fn object(object: &Value) -> Vec<u8> {
    match object["kind"].as_str() {
        Some("Node") => sealed(object, &whole::<ProtobufNode>(object)),
        Some("Pod") => sealed(object, &whole::<ProtobufPod>(object)),
        Some("Status") => sealed(object, &status(object)),
        _ => sealed(object, &PartialObjectMetadata { metadata: Some(metadata(&object["metadata"])) }),
    }
}

/// A list in the envelope.
pub fn list(list: &Value) -> Vec<u8> {
    let metadata = &list["metadata"];
    let metadata = ListMeta {
        resource_version: text(&metadata["resourceVersion"]),
        r#continue: text(&metadata["continue"]),
        remaining_item_count: metadata["remainingItemCount"].as_i64(),
        ..ListMeta::default()
    };
    let items =
        list["items"].as_array().into_iter().flatten().map(|item| transport::unwrap(&object(item)).unwrap());
    sealed(list, &List { metadata: Some(metadata), items: items.collect() })
}

/// A frame of a watch with an object in the envelope.
pub fn frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let raw = Some(object.to_vec());
    let event =
        WatchEvent { r#type: Some(kind.to_owned()), object: Some(RawExtension { raw }) }.encode_to_vec();
    [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
}

fn sealed(object: &Value, message: &impl Message) -> Vec<u8> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    transport::envelope(text("apiVersion"), text("kind"), message)
}

fn whole<T: DeserializeOwned>(object: &Value) -> T {
    T::deserialize(object).unwrap()
}

fn status(status: &Value) -> Status {
    let causes = status["details"]["causes"].as_array().into_iter().flatten().map(|cause| StatusCause {
        reason: text(&cause["reason"]),
        message: text(&cause["message"]),
        field: text(&cause["field"]),
    });
    Status {
        status: text(&status["status"]),
        message: text(&status["message"]),
        reason: text(&status["reason"]),
        code: status["code"].as_i64().and_then(|code| i32::try_from(code).ok()),
        details: Some(StatusDetails { causes: causes.collect(), ..StatusDetails::default() }),
        ..Status::default()
    }
}

fn metadata(metadata: &Value) -> ObjectMeta {
    let map = |value: &Value| {
        let entries = value.as_object().into_iter().flatten();
        entries.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
    };
    ObjectMeta {
        name: text(&metadata["name"]),
        namespace: text(&metadata["namespace"]),
        uid: text(&metadata["uid"]),
        resource_version: text(&metadata["resourceVersion"]),
        labels: map(&metadata["labels"]),
        annotations: map(&metadata["annotations"]),
        ..ObjectMeta::default()
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(ToOwned::to_owned)
}

/// An object of a request; None for a kind that no client of kube-node sends so.
pub fn read(bytes: &[u8]) -> Option<Value> {
    let unknown = Unknown::decode(bytes.strip_prefix(MAGIC)?).ok()?;
    let (kind, raw) = (unknown.type_meta?.kind?, unknown.raw?);
    let mut object = match kind.as_str() {
        "Node" => node(v1::Node::decode(&*raw).ok()?),
        "Lease" => lease(Lease::decode(&*raw).ok()?),
        "Event" => event(v1::Event::decode(&*raw).ok()?),
        "CSINode" => {
            json!({ "metadata": meta(CSINode::decode(&*raw).ok()?.metadata), "spec": { "drivers": null } })
        }
        _ => return None,
    };
    prune(&mut object);
    Some(object)
}

/// Removes what protobuf does not distinguish from absence.
fn prune(value: &mut Value) {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(prune);
            map.retain(|_, value| !is_empty(value));
        }
        // An entry of managedFields is empty on purpose.
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}

fn meta(meta: Option<ObjectMeta>) -> Value {
    let meta = meta.unwrap_or_default();
    let owners = meta.owner_references.iter().map(|owner| {
        let mut reference = json!({
            "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid,
        });
        for (field, value) in
            [("controller", owner.controller), ("blockOwnerDeletion", owner.block_owner_deletion)]
        {
            reference[field] = json!(value.filter(|value| *value));
        }
        reference
    });
    json!({
        "name": meta.name, "generateName": meta.generate_name, "namespace": meta.namespace, "uid": meta.uid,
        "resourceVersion": meta.resource_version, "labels": meta.labels, "annotations": meta.annotations,
        "finalizers": meta.finalizers, "ownerReferences": owners.collect::<Vec<_>>(),
        "managedFields": meta.managed_fields.iter().map(|_| Map::new()).collect::<Vec<_>>(),
    })
}

fn node(node: v1::Node) -> Value {
    let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
    let amounts = |amounts: std::collections::BTreeMap<
        String,
        k8s_pb::apimachinery::pkg::api::resource::Quantity,
    >|
     -> Map<String, Value> {
        amounts.into_iter().map(|(name, amount)| (name, json!(amount.string))).collect()
    };
    let taints = spec.taints.iter().map(|taint| {
        let at = taint.time_added.as_ref().and_then(|at| time(at.seconds, None));
        json!({ "key": taint.key, "value": taint.value, "effect": taint.effect, "timeAdded": at })
    });
    json!({
        "metadata": meta(node.metadata),
        "spec": {
            "podCIDR": spec.pod_cidr, "podCIDRs": spec.pod_cid_rs, "providerID": spec.provider_id,
            "taints": taints.collect::<Vec<_>>(),
            "unschedulable": spec.unschedulable.filter(|unschedulable| *unschedulable),
        },
        "status": { "capacity": amounts(status.capacity), "allocatable": amounts(status.allocatable) },
    })
}

fn lease(lease: Lease) -> Value {
    let spec = lease.spec.unwrap_or_default();
    let renewed = spec.renew_time.and_then(|at| time(at.seconds, at.nanos)).map(|at| format!("{at:.6}"));
    json!({
        "metadata": meta(lease.metadata),
        "spec": {
            "holderIdentity": spec.holder_identity, "leaseDurationSeconds": spec.lease_duration_seconds,
            "renewTime": renewed,
        },
    })
}

fn event(event: v1::Event) -> Value {
    let about = event.involved_object.unwrap_or_default();
    json!({
        "metadata": meta(event.metadata),
        "involvedObject": {
            "apiVersion": about.api_version, "kind": about.kind, "name": about.name,
            "namespace": about.namespace, "uid": about.uid,
        },
        "reason": event.reason, "message": event.message, "type": event.r#type, "count": event.count,
        "reportingComponent": event.reporting_component, "reportingInstance": event.reporting_instance,
    })
}

fn time(seconds: Option<i64>, nanos: Option<i32>) -> Option<Timestamp> {
    Timestamp::new(seconds?, nanos.unwrap_or_default()).ok()
}
