//! The kinds of writes that are compared.

use http::{
    Method, Request,
    header::{ACCEPT, CONTENT_TYPE},
};
use k8s_pb::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo},
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ManagedFieldsEntry, MicroTime, Time},
    },
};
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::{
    bare,
    objects::{Kind, Object},
};

/// Media type of Kubernetes' protobuf envelope.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Media type of plain JSON.
pub const JSON: &str = "application/json";

/// What must be there before the write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    None,
    Created,
    /// Created, and its first status written.
    Ready,
}

/// Whether the API server tracks who wrote which field (`managedFields`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tracking {
    /// As it does by itself.
    On,
    /// This write ends it.
    Ends,
    /// An earlier write has ended it.
    Never,
}

impl Tracking {
    pub fn word(self) -> &'static str {
        match self {
            Self::On => "yes",
            Self::Ends => "until this write",
            Self::Never => "no",
        }
    }
}

/// A kind of write.
pub struct Form<T> {
    pub what: &'static str,
    /// Its form.
    pub body: &'static str,
    pub state: State,
    pub tracking: Tracking,
    pub watchers: usize,
    pub call: fn(&Object<T>) -> Call,
}

impl<T> Form<T> {
    pub fn of(
        (what, state): (&'static str, State),
        body: &'static str,
        tracking: Tracking,
        call: fn(&Object<T>) -> Call,
    ) -> Self {
        Self { what, body, state, tracking, watchers: 0, call }
    }

    fn watched(self, watchers: usize) -> Self {
        Self { watchers, ..self }
    }
}

/// A request.
#[derive(Clone)]
pub struct Call {
    pub method: Method,
    pub path: String,
    pub media: &'static str,
    pub body: Vec<u8>,
}

impl Call {
    pub fn strategic(path: String, change: &Value) -> Self {
        Self::patch(path, "application/strategic-merge-patch+json", change)
    }

    pub fn merge(path: String, change: &Value) -> Self {
        Self::patch(path, "application/merge-patch+json", change)
    }

    /// At once: no kubelet would let a pod go.
    pub fn delete_all(path: &str) -> Self {
        let body = br#"{"gracePeriodSeconds":0}"#.to_vec();
        Self { method: Method::DELETE, path: path.to_owned(), media: JSON, body }
    }

    pub fn watch(path: &str) -> Self {
        let path = format!("{path}?watch=true&resourceVersion=0&timeoutSeconds=600");
        Self { method: Method::GET, path, media: JSON, body: Vec::new() }
    }

    pub fn json(path: String, change: &Value) -> Self {
        Self::patch(path, "application/json-patch+json", change)
    }

    fn patch(path: String, media: &'static str, change: &Value) -> Self {
        Self { method: Method::PATCH, path, media, body: change.to_string().into_bytes() }
    }

    fn apply(path: &str, object: &Value) -> Self {
        Self::patch(format!("{path}?fieldManager=bench&force=true"), "application/apply-patch+yaml", object)
    }

    pub fn request(self) -> anyhow::Result<Request<Body>> {
        let request = Request::builder().method(self.method).uri(self.path);
        Ok(request.header(CONTENT_TYPE, self.media).header(ACCEPT, PROTOBUF).body(Body::from(self.body))?)
    }

