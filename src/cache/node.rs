//! Cached form of a Node: all metadata that a whole write must send back, and the fields of spec and status
//! that are read.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube_node_api::{label_map::LabelMap, names, taints::is_initialized};
use prost::Message;
use serde::Deserialize;
use strum::IntoStaticStr;

use super::{
    InternedStr, Protobuf, View, intern,
    machine_status::{self, NodeAddress, NodeAmounts, NodeInfo},
    protobuf::{Amount, Metadata, ProtobufCondition, ProtobufTaint, at, messages},
};

/// A Node, pruned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Resource version.
    pub resource_version: String,
    /// Creation time.
    pub created: Option<Timestamp>,
    /// Time of the deletion request.
    pub deleted_at: Option<Timestamp>,
    /// All labels.
    pub labels: LabelMap,
    /// All annotations.
    pub annotations: LabelMap,
    /// All finalizers.
    pub finalizers: Vec<String>,
    /// True if the server tracks `managedFields`, and nobody needs them: no entry is of a server-side apply.
    pub has_unused_managed_fields: bool,
    /// All owner references.
    pub owners: Vec<OwnerReference>,
    /// `spec.providerID`.
    pub provider_id: Option<String>,
    /// First IPv4 block of `spec.podCIDRs`; else `spec.podCIDR`.
    pub pod_cidr: Option<String>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// All taints.
    pub taints: Vec<Taint>,
    /// Conditions, without heartbeats and most messages.
    pub conditions: Vec<ConditionView>,
    /// Version posted by a kubelet; None before its first status.
    pub kubelet_version: Option<String>,
    /// `status.nodeInfo.bootID`.
    pub boot_id: Option<String>,
    /// `status.addresses` of type `InternalIP`.
    pub internal_ip: Option<String>,
    /// `status.daemonEndpoints.kubeletEndpoint.Port`; 0 without one.
    pub kubelet_port: u16,
    /// Fingerprint of what the status says of the machine ([`machine_status::fingerprint`]).
    pub machine: u64,
    /// Capacity and allocatable resources; None for a Node without a node controller, which no hollow kubelet serves.
    pub amounts: Option<Arc<NodeAmounts>>,
}

/// Stage in the life of a Node; its name is the label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum NodeStage {
    /// No machine of the Node has reported yet.
    Provisioning,
    /// The Node is Ready.
    Ready,
    /// The Node has a machine and is not Ready.
    NotReady,
    /// The Node is being deleted.
    Leaving,
}

impl NodeStage {
    /// All stages, in this order.
    pub const ALL: [Self; 4] = [Self::Provisioning, Self::Ready, Self::NotReady, Self::Leaving];
}

/// A condition of a Node, pruned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionView {
    /// Type.
    pub r#type: InternedStr,
    /// `True`, `False` or `Unknown`.
    pub status: InternedStr,
    /// Reason.
    pub reason: InternedStr,
    /// Time of the last change of `status`.
    pub since: Option<Timestamp>,
    /// Message, of Ready and of our own conditions only: the others are never read here.
    pub message: Option<InternedStr>,
}

impl NodeView {
    /// Name of the NodeSet that the Node was created for.
    pub fn set(&self) -> Option<&str> {
        self.label(names::LABEL_NODESET)
    }

    /// Name of the NodeClass that shapes the Node's machine.
    pub fn class(&self) -> Option<&str> {
        self.label(names::LABEL_NODECLASS)
    }

