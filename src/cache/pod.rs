//! Cached form of a pod that is bound to a Node.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use kube_node_api::names;
use prost::Message;
use serde::Deserialize;

use super::{
    InternedStr, PodSpecView, PodStatus, Protobuf, Reference, View, intern,
    pod_protobuf::ProtobufSpec,
    pod_references::Volume,
    pod_status::ProtobufStatus,
    protobuf::{Metadata, at, messages},
};

/// Annotation of a mirror pod, which only the kubelet of its Node can move.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Annotations that set the behaviour of hollow containers. Each may end with a dot and the name of a
/// container.
pub const HOLLOW_ANNOTATIONS: [&str; 13] = [
    names::ANNOTATION_START_TIME,
    names::ANNOTATION_IMAGE_ERROR,
    names::ANNOTATION_START_ERROR,
    names::ANNOTATION_READY_TIME,
    names::ANNOTATION_RUN_TIME,
    names::ANNOTATION_EXIT_CODE,
    names::ANNOTATION_EXIT_REASON,
    names::ANNOTATION_STOP_TIME,
    names::ANNOTATION_LOG_LINE,
    names::ANNOTATION_LOG_INTERVAL,
    names::ANNOTATION_CPU,
    names::ANNOTATION_MEMORY,
    names::ANNOTATION_EXEC_EXIT_CODE,
];
/// Longest value of such an annotation, in bytes.
pub const LONGEST_ANNOTATION: usize = 4 << 10;
/// Limit on such annotations kept per pod, keys included, in bytes: a pod may have 256 KiB of annotations.
const MOST_ANNOTATIONS: usize = 16 << 10;
/// Maximum number of invalid annotations per pod whose keys are kept, to report them to users.
const MOST_MISTAKES: usize = 4;

/// Lowest priority of a critical pod: that of the class `system-cluster-critical`.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// A pod, pruned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    /// Namespace.
    pub namespace: InternedStr,
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Resource version.
    pub resource_version: String,
    /// Name of the Node that the pod is bound to.
    pub node: Arc<str>,
    /// Deletion time, which includes the grace period.
    pub deleted_at: Option<Timestamp>,
    /// Grace period of the deletion, in seconds.
    pub grace_seconds: Option<i64>,
    /// Controller that would create the pod again.
    pub controller: PodOwner,
    /// True if an annotation exempts the pod from eviction by drains.
    pub opted_out: bool,
    /// True if the pod has an `emptyDir` volume.
    pub has_empty_dir: bool,
    /// `spec.priority`; 0 where there is none.
    pub priority: i32,
    /// Name of the token volume, after its prefix [`super::TOKEN_VOLUME`]; None without such a volume.
    pub token: Option<[u8; 5]>,
    /// Objects without which the pod cannot start.
    pub references: Arc<[Reference]>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// Fields of the spec that a kubelet reads.
    pub spec: Arc<PodSpecView>,
    /// Status.
    pub status: PodStatus,
}

/// Controller that would create a pod again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodOwner {
    /// Nobody.
    #[default]
    Nobody,
    /// A controller, on any Node.
    Controller,
    /// A DaemonSet, on the same Node.
    DaemonSet,
    /// The kubelet, from a file of its Node (mirror pod).
    Kubelet,
}

impl PodView {
    /// Returns true if the pod has run to its end.
    pub fn is_finished(&self) -> bool {
        matches!(&*self.status.phase, "Succeeded" | "Failed")
    }

    /// Returns true if a drain leaves the pod on its Node: its DaemonSet would create it there again, and a
    /// mirror pod cannot move.
    pub fn stays(&self) -> bool {
        matches!(self.controller, PodOwner::DaemonSet | PodOwner::Kubelet)
    }

    /// Returns true if other pods may be preempted for this one: the node or the cluster depends on it.
    pub fn is_critical(&self) -> bool {
        self.controller == PodOwner::Kubelet || self.priority >= SYSTEM_CRITICAL
    }

    /// Returns true if a drain has to wait for the pod. A finished pod holds up no drain.
    pub fn holds_up_drain(&self) -> bool {
        !self.stays() && !self.is_finished()
    }
}

impl View for PodView {
    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn index_key(&self) -> Option<&str> {
        Some(&self.node)
    }

    /// The Node, for a pod that its drain has to wait for.
    fn counted_in(&self) -> Option<(&str, Option<&str>)> {
        self.holds_up_drain().then_some((&self.node, None))
    }
}

messages! {
    /// core/v1 `Pod`, as the API server sends it.
    pub struct ProtobufPod {
        metadata: Option<Metadata> = 1 (message, optional);
        spec: Option<ProtobufSpec> = 2 (message, optional);
        status: Option<ProtobufStatus> = 3 (message, optional);
    }
    /// core/v1 `PodList`, as the API server sends it.
    pub struct ProtobufPods {
        /// Pods.
        pub items: Vec<ProtobufPod> = 2 (message, repeated);
    }
}

impl From<ProtobufPod> for PodView {
    fn from(ProtobufPod { metadata, spec, status }: ProtobufPod) -> Self {
        let (metadata, spec) = (metadata.unwrap_or_default(), spec.unwrap_or_default());
        let annotations = &metadata.annotations;
        let hollow = hollow_annotations(annotations, |container| spec.has_container(container));
        let mut owners = metadata.owner_references.iter();
        let controller = match owners.find(|owner| owner.controller == Some(true)) {
            _ if annotations.contains_key(MIRROR) => PodOwner::Kubelet,
            Some(owner) if owner.kind == "DaemonSet" => PodOwner::DaemonSet,
            Some(_) => PodOwner::Controller,
            None => PodOwner::Nobody,
        };
        Self {
            controller,
            opted_out: annotations.get(names::ANNOTATION_DO_NOT_EVICT).is_some_and(|value| value != "false"),
            has_empty_dir: spec.volumes.iter().any(Volume::is_empty_dir),
            priority: spec.priority,
            token: spec.token(),
            references: spec.references(),
            namespace: intern(&metadata.namespace),
            name: metadata.name.into(),
            uid: metadata.uid.into(),
            resource_version: metadata.resource_version,
            node: spec.node_name.as_str().into(),
            deleted_at: at(metadata.deletion_timestamp),
            grace_seconds: metadata.deletion_grace_period_seconds,
            generation: metadata.generation.filter(|generation| *generation != 0),
            spec: spec.view(hollow),
            status: status.unwrap_or_default().into(),
        }
    }
}

