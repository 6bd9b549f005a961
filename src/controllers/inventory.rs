//! Inventory metrics: gauges computed from the caches at each scrape.
//!
//! Output: Nodes of classes by stage, Nodes that the sets want, sets by the status of each condition and by
//! wait reason, machines by provider.

use std::{collections::BTreeMap, sync::Arc};

use kube_ext::metrics::computed;
use kube_node_api::NodeSet;
use kube_node_cache::{Cache, CachedNodeSet, NodeStage, NodeView};
use kube_node_planner::{set::CONDITIONS, set_wait::WAITS};
use prometheus::{Error, IntGaugeVec, Registry};

use crate::provider::Provider;

/// Values of a condition's status.
const STATUSES: [&str; 3] = ["True", "False", "Unknown"];

/// Registers the gauges of Nodes.
pub fn register_nodes(registry: &Registry, nodes: Arc<Cache<NodeView>>) -> Result<(), Error> {
    let stages = NodeStage::ALL.map(|stage| [stage.into()]);
    let name = ("kube_node_nodes", "Nodes of NodeClasses, by their stage");
    computed(registry, name, ["stage"], stages, move |gauges| {
        for node in nodes.all().iter().filter(|node| node.class().is_some()) {
            gauges.with_label_values(&[<&str>::from(node.stage())]).inc();
        }
    })
}

/// Registers the gauges of NodeSets.
pub fn register_sets(registry: &Registry, sets: &Arc<Cache<CachedNodeSet>>) -> Result<(), Error> {
    // Adds up over all sets that can be read.
    let each = |add: fn(&NodeSet, &IntGaugeVec)| {
        let sets = Arc::clone(sets);
        move |gauges: &IntGaugeVec| {
            let all = sets.all();
            all.iter().filter_map(|set| set.object.as_deref().ok()).for_each(|set| add(set, gauges));
        }
    };
    let name = ("kube_node_wanted_nodes", "Nodes that the NodeSets ask for: the sum of their replicas");
    let add = each(|set, gauges| gauges.with_label_values::<&str>(&[]).add(set.spec.replicas.into()));
    computed(registry, name, [], [[]], add)?;
    let known = CONDITIONS.into_iter().flat_map(|name| STATUSES.map(|status| [name, status]));
    let name = ("kube_node_nodesets", "NodeSets, by what a condition of theirs says");
    let add = each(|set, gauges| {
        for condition in CONDITIONS {
            let mut conditions = set.status.iter().flat_map(|status| &status.conditions);
            let found = conditions.find(|found| found.type_ == condition);
            let status =
                STATUSES.into_iter().find(|status| found.is_some_and(|found| found.status == *status));
            gauges.with_label_values(&[condition, status.unwrap_or("Unknown")]).inc();
        }
    });
    computed(registry, name, ["condition", "status"], known, add)?;
    let name = ("kube_node_waiting_nodesets", "NodeSets that wait, by reason");
    let add = each(|set, gauges| {
        let waits = || set.status.iter().flat_map(|status| &status.waits);
        for reason in WAITS.into_iter().filter(|reason| waits().any(|wait| wait.reason == *reason)) {
            gauges.with_label_values(&[reason]).inc();
        }
    });
    computed(registry, name, ["reason"], WAITS.map(|reason| [reason]), add)
}

/// Registers the gauge of the machines of each provider.
pub fn register_machines(
    registry: &Registry,
    providers: BTreeMap<&'static str, Arc<dyn Provider>>,
) -> Result<(), Error> {
    let name = ("kube_node_machines", "Machines that exist, by provider");
    computed(registry, name, ["provider"], [], move |gauges| {
        for (name, provider) in &providers {
            let count = i64::try_from(provider.count()).unwrap_or(i64::MAX);
            gauges.with_label_values(&[name]).set(count);
        }
    })
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use serde_json::json;

    use super::*;
    use kube_node_api::names;
    use kube_node_cache::CustomObject;

    fn set(name: &str, waits: &[&str], degraded: Option<&str>) -> CustomObject<NodeSet> {
        let conditions: Vec<_> = degraded
            .map(|status| {
                json!({"type": "Degraded", "status": status, "reason": "A", "message": "",
                       "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .into_iter()
            .collect();
        let waits: Vec<_> = waits
            .iter()
            .map(|reason| json!({"reason": reason, "message": "", "nodes": 1, "since": "2026-01-01T00:00:00Z"}))
            .collect();
        let set: NodeSet = serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"replicas": 3, "nodeClassName": "a"},
            "status": {"conditions": conditions, "waits": waits},
        }))
        .unwrap();
        CustomObject { metadata: set.metadata.clone(), object: Ok(Arc::new(set)), class: None }
    }

    fn node(name: &str, class: bool, posted: bool) -> NodeView {
        let labels = class.then(|| (names::LABEL_NODECLASS.to_owned(), "a".to_owned()));
        NodeView {
            name: name.into(),
            labels: labels.into_iter().collect(),
            kubelet_version: posted.then(|| "v1".to_owned()),
            ..NodeView::default()
        }
    }

    #[test]
    fn what_there_is_now_is_counted_and_nothing_twice() {
        let nodes = Cache::full([node("a", true, false), node("b", true, true), node("real", false, true)]);
        let sets = Cache::full([
            set("a", &["UpdateFailed", "UpdateFailed", "Paused"], Some("True")),
            set("b", &["UpdateFailed", "WaitingForLease", "of somebody else"], Some("False")),
            set("c", &[], None),
        ]);
        let registry = Registry::new();
        register_nodes(&registry, nodes).unwrap();
        register_sets(&registry, &sets).unwrap();
        for _ in 0..2 {
            let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            for line in [
                "kube_node_nodes{stage=\"provisioning\"} 1",
                "kube_node_nodes{stage=\"not_ready\"} 1",
                "kube_node_nodes{stage=\"ready\"} 0",
                "kube_node_waiting_nodesets{reason=\"UpdateFailed\"} 2",
                "kube_node_waiting_nodesets{reason=\"Paused\"} 1",
                "kube_node_waiting_nodesets{reason=\"Budget\"} 0",
                "kube_node_wanted_nodes 9",
                "kube_node_nodesets{condition=\"Degraded\",status=\"True\"} 1",
                "kube_node_nodesets{condition=\"Degraded\",status=\"Unknown\"} 1",
                "kube_node_nodesets{condition=\"Available\",status=\"Unknown\"} 3",
            ] {
                assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
            }
            assert!(!text.contains("somebody else"), "reasons are bounded:\n{text}");
        }
    }
}
