//! NodeClass and NodeSet, as `create` applies them.

use clap::Args;
use kube_node_api::{NodeClass, taints};
use serde_json::{Value, json};

use super::NAME;
use crate::manifest::object;

/// Registry path of the published images of upstream kubemark.
const UPSTREAM: &str = "registry.k8s.io/kubemark";

/// Kind of nodes to create, as arguments.
#[derive(Debug, Args)]
pub(super) struct Kind {
    /// Provider of the nodes' machines; kubemark if --kubemark-version or --image is given, else hollow
    #[arg(long, value_enum)]
    pub(super) node_controller: Option<NodeController>,
    /// Version of upstream kubemark, which is the tag of its image; kube-node's own hollow kubelet when absent
    #[arg(long, value_name = "VERSION", env = "KUBEMARK_VERSION", value_parser = version)]
    pub(super) kubemark_version: Option<String>,
    /// Image of kubemark; its tag, if any, takes precedence over --kubemark-version
    #[arg(long, value_name = "IMAGE")]
    pub(super) image: Option<String>,
    /// Leave out the taint kube-node.io/hollow:NoSchedule, which the nodes get in a cluster with other nodes
    #[arg(long)]
    pub(super) no_taint: bool,
}

/// Provider of the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum NodeController {
    /// Many machines in one process, without pods
    Hollow,
    /// One pod per machine, with a hollow kubelet
    Kubemark,
}

impl NodeController {
    /// The controller of this name; `None` for that of a third party.
    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::Hollow, Self::Kubemark].into_iter().find(|own| own.name() == name)
    }

    /// Name of the NodeController in a NodeClass.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kubemark => "kubemark",
            Self::Hollow => "hollow",
        }
    }
}

impl Kind {
    /// Provider of the machines: a version or an image of kubemark asks for kubemark.
    pub(super) fn node_controller(&self) -> NodeController {
        let is_kubemark = self.kubemark_version.is_some() || self.image.is_some();
        let default = if is_kubemark { NodeController::Kubemark } else { NodeController::Hollow };
        self.node_controller.unwrap_or(default)
    }

    /// Image of a machine that is a pod; `None` for kube-node's own, and for machines without pods.
    pub(super) fn image(&self) -> Option<String> {
        match (&self.image, &self.kubemark_version) {
            _ if self.node_controller() == NodeController::Hollow => None,
            (Some(image), Some(version)) if !has_tag(image) => Some(format!("{image}:{version}")),
            (Some(image), _) => Some(image.clone()),
            (None, version) => version.as_ref().map(|version| format!("{UPSTREAM}:{version}")),
        }
    }

    /// The NodeClass as JSON. Beside other nodes a taint keeps pods with real containers off hollow nodes.
    pub(super) fn class(&self, is_beside_others: bool) -> Value {
        let is_tainted = is_beside_others && !self.no_taint;
        let mut class = machine();
        class["spec"]["nodeController"] = json!(self.node_controller().name());
        class["spec"]["provisioning"] = json!({"kubelet": {"version": self.kubemark_version}});
        class["spec"]["kubemark"] = json!({"image": self.image()});
        class["spec"]["template"] = json!({"taints": Vec::from_iter(is_tainted.then(taint))});
        object("NodeClass", NAME, class["spec"].take())
    }

    /// Merge patch with what the given arguments change in an existing NodeClass; `None` without a change.
    pub(super) fn change(&self, class: &NodeClass) -> Option<Value> {
        let mut spec = json!({});
        let kubelet = class.spec.provisioning.as_ref().and_then(|provisioning| provisioning.kubelet.as_ref());
        if let Some(version) = &self.kubemark_version
            && kubelet.is_none_or(|kubelet| kubelet.version != *version)
        {
            spec["provisioning"]["kubelet"]["version"] = json!(version);
        }
        let there = class.spec.kubemark.as_ref().and_then(|kubemark| kubemark.image.clone());
        let wanted = self.image().filter(|image| there.as_ref() != Some(image));
        if let Some(image) = wanted {
            spec["kubemark"]["image"] = json!(image);
        }
        if self.no_taint && has_taint(class) {
            let all = class.spec.template.iter().flat_map(|template| &template.taints);
            let others: Vec<_> = all.filter(|taint| taint.key != taints::HOLLOW).collect();
            spec["template"]["taints"] = json!(others);
        }
        (spec != json!({}))
            .then(|| json!({"metadata": {"resourceVersion": class.metadata.resource_version}, "spec": spec}))
    }
}