    /// Does it; anything but success is an error.
    pub async fn done(self, client: &Client) -> anyhow::Result<()> {
        let (head, body) = client.send(self.request()?).await?.into_parts();
        let bytes = body.collect_bytes().await?;
        anyhow::ensure!(head.status.is_success(), "{}: {}", head.status, String::from_utf8_lossy(&bytes));
        Ok(())
    }
}

/// Writes of Nodes.
pub fn nodes() -> Vec<Form<Node>> {
    use Tracking::{Ends, Never, On};
    let create = ("creation of a Node", State::None);
    let status = ("first status of a Node", State::Created);
    let taints = ("taints of a Node", State::Ready);
    vec![
        Form::of(create, "protobuf", On, |node| post(node, PROTOBUF)),
        Form::of(create, "JSON", On, |node| post(node, JSON)),
        Form::of(status, "strategic patch", On, |node| Call::strategic(status_of(node), &bare::ready())),
        Form::of(status, "strategic patch", Never, |node| Call::strategic(status_of(node), &bare::ready())),
        Form::of(status, "merge patch", Never, |node| Call::merge(status_of(node), &bare::ready())),
        Form::of(status, "JSON patch", Never, |node| {
            let change = json!([{ "op": "replace", "path": "/status", "value": bare::ready()["status"] }]);
            Call::json(status_of(node), &change)
        }),
        Form::of(status, "PUT, JSON", Never, |node| put_status(node, JSON)),
        Form::of(status, "PUT, protobuf", Never, |node| put_status(node, PROTOBUF)),
        Form::of(status, "PUT, protobuf", On, |node| put_status(node, PROTOBUF)),
        Form::of(status, "apply", On, |node| {
            let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node.name },
                                 "status": bare::ready()["status"] });
            Call::apply(&status_of(node), &object)
        }),
        Form::of(taints, "JSON patch", On, |node| taints_off(node, false)),
        Form::of(taints, "JSON patch", Ends, |node| taints_off(node, true)),
        Form::of(taints, "JSON patch", Never, |node| taints_off(node, false)),
        Form::of(taints, "merge patch", Never, |node| {
            Call::merge(path_of(node), &json!({ "spec": { "taints": [] } }))
        }),
        Form::of(taints, "PUT, protobuf", Never, put_without_taints),
        Form::of(taints, "JSON patch", Never, |node| taints_off(node, false)).watched(4),
        Form::of(taints, "JSON patch", Never, |node| taints_off(node, false)).watched(16),
    ]
}

/// Writes of Leases.
pub fn leases() -> Vec<Form<Lease>> {
    use Tracking::{Ends, Never, On};
    let create = ("creation of a Lease", State::None);
    let renew = ("renewal of a Lease", State::Created);
    vec![
        Form::of(create, "protobuf", On, |lease| post(lease, PROTOBUF)),
        Form::of(create, "JSON", On, |lease| post(lease, JSON)),
        Form::of(renew, "PUT, protobuf", On, |lease| renewed(lease, false)),
        Form::of(renew, "PUT, protobuf", Ends, |lease| renewed(lease, true)),
        Form::of(renew, "PUT, protobuf", Never, |lease| renewed(lease, false)),
        Form::of(renew, "PUT, JSON", Never, |lease| {
            let mut json = lease.json.clone();
            json["spec"]["renewTime"] = micros().into();
            put(path_of(lease), JSON, json.to_string().into_bytes())
        }),
        Form::of(renew, "merge patch", Never, |lease| {
            Call::merge(path_of(lease), &json!({ "spec": { "renewTime": micros() } }))
        }),
        Form::of(renew, "apply", On, |lease| {
            let object = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                                 "metadata": { "name": lease.name },
                                 "spec": { "holderIdentity": lease.name, "renewTime": micros() } });
            Call::apply(&path_of(lease), &object)
        }),
        Form::of(renew, "PUT, protobuf", Never, |lease| renewed(lease, false)).watched(16),
    ]
}

fn path_of<T: Kind>(object: &Object<T>) -> String {
    format!("{}/{}", T::PATH, object.name)
}

pub fn status_of<T: Kind>(object: &Object<T>) -> String {
    format!("{}/status", path_of(object))
}

pub fn put(path: String, media: &'static str, body: Vec<u8>) -> Call {
    Call { method: Method::PUT, path, media, body }
}

fn post<T: Kind>(object: &Object<T>, media: &'static str) -> Call {
    let body = if media == JSON { object.json.to_string().into_bytes() } else { object.protobuf.sealed() };
    Call { method: Method::POST, path: T::PATH.to_owned(), media, body }
}

