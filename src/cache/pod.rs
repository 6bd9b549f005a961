//! What is kept of a pod that is bound to a Node.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, de::IgnoredAny};

use super::{PodStatus, View, pod_status::WireStatus};
use crate::api::names;

/// Annotation of a pod that mirrors a file of its Node: nobody but the kubelet can move it.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod, pruned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    /// Namespace.
    pub namespace: Arc<str>,
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
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// Containers, in their order.
    pub containers: Box<[Container]>,
    /// Init containers, in their order.
    pub init_containers: Box<[Container]>,
    /// What happens when a container ends.
    pub restart_policy: RestartPolicy,
    /// Whether it has the address of its Node.
    pub host_network: bool,
    /// Conditions of others without which it is not Ready.
    pub readiness_gates: Box<[Box<str>]>,
    /// What its annotations say about how its hollow containers run.
    pub scripts: Scripts,
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

/// A container as the spec has it, pruned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name.
    pub name: Box<str>,
    /// Image.
    pub image: Box<str>,
    /// `restartPolicy` of its own: `Always` makes an init container a sidecar.
    pub restart_policy: Option<RestartPolicy>,
}

/// What happens when a container ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum RestartPolicy {
    /// It starts again.
    #[default]
    Always,
    /// It starts again after a failure.
    OnFailure,
    /// It stays as it is.
    Never,
}

/// Annotations of a pod that tell how its hollow containers run, as they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scripts {
    /// How long a container runs.
    pub run_time: Option<Box<str>>,
    /// Its exit code.
    pub exit_code: Option<Box<str>>,
    /// How long it takes to stop.
    pub stop_time: Option<Box<str>>,
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

/// A pod as the watch delivers it.
#[derive(Clone, Debug, Deserialize)]
pub struct WirePod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: String,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    restart_policy: RestartPolicy,
    host_network: bool,
    readiness_gates: Vec<Gate>,
    priority: i32,
    volumes: Vec<Volume>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Gate {
    condition_type: Box<str>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    empty_dir: Option<IgnoredAny>,
}

impl From<WirePod> for PodView {
    fn from(WirePod { metadata, spec, status }: WirePod) -> Self {
        let annotations: &BTreeMap<String, String> =
            metadata.annotations.as_ref().unwrap_or(const { &BTreeMap::new() });
        let script = |name| annotations.get(name).map(|value| value.as_str().into());
        let mut owners = metadata.owner_references.iter().flatten();
        let maker = match owners.find(|owner| owner.controller == Some(true)) {
            _ if annotations.contains_key(MIRROR) => Maker::Kubelet,
            Some(owner) if owner.kind == "DaemonSet" => Maker::DaemonSet,
            Some(_) => Maker::Controller,
            None => Maker::Nobody,
        };
        Self {
            maker,
            opted_out: annotations.get(names::ANNOTATION_DO_NOT_EVICT).is_some_and(|value| value != "false"),
            has_empty_dir: spec.volumes.iter().any(|volume| volume.empty_dir.is_some()),
            priority: spec.priority,
            scripts: Scripts {
                run_time: script(names::ANNOTATION_RUN_TIME),
                exit_code: script(names::ANNOTATION_EXIT_CODE),
                stop_time: script(names::ANNOTATION_STOP_TIME),
            },
            namespace: metadata.namespace.unwrap_or_default().into(),
            name: metadata.name.unwrap_or_default().into(),
            uid: metadata.uid.unwrap_or_default().into(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            node: spec.node_name.into(),
            deleted_at: metadata.deletion_timestamp.map(|time| time.0),
            grace_seconds: metadata.deletion_grace_period_seconds,
            generation: metadata.generation,
            containers: spec.containers.into(),
            init_containers: spec.init_containers.into(),
            restart_policy: spec.restart_policy,
            host_network: spec.host_network,
            readiness_gates: spec.readiness_gates.into_iter().map(|gate| gate.condition_type).collect(),
            status: status.into(),
        }
    }
}

impl Resource for WirePod {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
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
