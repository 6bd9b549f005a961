//! What is kept of a pod that is bound to a Node.

use std::sync::Arc;

use jiff::Timestamp;
use prost::Message;
use serde::Deserialize;

use super::{
    PodSpecView, PodStatus, Protobuf, View, Word,
    pod_status::WireStatus,
    pod_wire::{Volume, WireSpec},
    wire::{Metadata, at},
    word,
};
use crate::api::names;

/// Annotation of a pod that mirrors a file of its Node: nobody but the kubelet can move it.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Priority from which on a pod is critical: that of the class `system-cluster-critical`.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// A pod, pruned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    /// Namespace.
    pub namespace: Word,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Version of this state.
    pub resource_version: String,
    /// The Node it is bound to.
    pub node: Arc<str>,
    /// When it is to be gone: its deletion was asked for, and this includes its grace.
    pub deleted_at: Option<Timestamp>,
    /// The grace of that deletion, in seconds.
    pub grace_seconds: Option<i64>,
    /// Who would make it again.
    pub maker: Maker,
    /// Whether it says that no drain is to evict it.
    pub opted_out: bool,
    /// Whether it has a volume of type emptyDir.
    pub has_empty_dir: bool,
    /// `spec.priority`; 0 where there is none.
    pub priority: i32,
    /// What the volume of its token is called after [`super::TOKEN_VOLUME`]; None where it has none.
    pub token: Option<[u8; 5]>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// What a kubelet goes by.
    pub spec: Arc<PodSpecView>,
    /// Its status.
    pub status: PodStatus,
}

/// Who would make a pod again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Maker {
    /// Nobody.
    #[default]
    Nobody,
    /// A controller, on whatever Node.
    Controller,
    /// A DaemonSet, on the same Node.
    DaemonSet,
    /// The kubelet, from a file of its Node.
    Kubelet,
}

impl PodView {
    /// Whether it has run to its end.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(&*self.status.phase, "Succeeded" | "Failed")
    }

    /// Whether it stays on its Node to the end: a DaemonSet would make it again there, and a mirror pod has no other
    /// place.
    #[must_use]
    pub fn stays(&self) -> bool {
        matches!(self.maker, Maker::DaemonSet | Maker::Kubelet)
    }

    /// Whether others may have to make room for it: the node or the cluster depends on it.
    #[must_use]
    pub fn is_critical(&self) -> bool {
        self.maker == Maker::Kubelet || self.priority >= SYSTEM_CRITICAL
    }

    /// Whether a drain has to wait for it: finished ones hold nothing up either.
    #[must_use]
    pub fn holds_up_drain(&self) -> bool {
        !self.stays() && !self.is_finished()
    }
}

impl View for PodView {
    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn group(&self) -> Option<&str> {
        Some(&self.node)
    }
}

/// core/v1 `Pod`, as the API server sends it.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[prost(prost_path = "crate::cache::lossy")]
#[serde(default)]
pub struct WirePod {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    spec: Option<WireSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<WireStatus>,
}

/// core/v1 `PodList`, as the API server sends it.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "crate::cache::lossy")]
pub struct WirePods {
    /// Pods.
    #[prost(message, repeated, tag = "2")]
    pub items: Vec<WirePod>,
}

impl From<WirePod> for PodView {
    fn from(WirePod { metadata, spec, status }: WirePod) -> Self {
        let (metadata, spec) = (metadata.unwrap_or_default(), spec.unwrap_or_default());
        let annotations = &metadata.annotations;
        let told = annotations.iter().filter(|(name, _)| name.starts_with(names::HOLLOW_PREFIX));
        let told = told.map(|(name, value)| (name.as_str().into(), value.as_str().into()));
        let mut owners = metadata.owner_references.iter();
        let maker = match owners.find(|owner| owner.controller == Some(true)) {
            _ if annotations.contains_key(MIRROR) => Maker::Kubelet,
            Some(owner) if owner.kind == "DaemonSet" => Maker::DaemonSet,
            Some(_) => Maker::Controller,
            None => Maker::Nobody,
        };
        Self {
            maker,
            opted_out: annotations.get(names::ANNOTATION_DO_NOT_EVICT).is_some_and(|value| value != "false"),
            has_empty_dir: spec.volumes.iter().any(Volume::is_empty_dir),
            priority: spec.priority,
            token: spec.token(),
            namespace: word(&metadata.namespace),
            name: metadata.name.into(),
            uid: metadata.uid.into(),
            resource_version: metadata.resource_version,
            node: spec.node_name.as_str().into(),
            deleted_at: at(metadata.deletion_timestamp),
            grace_seconds: metadata.deletion_grace_period_seconds,
            generation: metadata.generation.filter(|generation| *generation != 0),
            spec: spec.view(told.collect()),
            status: status.unwrap_or_default().into(),
        }
    }
}

impl Protobuf for PodView {
    type Wire = WirePod;
    const PATH: &str = "/api/v1/pods";
    const KIND: &str = "pods";
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(pod: Value) -> PodView {
        PodView::from(serde_json::from_value::<WirePod>(pod).unwrap())
    }

    #[test]
    fn keeps_what_a_drain_asks_for() {
        let bare = view(json!({"metadata": {"name": "a"}}));
        assert!(!bare.opted_out && !bare.has_empty_dir);
        assert_eq!((bare.maker, bare.priority), (Maker::Nobody, 0));
        let owners = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
        let pod = view(json!({
            "metadata": {"name": "a", "ownerReferences": owners, "annotations": {"kube-node.io/do-not-evict": ""}},
            "spec": {"priority": -7, "volumes": [{"name": "token", "projected": {}}, {"name": "tmp", "emptyDir": {}}]},
        }));
        assert!(pod.opted_out && pod.has_empty_dir && pod.holds_up_drain());
        assert_eq!((pod.maker, pod.priority), (Maker::Controller, -7));
        let no = json!({"metadata": {"name": "a", "annotations": {"kube-node.io/do-not-evict": "false"}}});
        assert!(!view(no).opted_out);
    }
}
