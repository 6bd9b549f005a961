//! Pruned pods of machines.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube_node_api::names;
use kube_node_cache::View;

use super::health::{self, Health};
use crate::provider::{MachineId, Trouble};

/// The pod of a machine.
#[derive(Clone, Debug)]
pub struct MachinePod {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Identity of the machine.
    pub id: MachineId,
    /// True if the pod is being deleted.
    pub leaving: bool,
    /// Health of the pod.
    pub health: Health,
    /// Last end of a container that runs again.
    pub last_end: Option<Trouble>,
    /// Settings that the pod was given last.
    pub settings: Option<String>,
}

/// Maximum length of an annotation of ours, in bytes, and of a text about a pod. A hosting cluster may show longer ones, which
/// are not kept.
const TEXT_MAX: usize = 16 << 10;

impl From<Pod> for MachinePod {
    fn from(pod: Pod) -> Self {
        let annotation =
            |name: &str| pod.annotations().get(name).filter(|text| text.len() <= TEXT_MAX).cloned();
        Self {
            id: MachineId {
                uid: pod.labels().get(names::LABEL_NODE_UID).cloned().unwrap_or_default().into(),
                node: annotation(names::ANNOTATION_NODE).unwrap_or_default().into(),
            },
            leaving: pod.metadata.deletion_timestamp.is_some(),
            health: health::of(&pod),
            last_end: health::last_end(&pod),
            settings: annotation(names::ANNOTATION_SETTINGS),
            uid: pod.uid().unwrap_or_default(),
            name: pod.name_any(),
        }
    }
}

/// Indexed by the UID of its Node. A hosting cluster has all its machines in one namespace.
impl View for MachinePod {
    fn key(&self) -> String {
        self.name.clone()
    }

    fn index_key(&self) -> Option<&str> {
        Some(&self.id.uid)
    }
}
