//! Template of a further Node of a group, in its state once it takes pods: the basis of scale-from-zero.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_pb::{
    api::core::v1::{Node, NodeSpec, NodeStatus, NodeSystemInfo},
    apimachinery::pkg::{api::resource::Quantity as PbQuantity, apis::meta::v1::ObjectMeta},
};
use kube_node_api::{NodeTemplate, Resources};

use super::{GPU_LABEL, ScaleRefusal};
use crate::node_builder::{self, Blueprint};

/// The Node, without startup taints: the template shows the Node after their removal.
pub fn node(blueprint: Blueprint<'_>, now: Timestamp) -> Result<Node, ScaleRefusal> {
    let Blueprint { set, class, machine, template, .. } = blueprint;
    if machine.capacity.is_empty() {
        return Err(ScaleRefusal::no_template(format!(
            "NodeClass {class} has no capacity, so what a node of {set} would have is not known: write it"
        )));
    }
    let (capacity, allocatable) = machine
        .amounts()
        .map_err(|error| ScaleRefusal::no_template(format!("NodeClass {class}: {error}")))?;
    let name = format!("{set}-template");
    let labels = node_builder::labels(&name, blueprint);
    let label = |key: &str| labels.get(key).cloned();
    let (operating_system, architecture) = (label("kubernetes.io/os"), label("kubernetes.io/arch"));
    let version = machine.provisioning.as_ref().and_then(|provisioning| provisioning.kubelet.as_ref());
    Ok(Node {
        metadata: Some(ObjectMeta {
            labels,
            name: Some(name),
            annotations: template.annotations.clone(),
            creation_timestamp: Some(node_builder::at(now)),
            ..ObjectMeta::default()
        }),
        spec: Some(NodeSpec {
            taints: template.taints.iter().cloned().map(node_builder::encoded).collect(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: encoded(capacity),
            allocatable: encoded(allocatable),
            conditions: vec![node_builder::ready("True", "KubeletReady", None, now)],
            node_info: Some(NodeSystemInfo {
                kubelet_version: version.map(|kubelet| kubelet.version.clone()),
                operating_system,
                architecture,
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }),
    })
}

fn encoded(amounts: Resources) -> BTreeMap<String, PbQuantity> {
    amounts.into_iter().map(|(name, Quantity(text))| (name, PbQuantity { string: Some(text) })).collect()
}

/// GPU types in the labels of these templates.
pub fn gpu_types<'a>(templates: impl IntoIterator<Item = &'a NodeTemplate>) -> BTreeSet<String> {
    templates.into_iter().filter_map(|template| template.labels.get(GPU_LABEL).cloned()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{revision::ResolvedMachine, template::DesiredTemplate};

    #[test]
    fn the_template_node_reports_architecture_and_operating_system_of_the_class_labels() {
        let machine: ResolvedMachine =
            serde_json::from_value(json!({"nodeController": "hollow", "capacity": {"cpu": "4"}})).unwrap();
        let labels = json!({"labels": {"kubernetes.io/arch": "s390x", "kubernetes.io/os": "windows"}});
        let template = DesiredTemplate::merge(Some(&serde_json::from_value(labels).unwrap()), None);
        let (set, class, revision) = ("set", "class", "v1-0");
        let blueprint = Blueprint { set, class, revision, machine: &machine, template: &template };
        let info = node(blueprint, Timestamp::UNIX_EPOCH).unwrap().status.unwrap().node_info.unwrap();
        assert_eq!((info.architecture(), info.operating_system()), ("s390x", "windows"));
    }
}
