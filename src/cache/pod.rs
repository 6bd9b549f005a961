//! What is kept of a pod that is bound to a Node.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde::Deserialize;

use super::View;

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
    /// Whether a DaemonSet controls it.
    pub of_daemon_set: bool,
    /// Whether it mirrors a file of its Node.
    pub is_mirror: bool,
    /// `status.phase`.
    pub phase: String,
}

impl PodView {
    /// Whether it has run to its end.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether a drain has to wait for it: pods of DaemonSets and mirror pods stay, finished ones hold nothing up.
    #[must_use]
    pub fn holds_up_drain(&self) -> bool {
        !self.of_daemon_set && !self.is_mirror && !self.is_finished()
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
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

impl From<WirePod> for PodView {
    fn from(WirePod { metadata, spec, status }: WirePod) -> Self {
        let controlled_by =
            |owner: &OwnerReference, kind| owner.controller == Some(true) && owner.kind == kind;
        let annotations: &BTreeMap<String, String> =
            metadata.annotations.as_ref().unwrap_or(const { &BTreeMap::new() });
        Self {
            of_daemon_set: metadata
                .owner_references
                .iter()
                .flatten()
                .any(|owner| controlled_by(owner, "DaemonSet")),
            is_mirror: annotations.contains_key(MIRROR),
            namespace: metadata.namespace.unwrap_or_default().into(),
            name: metadata.name.unwrap_or_default().into(),
            uid: metadata.uid.unwrap_or_default().into(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            node: spec.node_name.into(),
            deleted_at: metadata.deletion_timestamp.map(|time| time.0),
            grace_seconds: metadata.deletion_grace_period_seconds,
            phase: status.phase,
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