/// Fields of the NodeClass that no argument sets.
pub(super) fn machine() -> Value {
    json!({"spec": {
        "machineType": "hollow.medium",
        "capacity": {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"},
        "reserved": {"cpu": "100m", "memory": "512Mi"},
    }})
}

fn taint() -> Value {
    json!({"key": taints::HOLLOW, "effect": "NoSchedule"})
}

/// Returns true if the nodes of a class keep pods with real containers away.
pub(super) fn has_taint(class: &NodeClass) -> bool {
    let mut all = class.spec.template.iter().flat_map(|template| &template.taints);
    all.any(|taint| taint.key == taints::HOLLOW)
}

/// Sentence about an existing class without the taint beside other nodes, with the command that adds the taint.
pub(super) fn untainted(class: &NodeClass) -> String {
    let there = class.spec.template.iter().flat_map(|template| &template.taints);
    let taints: Vec<Value> = there.map(|taint| json!(taint)).chain([taint()]).collect();
    let patch = json!({"spec": {"template": {"taints": taints}}});
    format!(
        "NodeClass {NAME} stays without the taint {}:NoSchedule, which keeps pods of other nodes away; to add the taint: kubectl patch nodeclass {NAME} --type=merge -p '{patch}'",
        taints::HOLLOW
    )
}

/// The NodeSet as JSON.
pub(super) fn set(replicas: i32) -> Value {
    object("NodeSet", NAME, json!({ "nodeClassName": NAME, "replicas": replicas }))
}

/// Returns true if an image name has a tag or a digest; the port of a registry is neither.
pub(crate) fn has_tag(image: &str) -> bool {
    image.rsplit('/').next().is_some_and(|last| last.contains([':', '@']))
}

/// Parses a version of Kubernetes in the form of `KUBEMARK_VERSION`.
pub(crate) fn version(text: &str) -> Result<String, String> {
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
    use kube_node_api::NodeSet;

    fn kind(node_controller: Option<NodeController>, version: Option<&str>, image: Option<&str>) -> Kind {
        let [kubemark_version, image] = [version, image].map(|text| text.map(str::to_owned));
        Kind { node_controller, kubemark_version, image, no_taint: false }
    }

    #[test]
    fn both_objects_are_of_our_kinds() {
        for node_controller in [NodeController::Kubemark, NodeController::Hollow] {
            let class = kind(Some(node_controller), Some("v1.36.3"), None).class(true);
            let read: NodeClass = serde_json::from_value(class).unwrap();
            assert_eq!(read.spec.node_controller, node_controller.name());
            assert_eq!(read.spec.kubemark.is_some(), node_controller == NodeController::Kubemark);
            assert_eq!(read.spec.template.unwrap().taints[0].key, taints::HOLLOW);
        }
        let set: NodeSet = serde_json::from_value(set(7)).unwrap();
        assert_eq!((set.spec.replicas, set.spec.node_class_name.as_str()), (7, NAME));
        assert!(NAME.starts_with("hollow-"), "so do the names of the nodes");
    }

    #[test]
    fn a_version_or_an_image_of_kubemark_asks_for_kubemark() {
        let controller = |version, image| kind(None, version, image).node_controller();
        assert_eq!(controller(None, None), NodeController::Hollow);
        assert_eq!(controller(Some("v1.29.0"), None), NodeController::Kubemark);
        assert_eq!(controller(None, Some("r/kubemark:own")), NodeController::Kubemark);
        let hollow = kind(Some(NodeController::Hollow), Some("v1.29.0"), None);
        assert_eq!((hollow.node_controller(), hollow.image()), (NodeController::Hollow, None));
        assert_eq!(hollow.class(false)["spec"]["provisioning"]["kubelet"]["version"], "v1.29.0");
    }

    #[test]
    fn nodes_beside_others_are_tainted_unless_asked_not_to() {
        let mut kind = kind(None, None, None);
        assert!(kind.class(false)["spec"].get("template").is_none(), "nobody else's pods are kept off");
        let taint = json!({"key": "kube-node.io/hollow", "effect": "NoSchedule"});
        assert_eq!(kind.class(true)["spec"]["template"]["taints"], json!([taint]));
        kind.no_taint = true;
        assert!(kind.class(true)["spec"].get("template").is_none());
    }

    #[test]
    fn given_arguments_change_an_existing_class_and_defaults_do_not() {
        let class = |kind: &Kind, is_beside_others| -> NodeClass {
            serde_json::from_value(kind.class(is_beside_others)).unwrap()
        };
        let change = |kind: &Kind, class: &NodeClass| Some(kind.change(class)?["spec"].clone());
        let mut hollow = kind(None, None, None);
        let mut edited = class(&hollow, false);
        edited.spec.machine_type = Some("mine".to_owned());
        assert_eq!(change(&hollow, &edited), None);
        let kubemark = kind(None, Some("v1.36.3"), None);
        let there = class(&kubemark, false);
        assert_eq!(change(&kubemark, &there), None);
        let newer = kind(None, Some("v1.36.4"), None);
        let image = "registry.k8s.io/kubemark:v1.36.4";
        assert_eq!(
            change(&newer, &there),
            Some(json!({"provisioning": {"kubelet": {"version": "v1.36.4"}}, "kubemark": {"image": image}}))
        );
        assert_eq!(change(&kind(Some(NodeController::Kubemark), None, None), &there), None);
        let tainted = class(&hollow, true);
        assert_eq!(change(&hollow, &tainted), None);
        hollow.no_taint = true;
        assert_eq!(change(&hollow, &tainted), Some(json!({"template": {"taints": []}})));
        let text = untainted(&edited);
        assert!(text.ends_with(r#"-p '{"spec":{"template":{"taints":[{"effect":"NoSchedule","key":"kube-node.io/hollow"}]}}}'"#), "{text}");
    }

    #[test]
    fn a_version_picks_the_tag() {
        let image = |version, image| kind(Some(NodeController::Kubemark), version, image).image();
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