    /// Value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key)
    }

    /// Condition of this type.
    pub fn condition(&self, r#type: &str) -> Option<&ConditionView> {
        self.conditions.iter().find(|condition| &*condition.r#type == r#type)
    }

    /// Returns true if the Ready condition is True.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| &*ready.status == "True")
    }

    /// Stage in the Node's life.
    pub fn stage(&self) -> NodeStage {
        if self.deleted_at.is_some() {
            NodeStage::Leaving
        } else if self.is_ready() {
            NodeStage::Ready
        } else if self.kubelet_version.is_none() {
            NodeStage::Provisioning
        } else {
            NodeStage::NotReady
        }
    }

    /// Returns true if the Node has this finalizer.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|own| own == finalizer)
    }

    /// The NodeSet that controls the Node.
    pub fn owner(&self) -> Option<&OwnerReference> {
        let ours = |owner: &&OwnerReference| {
            owner.kind == "NodeSet"
                && owner.api_version.split_once('/').is_some_and(|(group, _)| group == names::GROUP)
        };
        self.owners.iter().find(|owner| owner.controller == Some(true)).filter(ours)
    }

    /// Returns true if the Node belongs to this NodeSet or is about to: its owner and its label name the
    /// NodeSet, or its label does while nothing controls the Node and it is not being deleted.
    pub fn is_of(&self, set: &str, uid: &str) -> bool {
        let labelled = self.set() == Some(set);
        match self.owner() {
            Some(owner) => labelled && owner.uid == uid,
            None => labelled && !self.is_controlled() && self.deleted_at.is_none(),
        }
    }

    /// Returns true if cluster-autoscaler is draining the Node, to delete it.
    pub fn is_to_be_deleted(&self) -> bool {
        self.taints.iter().any(|taint| taint.key == names::TAINT_TO_BE_DELETED)
    }

    /// Returns true if the Node has taken pods once: a kubelet has initialized it, and its startup taints have been gone.
    pub fn is_initialized(&self) -> bool {
        is_initialized(self.startup_record(), &self.taints)
    }

    /// Record of the startup taints that the Node waits for.
    pub fn startup_record(&self) -> Option<&str> {
        self.annotations.get(names::ANNOTATION_STARTUP_TAINTS)
    }

    /// Returns true if a kubelet has initialized the Node and no startup taint is on it now.
    pub fn is_started(&self, startup: &[Taint]) -> bool {
        let waits = |taint: &Taint| {
            taint.key == names::TAINT_UNINITIALIZED
                || startup.iter().any(|startup| startup.key == taint.key && startup.effect == taint.effect)
        };
        !self.taints.iter().any(waits)
    }

    /// Returns true if the Node has a controller.
    pub fn is_controlled(&self) -> bool {
        self.owners.iter().any(|owner| owner.controller == Some(true))
    }
}

impl View for NodeView {
    fn key(&self) -> String {
        self.name.to_string()
    }

    /// The NodeSet that owns the Node, else the one that its label names: Nodes to adopt are found with the
    /// owned ones.
    fn index_key(&self) -> Option<&str> {
        self.owner().map(|owner| owner.name.as_str()).or_else(|| self.set())
    }

    /// The class, and the NodeSet of the label.
    fn counted_in(&self) -> Option<(&str, Option<&str>)> {
        self.class().map(|class| (class, self.set()))
    }
}

messages! {
    /// core/v1 `Node`, as the API server sends it.
    pub struct ProtobufNode {
        metadata: Option<Metadata> = 1 (message, optional);
        spec: Option<Spec> = 2 (message, optional);
        status: Option<Status> = 3 (message, optional);
    }

    struct Spec {
        #[serde(rename = "podCIDR")]
        pod_cidr: String = 1 (string);
        #[serde(rename = "providerID")]
        provider_id: String = 3 (string);
        unschedulable: bool = 4 (bool);
        taints: Vec<ProtobufTaint> = 5 (message, repeated);
        #[serde(rename = "podCIDRs")]
        pod_cidrs: Vec<String> = 7 (string, repeated);
    }

    struct Status {
        capacity: BTreeMap<String, Amount> = 1 (btree_map = "string, message");
        allocatable: BTreeMap<String, Amount> = 2 (btree_map = "string, message");
        conditions: Vec<ProtobufCondition> = 4 (message, repeated);
        addresses: Vec<NodeAddress> = 5 (message, repeated);
        daemon_endpoints: Option<DaemonEndpoints> = 6 (message, optional);
        node_info: Option<NodeInfo> = 7 (message, optional);
    }

    struct DaemonEndpoints {
        kubelet_endpoint: Option<KubeletEndpoint> = 1 (message, optional);
    }

    struct KubeletEndpoint {
        #[serde(rename = "Port")]
        port: i32 = 1 (int32);
    }
}

