//! Metrics of the controllers. Labels are few and bounded (controllers, results, reasons), never object
//! names. docs/metrics.md explains each metric.

use std::time::Duration;

use kube_ext::{
    call::ApiError,
    metrics::{computed, counters, histograms},
    work_queue::Action,
};
use kube_node_planner::{disruption::DisruptionReason, wait::NodeWait};
use prometheus::{Error, HistogramVec, IntCounterVec, Registry};
use strum::VariantNames as _;

use super::{node::ReportedWaits, pod_cidrs};

/// Names of the controllers in metrics and logs.
pub(super) const CONTROLLERS: [&str; 4] = ["nodeset", "node", "nodeclass", "csr"];
/// Histogram bounds for the time of a reconciliation, in seconds.
const RECONCILE_SECONDS: [f64; 9] = [0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 5.0, 25.0];
const SUCCESS: &str = "success";

/// The controllers' metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    reconciliations: IntCounterVec,
    reconcile_seconds: HistogramVec,
    pub(super) waits: ReportedWaits,
    nodes_created: IntCounterVec,
    nodes_deleted: IntCounterVec,
    nodes_replaced: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(registry: &Registry) -> Result<Self, Error> {
        let results = || std::iter::once(SUCCESS).chain(ApiError::REASONS).map(|result| [result]);
        let waits = ReportedWaits::default();
        let waiting = waits.clone();
        let name = ("kube_node_waiting_nodes", "Nodes that wait, by what they wait for");
        computed(registry, name, ["reason"], NodeWait::reasons().map(|reason| [reason]), move |gauges| {
            for reason in waiting.reasons() {
                gauges.with_label_values(&[reason]).inc();
            }
        })?;
        let reconciliations = ("kube_node_reconciles_total", "Reconciliations, by controller and result");
        let outcomes = CONTROLLERS.into_iter().flat_map(|name| [[name, SUCCESS], [name, "error"]]);
        let seconds = ("kube_node_reconcile_duration_seconds", "Time of a reconciliation");
        let created = ("kube_node_node_creations_total", "Node creations, by result");
        let creations = results().chain([[pod_cidrs::NOT_AVAILABLE]]);
        let deleted = ("kube_node_node_deletions_total", "Node deletions, by result");
        let replaced = ("kube_node_node_replacements_total", "Nodes deleted to be replaced, by cause");
        let causes = DisruptionReason::VARIANTS.iter().map(|cause| [*cause]);
        Ok(Self {
            reconciliations: counters(registry, reconciliations, ["controller", "result"], outcomes)?,
            reconcile_seconds: histograms(registry, seconds, &RECONCILE_SECONDS, "controller", CONTROLLERS)?,
            waits,
            nodes_created: counters(registry, created, ["result"], creations)?,
            nodes_deleted: counters(registry, deleted, ["result"], results())?,
            nodes_replaced: counters(registry, replaced, ["cause"], causes)?,
        })
    }

    /// Counts a reconciliation and its time.
    pub(super) fn reconciled(&self, controller: &str, action: Action, took: Duration) {
        let result = if action == Action::Failed { "error" } else { SUCCESS };
        self.reconciliations.with_label_values(&[controller, result]).inc();
        self.reconcile_seconds.with_label_values(&[controller]).observe(took.as_secs_f64());
    }

    /// Counts a Node creation, by its result: that of the API server, or the reason why it was not sent.
    pub(super) fn node_created(&self, result: Result<(), &'static str>) {
        self.nodes_created.with_label_values(&[result.err().unwrap_or(SUCCESS)]).inc();
    }

    /// Counts a Node that was deleted to be replaced.
    pub(super) fn node_replaced(&self, cause: DisruptionReason) {
        self.nodes_replaced.with_label_values(&[<&str>::from(cause)]).inc();
    }

    /// Counts a Node deletion that was sent, by its result.
    pub(super) fn node_deleted(&self, result: Result<(), &'static str>) {
        self.nodes_deleted.with_label_values(&[result.err().unwrap_or(SUCCESS)]).inc();
    }
}