/// Splits the key of an annotation into its name and its container; None stands for all containers.
pub fn hollow_annotation(key: &str) -> (&str, Option<&str>) {
    let end = key.rfind('/').and_then(|slash| Some(slash + key[slash..].find('.')?));
    end.map_or((key, None), |dot| (&key[..dot], Some(&key[dot + 1..])))
}

/// Annotations of hollow containers, within limits. An unknown one, or one that is too long, is kept with an
/// empty value.
fn hollow_annotations(
    annotations: &BTreeMap<String, String>,
    has_container: impl Fn(&str) -> bool,
) -> Box<[(Box<str>, Box<str>)]> {
    let (mut left, mut mistakes) = (MOST_ANNOTATIONS, MOST_MISTAKES);
    let hollow = annotations.iter().filter(|(key, _)| key.starts_with(names::HOLLOW_PREFIX));
    let relevant = hollow.filter_map(|(key, value)| {
        let (name, container) = hollow_annotation(key);
        let is_valid = HOLLOW_ANNOTATIONS.contains(&name) && container.is_none_or(&has_container);
        let rest = left.checked_sub(key.len() + value.len()).filter(|_| value.len() <= LONGEST_ANNOTATION);
        if let Some(rest) = rest.filter(|_| is_valid) {
            left = rest;
            return Some((key.as_str().into(), value.as_str().into()));
        }
        mistakes = mistakes.checked_sub(1)?;
        Some((key.as_str().into(), Box::default()))
    });
    relevant.collect()
}

impl Protobuf for PodView {
    type Message = ProtobufPod;
    const PATH: &str = "/api/v1/pods";
    const KIND: &str = "pods";
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(pod: Value) -> PodView {
        PodView::from(serde_json::from_value::<ProtobufPod>(pod).unwrap())
    }

    #[test]
    fn keeps_what_a_drain_asks_for() {
        let bare = view(json!({"metadata": {"name": "a"}}));
        assert!(!bare.opted_out && !bare.has_empty_dir);
        assert_eq!((bare.controller, bare.priority), (PodOwner::Nobody, 0));
        let owners = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
        let pod = view(json!({
            "metadata": {"name": "a", "ownerReferences": owners, "annotations": {"kube-node.io/do-not-evict": ""}},
            "spec": {"priority": -7, "volumes": [{"name": "token", "projected": {}}, {"name": "tmp", "emptyDir": {}}]},
        }));
        assert!(pod.opted_out && pod.has_empty_dir && pod.holds_up_drain());
        assert_eq!((pod.controller, pod.priority), (PodOwner::Controller, -7));
        let no = json!({"metadata": {"name": "a", "annotations": {"kube-node.io/do-not-evict": "false"}}});
        assert!(!view(no).opted_out);
    }

    #[test]
    fn of_hostile_annotations_little_is_kept() {
        let full = |key: &str| format!("{}{key}", names::HOLLOW_PREFIX);
        let cached = |annotations: BTreeMap<String, String>| {
            let pod = json!({"metadata": {"name": "a", "annotations": annotations}, "spec": {"containers": [{"name": "c"}]}});
            view(pod).spec.hollow_annotations.clone()
        };
        let size = |cached: &[(Box<str>, Box<str>)]| {
            cached.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
        };
        let large = "x".repeat(LONGEST_ANNOTATION + 1);
        // Valid annotations are kept, however many others there are.
        let mut mixed: BTreeMap<_, _> =
            (0..3_000).map(|n| (full(&format!("a{n}")), "y".repeat(60))).collect();
        mixed.insert(full("run-time"), "5s".to_owned());
        mixed.insert(full("run-time.c"), "6s".to_owned());
        mixed.insert(full("log-line"), large.clone());
        let mixed = cached(mixed);
        let value = |key: &str| mixed.iter().find(|(own, _)| **own == *full(key)).map(|(_, value)| &**value);
        assert_eq!((value("run-time"), value("run-time.c")), (Some("5s"), Some("6s")));
        assert_eq!(mixed.len(), 2 + MOST_MISTAKES);
        assert!(size(&mixed) < 1_024, "{}", size(&mixed));
        // An annotation that is too long is cached with an empty value.
        assert_eq!(*cached([(full("log-line"), large)].into()), [(full("log-line").into(), "".into())]);
        // The limits hold for annotations of missing containers, and for many containers.
        let suffixed = |n: usize| (full(&format!("log-line.c{n}")), "z".repeat(50));
        assert_eq!(cached((0..3_000).map(suffixed).collect()).len(), MOST_MISTAKES);
        let containers: Vec<Value> = (0..60).map(|n| json!({"name": format!("c{n}")})).collect();
        let annotations: BTreeMap<_, _> =
            (0..60).map(|n| (full(&format!("log-line.c{n}")), "z".repeat(LONGEST_ANNOTATION))).collect();
        let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": containers}});
        let cached = view(pod).spec.hollow_annotations.clone();
        assert!(size(&cached) <= MOST_ANNOTATIONS + 1_024, "{}", size(&cached));
    }
}