impl From<ProtobufNode> for NodeView {
    fn from(ProtobufNode { metadata, spec, status }: ProtobufNode) -> Self {
        let (metadata, spec) = (metadata.unwrap_or_default(), spec.unwrap_or_default());
        let status = status.unwrap_or_default();
        let info = status.node_info.unwrap_or_default();
        // Protobuf does not distinguish an unset string from an empty one, and JSON has no empty one.
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let name: Arc<str> = metadata.name.into();
        // A label repeats the Node's name: share it.
        let shared = |text: &str| if *text == *name { Arc::clone(&name) } else { intern(text) };
        let label_map = |all: &BTreeMap<String, String>| -> LabelMap {
            all.iter().map(|(key, value)| (intern(key), shared(value))).collect()
        };
        let managed_fields = metadata.managed_fields;
        let endpoint = status.daemon_endpoints.and_then(|endpoints| endpoints.kubelet_endpoint);
        let port = endpoint.map_or(0, |endpoint| endpoint.port);
        let machine = machine_status::fingerprint(&status.addresses, port, &info);
        let is_managed = metadata.labels.contains_key(names::LABEL_NODE_CONTROLLER);
        let amounts = is_managed.then(|| NodeAmounts::shared(status.capacity, status.allocatable));
        let internal_ip = status.addresses.into_iter().find(|address| address.r#type == "InternalIP");
        Self {
            uid: metadata.uid.into(),
            resource_version: metadata.resource_version,
            created: at(metadata.creation_timestamp),
            deleted_at: at(metadata.deletion_timestamp),
            labels: label_map(&metadata.labels),
            annotations: label_map(&metadata.annotations),
            finalizers: shrunk(metadata.finalizers),
            // Only a server-side apply would miss the entries.
            has_unused_managed_fields: !managed_fields.is_empty()
                && managed_fields.iter().all(|entry| entry.operation == "Update"),
            owners: shrunk(metadata.owner_references.into_iter().map(OwnerReference::from).collect()),
            provider_id: some(spec.provider_id),
            pod_cidr: spec.pod_cidrs.into_iter().find(|cidr| !cidr.contains(':')).or(some(spec.pod_cidr)),
            unschedulable: spec.unschedulable,
            taints: shrunk(spec.taints.into_iter().map(Taint::from).collect()),
            conditions: shrunk(status.conditions.into_iter().map(ConditionView::from).collect()),
            kubelet_version: some(info.kubelet_version),
            boot_id: some(info.boot_id),
            internal_ip: internal_ip.map(|address| address.address),
            // An invalid port counts as none: it must not stop the watch.
            kubelet_port: u16::try_from(port).unwrap_or_default(),
            machine,
            amounts,
            name,
        }
    }
}

impl From<ProtobufCondition> for ConditionView {
    fn from(condition: ProtobufCondition) -> Self {
        Self {
            message: (condition.r#type == "Ready" || condition.r#type.starts_with(names::GROUP))
                .then(|| intern(&condition.message)),
            r#type: intern(&condition.r#type),
            status: intern(&condition.status),
            reason: intern(&condition.reason),
            since: at(condition.last_transition_time),
        }
    }
}

/// Drops the spare capacity of parsing: most lists have one entry, and room for four.
fn shrunk<T>(mut list: Vec<T>) -> Vec<T> {
    list.shrink_to_fit();
    list
}

impl Protobuf for NodeView {
    type Message = ProtobufNode;
    const PATH: &str = "/api/v1/nodes";
    const KIND: &str = "nodes";
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keeps_what_is_read_and_copes_with_what_is_missing() {
        let bare: ProtobufNode = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        let machine = machine_status::fingerprint(&[], 0, &NodeInfo::default());
        assert_eq!(NodeView::from(bare), NodeView { name: "a".into(), machine, ..NodeView::default() });

        let node: ProtobufNode = serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "labels": {"kube-node.io/nodeset": "s"},
                         "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "m", "operation": "Update"}]},
            "spec": {"providerID": "hollow://a", "podCIDR": "fd00::/64", "podCIDRs": ["fd00::/64", "10.0.0.0/24"], "unschedulable": true,
                     "taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {"images": [{"names": ["x"]}],
                       "addresses": [{"type": "Hostname", "address": "a"}, {"type": "InternalIP", "address": "100.64.0.1"}],
                       "daemonEndpoints": {"kubeletEndpoint": {"Port": 11000}},
                       "nodeInfo": {"kubeletVersion": "v1.36.3", "bootID": "b", "osImage": "x"},
                       "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m",
                                       "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                                       "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
        }))
        .unwrap();
        let view = NodeView::from(node);
        assert!(view.is_ready() && view.unschedulable);
        assert_eq!(view.set(), Some("s"));
        assert_eq!((view.internal_ip.as_deref(), view.kubelet_port), (Some("100.64.0.1"), 11_000));
        assert_eq!(view.kubelet_version.as_deref(), Some("v1.36.3"));
        assert_eq!(view.pod_cidr.as_deref(), Some("10.0.0.0/24"));
        assert_eq!(view.taints.len(), 1);
        assert!(view.has_unused_managed_fields);
        assert_eq!(view.created.map(Timestamp::as_second), Some(1_767_225_600));
    }

    #[test]
    fn fields_are_tracked_for_those_who_apply() {
        let tracked = |operations: &[&str]| {
            let entries: Vec<_> = operations
                .iter()
                .map(|operation| json!({ "manager": "m", "operation": operation }))
                .collect();
            let node = json!({ "metadata": { "name": "a", "managedFields": entries } });
            NodeView::from(serde_json::from_value::<ProtobufNode>(node).unwrap()).has_unused_managed_fields
        };
        let seen =
            [&[][..], &["Update"], &["Update", "Update"], &["Apply"], &["Update", "Apply"]].map(tracked);
        assert_eq!(seen, [false, true, true, false, false]);
    }
}
