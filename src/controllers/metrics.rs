//! Metrics of the controllers. Labels are few and bounded: controllers, results, reasons; never names of objects.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, core::Collector};

use crate::runtime::queue::Outcome;

/// Upper bounds of the time of a look, in seconds.
const LOOK_SECONDS: [f64; 9] = [0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 5.0, 25.0];

/// The controllers' metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    looks: IntCounterVec,
    look_seconds: HistogramVec,
    waiting: IntGaugeVec,
    machines: IntGaugeVec,
    nodes_created: IntCounterVec,
    nodes_deleted: IntCounterVec,
    nodes_replaced: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            looks: register(
                registry,
                IntCounterVec::new(
                    Opts::new("kube_node_reconciles_total", "Looks at objects, by controller and result"),
                    &["controller", "result"],
                )?,
            )?,
            look_seconds: register(
                registry,
                HistogramVec::new(
                    HistogramOpts::new("kube_node_reconcile_duration_seconds", "Time of a look at an object")
                        .buckets(LOOK_SECONDS.to_vec()),
                    &["controller"],
                )?,
            )?,
            waiting: register(
                registry,
                IntGaugeVec::new(
                    Opts::new("kube_node_waiting_nodes", "Nodes that wait, by what they wait for"),
                    &["reason"],
                )?,
            )?,
            machines: register(
                registry,
                IntGaugeVec::new(
                    Opts::new("kube_node_machines", "Machines that exist, by provider"),
                    &["provider"],
                )?,
            )?,
            nodes_created: register(
                registry,
                IntCounterVec::new(
                    Opts::new("kube_node_node_creations_total", "Node creations, by result"),
                    &["result"],
                )?,
            )?,
            nodes_deleted: register(
                registry,
                IntCounterVec::new(
                    Opts::new("kube_node_node_deletions_total", "Node deletions, by result"),
                    &["result"],
                )?,
            )?,
            nodes_replaced: register(
                registry,
                IntCounterVec::new(
                    Opts::new("kube_node_node_replacements_total", "Nodes deleted to be replaced, by cause"),
                    &["cause"],
                )?,
            )?,
        })
    }

    /// A look has ended.
    pub fn looked(&self, controller: &str, outcome: Outcome, took: Duration) {
        let result = if outcome == Outcome::Failed { "error" } else { "success" };
        self.looks.with_label_values(&[controller, result]).inc();
        self.look_seconds.with_label_values(&[controller]).observe(took.as_secs_f64());
    }

    /// A Node waits for something else than before; None: for nothing.
    pub fn waits(&self, before: Option<&'static str>, now: Option<&'static str>) {
        if before == now {
            return;
        }
        for (reason, change) in [(before, -1), (now, 1)] {
            if let Some(reason) = reason {
                self.waiting.with_label_values(&[reason]).add(change);
            }
        }
    }

    /// How many machines a provider has.
    pub fn machines(&self, provider: &str, count: usize) {
        self.machines.with_label_values(&[provider]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A Node was created, or not: `success` or the reason of the refusal.
    pub fn node_created(&self, result: &str) {
        self.nodes_created.with_label_values(&[result]).inc();
    }

    /// A Node was deleted to be replaced.
    pub fn node_replaced(&self, cause: &str) {
        self.nodes_replaced.with_label_values(&[cause]).inc();
    }

    /// A Node's deletion was asked for, with this result.
    pub fn node_deleted(&self, result: &str) {
        self.nodes_deleted.with_label_values(&[result]).inc();
    }
}

fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