/// The whole Node with its first status, whatever its version: the controller-manager writes annotations meanwhile.
fn put_status(node: &Object<Node>, media: &'static str) -> Call {
    let body = if media == JSON {
        let mut json = node.json.clone();
        json["status"] = bare::ready()["status"].take();
        json["metadata"]["resourceVersion"].take();
        json.to_string().into_bytes()
    } else {
        let mut protobuf = node.protobuf.clone();
        protobuf.status = Some(ready_status());
        protobuf.metadata().resource_version = None;
        protobuf.sealed()
    };
    put(status_of(node), media, body)
}

/// The same status as [`bare::ready`]'s.
fn ready_status() -> NodeStatus {
    let status = bare::ready()["status"].take();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let amounts = |field: &str| {
        let amounts = status[field].as_object().into_iter().flatten();
        amounts.map(|(name, amount)| (name.clone(), Quantity { string: text(amount) })).collect()
    };
    let now = jiff::Timestamp::now();
    let time = Some(Time { seconds: Some(now.as_second()), nanos: None });
    let conditions = status["conditions"].as_array().into_iter().flatten().map(|condition| NodeCondition {
        r#type: text(&condition["type"]),
        status: text(&condition["status"]),
        reason: text(&condition["reason"]),
        message: text(&condition["message"]),
        last_heartbeat_time: time,
        last_transition_time: time,
    });
    let addresses = status["addresses"].as_array().into_iter().flatten();
    let addresses = addresses
        .map(|address| NodeAddress { r#type: text(&address["type"]), address: text(&address["address"]) });
    let info = &status["nodeInfo"];
    NodeStatus {
        capacity: amounts("capacity"),
        allocatable: amounts("allocatable"),
        conditions: conditions.collect(),
        addresses: addresses.collect(),
        node_info: Some(NodeSystemInfo {
            machine_id: text(&info["machineID"]),
            system_uuid: text(&info["systemUUID"]),
            boot_id: text(&info["bootID"]),
            kernel_version: text(&info["kernelVersion"]),
            os_image: text(&info["osImage"]),
            container_runtime_version: text(&info["containerRuntimeVersion"]),
            kubelet_version: text(&info["kubeletVersion"]),
            kube_proxy_version: text(&info["kubeProxyVersion"]),
            operating_system: text(&info["operatingSystem"]),
            architecture: text(&info["architecture"]),
            ..NodeSystemInfo::default()
        }),
        ..NodeStatus::default()
    }
}

fn taints_off(node: &Object<Node>, ends: bool) -> Call {
    let mut change = vec![
        json!({ "op": "test", "path": "/metadata/uid", "value": node.json["metadata"]["uid"] }),
        json!({ "op": "test", "path": "/spec/taints", "value": node.json["spec"]["taints"] }),
        json!({ "op": "replace", "path": "/spec/taints", "value": [] }),
    ];
    if ends {
        change.push(json!({ "op": "add", "path": "/metadata/managedFields", "value": [{}] }));
    }
    Call::json(path_of(node), &Value::Array(change))
}

fn put_without_taints(node: &Object<Node>) -> Call {
    let mut protobuf = node.protobuf.clone();
    protobuf.spec.get_or_insert_default().taints.clear();
    protobuf.metadata().resource_version = None;
    put(path_of(node), PROTOBUF, protobuf.sealed())
}

fn renewed(lease: &Object<Lease>, ends: bool) -> Call {
    let mut protobuf = lease.protobuf.clone();
    let now = jiff::Timestamp::now();
    protobuf.spec.get_or_insert_default().renew_time =
        Some(MicroTime { seconds: Some(now.as_second()), nanos: Some(now.subsec_nanosecond()) });
    if ends {
        protobuf.metadata().managed_fields = vec![ManagedFieldsEntry::default()];
    }
    put(path_of(lease), PROTOBUF, protobuf.sealed())
}

fn micros() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}
