//! Files of a machine in a pod of its own: the provider writes the texts, the programs of the pod read the files.
//! Hollow machines in a process with others have the same description and settings, without files.

use serde::{Deserialize, Serialize};

use crate::{ContainerDefaults, Failures, Resources};

/// File with the bootstrap kubeconfig, which holds the token for the machine's first certificate.
pub const BOOTSTRAP: &str = "bootstrap.kubeconfig";
/// File with the description of the machine: a [`MachineDescription`] as JSON.
pub const MACHINE: &str = "machine.json";
/// File with the settings that change in place: [`MachineSettings`] as JSON.
pub const SETTINGS: &str = "settings.json";

/// Description of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDescription {
    /// Name of its Node.
    pub node: String,
    /// UID of its Node.
    pub uid: String,
    /// Capacity of the machine.
    pub capacity: Resources,
    /// Part of the capacity that pods may use.
    pub allocatable: Resources,
    /// Version of its kubelet, such as `v1.36.3`.
    pub kubelet_version: String,
    /// Name and version of its container runtime, such as `containerd://2.1.0`.
    pub container_runtime: String,
    /// Commands that `/bin/sh -c` runs one after the other, before the kubelet starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

/// Settings of a machine that can change in place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineSettings {
    /// Fault injection; None for a machine that stays healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// Container behaviour where the pod does not override it.
    #[serde(default)]
    pub containers: ContainerDefaults,
    /// True to create the `CSINode` of the Node before the cluster has a `CSIDriver`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub csi_node: bool,
}
