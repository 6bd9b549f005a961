//! Adopts a Node created by hand, or one that has lost its finalizer: one write, before its machine is made, adds what a
//! NodeSet's Node is created with.

use kube_node_api::names;
use kube_node_planner::{node_builder, taints};
use serde_json::json;

use super::{
    NodeController, Result,
    observe::{Adoption, Observed},
};
use crate::api::with_finalizer;

impl NodeController {
    pub(super) async fn adopt(&self, observed: &Observed, adoption: &Adoption) -> Result<()> {
        let node = &*observed.node;
        let provider = observed.provider.name();
        let mut labels = json!(adoption.template.labels);
        let machine_type = adoption.machine.as_ref().and_then(|machine| machine.machine_type.as_deref());
        let well_known = node_builder::well_known_labels(&node.name, machine_type).into_iter();
        for (key, value) in well_known.filter(|(key, _)| !node.labels.contains_key(key)) {
            labels[key] = json!(value);
        }
        if let Some(revision) = &adoption.revision {
            labels[names::LABEL_REVISION] = json!(revision);
        }
        labels[names::LABEL_NODE_CONTROLLER] = json!(provider);
        let finalizers = with_finalizer(&node.finalizers, names::FINALIZER_MACHINE, true);
        let finalizers = finalizers.unwrap_or_else(|| node.finalizers.clone());
        let mut all = adoption.template.taints.clone().unwrap_or_else(|| node.taints.clone());
        // The taints of a new Node would evict the pods of a kubelet that already works.
        if node.kubelet_version.is_none() {
            let missing = |taint: &_| !node.taints.contains(taint);
            all.extend(taints::at_birth().into_iter().filter(missing));
        }
        let mut spec = json!({ "taints": all });
        if node.provider_id.is_none() {
            spec["providerID"] = json!(self.context.provider_id(provider, &node.name));
        }
        let change = json!({
            "metadata": { "labels": labels, "annotations": adoption.template.annotations, "finalizers": finalizers },
            "spec": spec,
        });
        self.patch(node, change, "take over the machine").await
    }
}
