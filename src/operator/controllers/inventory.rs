//! Inventory collector: gauges computed from the caches at each scrape.
//!
//! Output: Nodes of classes by stage, Nodes that the sets want, and sets by the status of each condition and
//! by wait reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube_ext::metrics::registered;
use kube_node_api::NodeSet;
use kube_node_cache::{Cache, CustomObject, NodeView, Stage};
use kube_node_planner::set::{CONDITIONS, WAITS};
use prometheus::{
    Error, IntGauge, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::providers::Provider;

/// Values of a condition's status.
const STATUSES: [&str; 3] = ["True", "False", "Unknown"];

/// Collector of Nodes and sets.
#[derive(Clone)]
pub struct InventoryCollector {
    all_nodes: Arc<Cache<NodeView>>,
    all_sets: Arc<Cache<CustomObject<NodeSet>>>,
    nodes: IntGaugeVec,
    wanted: IntGauge,
    sets: IntGaugeVec,
    waiting: IntGaugeVec,
}

impl InventoryCollector {
    /// Registers the collector.
    pub fn register(
        registry: &Registry,
        all_nodes: Arc<Cache<NodeView>>,
        all_sets: Arc<Cache<CustomObject<NodeSet>>>,
    ) -> Result<(), Error> {
        let nodes = Opts::new("kube_node_nodes", "Nodes of NodeClasses, by their stage");
        let sets = Opts::new("kube_node_nodesets", "NodeSets, by what a condition of theirs says");
        let waiting = Opts::new("kube_node_waiting_nodesets", "NodeSets that wait, by reason");
        let wanted = "kube_node_wanted_nodes";
        registered(
            registry,
            Self {
                all_nodes,
                all_sets,
                nodes: IntGaugeVec::new(nodes, &["stage"])?,
                wanted: IntGauge::new(wanted, "Nodes that the NodeSets ask for: the sum of their replicas")?,
                sets: IntGaugeVec::new(sets, &["condition", "status"])?,
                waiting: IntGaugeVec::new(waiting, &["reason"])?,
            },
        )?;
        Ok(())
    }
}

impl Collector for InventoryCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.nodes.desc(), self.wanted.desc(), self.sets.desc(), self.waiting.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for stage in Stage::ALL {
            self.nodes.with_label_values(&[stage.name()]).set(0);
        }
        for (condition, status) in
            CONDITIONS.into_iter().flat_map(|name| STATUSES.map(|status| (name, status)))
        {
            self.sets.with_label_values(&[condition, status]).set(0);
        }
        for reason in WAITS {
            self.waiting.with_label_values(&[reason]).set(0);
        }
        for node in self.all_nodes.all().iter().filter(|node| node.class().is_some()) {
            self.nodes.with_label_values(&[node.stage().name()]).inc();
        }
        let mut wanted = 0;
        for set in self.all_sets.all().iter().filter_map(|own| own.object.as_ref().ok()) {
            wanted += i64::from(set.spec.replicas);
            let waits: BTreeSet<&str> =
                set.status.iter().flat_map(|status| &status.waits).map(|wait| wait.reason.as_str()).collect();
            for reason in WAITS.into_iter().filter(|reason| waits.contains(reason)) {
                self.waiting.with_label_values(&[reason]).inc();
            }
            let conditions = set.status.iter().flat_map(|status| &status.conditions);
            for condition in CONDITIONS {
                let said = conditions.clone().find(|said| said.type_ == condition);
                let status =
                    STATUSES.into_iter().find(|status| said.is_some_and(|said| said.status == *status));
                self.sets.with_label_values(&[condition, status.unwrap_or("Unknown")]).inc();
            }
        }
        self.wanted.set(wanted);
        [self.nodes.collect(), self.wanted.collect(), self.sets.collect(), self.waiting.collect()].concat()
    }
}

/// Collector of the machines of each provider, counted at each scrape.
#[derive(Clone)]
pub struct Machines {
    providers: BTreeMap<&'static str, Arc<dyn Provider>>,
    machines: IntGaugeVec,
}

impl Machines {
    /// Registers the collector.
    pub fn register(
        registry: &Registry,
        providers: BTreeMap<&'static str, Arc<dyn Provider>>,
    ) -> Result<(), Error> {
        let machines = Opts::new("kube_node_machines", "Machines that exist, by provider");
        registered(registry, Self { providers, machines: IntGaugeVec::new(machines, &["provider"])? })?;
        Ok(())
    }
}

impl Collector for Machines {
    fn desc(&self) -> Vec<&Desc> {
        self.machines.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (name, provider) in &self.providers {
            let count = i64::try_from(provider.count()).unwrap_or(i64::MAX);
            self.machines.with_label_values(&[name]).set(count);
        }
        self.machines.collect()
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use serde_json::json;

    use super::*;
    use kube_node_api::names;

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
        InventoryCollector::register(&registry, nodes, sets).unwrap();
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
