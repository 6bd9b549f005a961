//! Startup taints that hold up the Nodes of a set.
//!
//! Input: the templates of class and set, or the record of a Node. Output: taints by key and effect.
//!
//! Invariant: no Node becomes available because its class cannot be read.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::Taint;
use kube_node_api::{NodeClassSpec, NodeSetSpec, label_map::LabelMap};

use super::template::{merged_startup_taints, recorded_startup_taints};

/// Startup taints that hold up the Nodes of a set.
#[derive(Clone, Debug)]
pub enum StartupTaints {
    /// Those of the templates of class and set.
    Known(Vec<Taint>),
    /// The class cannot be read: those that each Node was created with.
    Recorded,
}

impl StartupTaints {
    /// Startup taints of a set; no class if it cannot be read.
    pub fn of(class: Option<&NodeClassSpec>, set: &NodeSetSpec) -> Self {
        class.map_or(Self::Recorded, |class| {
            Self::Known(merged_startup_taints(class.template.as_ref(), set.template.as_ref()))
        })
    }

    /// Those that hold up a Node with these annotations.
    pub fn of_node(&self, annotations: &LabelMap) -> Cow<'_, [Taint]> {
        match self {
            Self::Known(taints) => Cow::Borrowed(taints),
            Self::Recorded => Cow::Owned(recorded_startup_taints(annotations)),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube_node_api::names::ANNOTATION_APPLIED;
    use serde_json::json;

    use super::*;
    use crate::template::DesiredTemplate;

    #[test]
    fn recorded_startup_taints_hold_up_a_node_while_its_class_cannot_be_read() {
        let template = |keys: &[&str]| {
            let taints = keys.iter().map(|key| json!({ "key": key, "effect": "NoSchedule" }));
            json!({ "startupTaints": taints.collect::<Vec<_>>() })
        };
        let class = |keys: &[&str]| -> NodeClassSpec {
            let class = json!({ "nodeController": "hollow", "template": template(keys) });
            serde_json::from_value(class).unwrap()
        };
        let set = json!({ "nodeClassName": "small", "template": template(&["agent", "cni"]) });
        let set: NodeSetSpec = serde_json::from_value(set).unwrap();
        let created = class(&["cni", "old"]);
        let record =
            DesiredTemplate::merge(created.template.as_ref(), set.template.as_ref()).record().unwrap();
        let changed = class(&["cni", "new"]);
        let keys = |class: Option<&NodeClassSpec>, record: &str| -> Vec<String> {
            let annotations: LabelMap =
                [(ANNOTATION_APPLIED.to_owned(), record.to_owned())].into_iter().collect();
            let taints = StartupTaints::of(class, &set);
            taints.of_node(&annotations).iter().map(|taint| taint.key.clone()).collect()
        };
        assert_eq!(keys(Some(&changed), &record), ["cni", "new", "agent"]);
        assert_eq!(keys(None, &record), ["agent", "cni", "old"], "the class cannot be read");
        assert_eq!(keys(None, "{"), [""; 0], "neither class nor record can be read");
    }
}
