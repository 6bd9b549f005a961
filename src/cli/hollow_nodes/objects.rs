//! NodeClass and NodeSet, as `create` applies them.

use clap::Args;
use serde_json::{Value, json};

use super::NAME;
use crate::manifest::object;

/// Registry path of the published images of upstream kubemark.
const UPSTREAM: &str = "registry.k8s.io/kubemark";

/// Kind of nodes to create, as arguments.
#[derive(Debug, Args)]
pub(super) struct Kind {
    /// Provider of the nodes' machines
    #[arg(long, value_enum, default_value_t)]
    pub(super) node_controller: NodeController,
    /// Version of upstream kubemark, which is the tag of its image; kube-node's own hollow kubelet when absent
    #[arg(long, value_name = "VERSION", env = "KUBEMARK_VERSION", value_parser = version)]
    pub(super) kubemark_version: Option<String>,
    /// Image of kubemark; its tag, if any, takes precedence over --kubemark-version
    #[arg(long, value_name = "IMAGE")]
    pub(super) image: Option<String>,
}

/// Provider of the machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum NodeController {
    /// One pod per machine, with a hollow kubelet
    #[default]
    Kubemark,
    /// Many machines in one process, without pods
    Hollow,
}

impl NodeController {
    /// Name of the NodeController in a NodeClass.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kubemark => "kubemark",
            Self::Hollow => "hollow",
        }
    }
}

impl Kind {
    /// Image of a machine that is a pod; `None` for kube-node's own, and for machines without pods.
    pub(super) fn image(&self) -> Option<String> {
        match (&self.image, &self.kubemark_version) {
            _ if self.node_controller == NodeController::Hollow => None,
            (Some(image), Some(version)) if !has_tag(image) => Some(format!("{image}:{version}")),
            (Some(image), _) => Some(image.clone()),
            (None, version) => version.as_ref().map(|version| format!("{UPSTREAM}:{version}")),
        }
    }

    /// The NodeClass as JSON.
    pub(super) fn class(&self) -> Value {
        let spec = json!({
            "nodeController": self.node_controller.name(),
            "machineType": "hollow.medium",
            "capacity": {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"},
            "reserved": {"cpu": "100m", "memory": "512Mi"},
            "provisioning": {"kubelet": {"version": self.kubemark_version}},
            "kubemark": {"image": self.image()},
        });
        object("NodeClass", NAME, spec)
    }
}

/// The NodeSet as JSON.
pub(super) fn set(replicas: i32) -> Value {
    object("NodeSet", NAME, json!({ "nodeClassName": NAME, "replicas": replicas }))
}

/// Returns true if an image name has a tag or a digest; the port of a registry is neither.
fn has_tag(image: &str) -> bool {
    image.rsplit('/').next().is_some_and(|last| last.contains([':', '@']))
}

/// Parses a version of Kubernetes in the form of `KUBEMARK_VERSION`.
fn version(text: &str) -> Result<String, String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let release = text.split(['-', '+']).next().and_then(|release| release.strip_prefix('v'));
    let parts: Vec<&str> = release.unwrap_or_default().split('.').collect();
    if parts.len() == 3 && parts.into_iter().all(is_number) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is no version of Kubernetes: write for example v1.36.3"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_node_api::{NodeClass, NodeSet};

    fn kind(node_controller: NodeController, version: Option<&str>, image: Option<&str>) -> Kind {
        Kind {
            node_controller,
            kubemark_version: version.map(str::to_owned),
            image: image.map(str::to_owned),
        }
    }

    #[test]
    fn both_objects_are_of_our_kinds() {
        for node_controller in [NodeController::Kubemark, NodeController::Hollow] {
            let class = kind(node_controller, Some("v1.36.3"), None).class();
            let read: NodeClass = serde_json::from_value(class).unwrap();
            assert_eq!(read.spec.node_controller, node_controller.name());
            assert_eq!(read.spec.kubemark.is_some(), node_controller == NodeController::Kubemark);
        }
        let set: NodeSet = serde_json::from_value(set(7)).unwrap();
        assert_eq!((set.spec.replicas, set.spec.node_class_name.as_str()), (7, NAME));
        assert!(NAME.starts_with("hollow-"), "so do the names of the nodes");
    }

    #[test]
    fn a_version_picks_the_tag() {
        let image = |version, image| kind(NodeController::Kubemark, version, image).image();
        assert_eq!(image(None, None), None, "our own");
        assert_eq!(image(Some("v1.29.0"), None).as_deref(), Some("registry.k8s.io/kubemark:v1.29.0"));
        assert_eq!(
            image(Some("v1.36.3"), Some("r:5000/kubemark")).as_deref(),
            Some("r:5000/kubemark:v1.36.3")
        );
        assert_eq!(image(Some("v1.36.3"), Some("r/kubemark:own")).as_deref(), Some("r/kubemark:own"));
        assert_eq!(image(None, Some("r/kubemark:own")).as_deref(), Some("r/kubemark:own"));
    }

    #[test]
    fn versions_are_those_of_kubernetes() {
        for good in ["v1.36.3", "v1.14.3-beta.0-2", "v1.30.0+k3s1"] {
            assert_eq!(version(good).as_deref(), Ok(good));
        }
        for bad in ["1.36.3", "v1.36", "latest", "", "v1.x.3"] {
            assert!(version(bad).unwrap_err().contains("v1.36.3"), "{bad}");
        }
    }
}
