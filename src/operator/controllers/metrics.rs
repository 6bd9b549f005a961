//! Metrics of the controllers. Labels are few and bounded (controllers, results, reasons), never object
//! names. docs/metrics.md explains each metric.

use std::time::Duration;

use kube_ext::{
    call::ApiError,
    metrics::{counters, gauges, histograms},
    work_queue::Action,
};
use kube_node_planner::{disruption::DisruptionReason, wait::NodeWait};
use prometheus::{Error, HistogramVec, IntCounterVec, IntGaugeVec, Registry};
use strum::VariantNames as _;

use super::pod_cidrs;

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
    waiting: IntGaugeVec,
    nodes_created: IntCounterVec,
    nodes_deleted: IntCounterVec,
    nodes_replaced: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(registry: &Registry) -> Result<Self, Error> {
        let results = || std::iter::once(SUCCESS).chain(ApiError::REASONS).map(|result| [result]);
        Ok(Self {
            reconciliations: counters(
                registry,
                ("kube_node_reconciles_total", "Reconciliations, by controller and result"),
                ["controller", "result"],
                CONTROLLERS.into_iter().flat_map(|name| [[name, SUCCESS], [name, "error"]]),
            )?,
            reconcile_seconds: histograms(
                registry,
                ("kube_node_reconcile_duration_seconds", "Time of a reconciliation"),
                &RECONCILE_SECONDS,
                "controller",
                CONTROLLERS,
            )?,
            waiting: gauges(
                registry,
                ("kube_node_waiting_nodes", "Nodes that wait, by what they wait for"),
                ["reason"],
                NodeWait::reasons().map(|reason| [reason]),
            )?,
            nodes_created: counters(
                registry,
                ("kube_node_node_creations_total", "Node creations, by result"),
                ["result"],
                results().chain([[pod_cidrs::NOT_AVAILABLE]]),
            )?,
            nodes_deleted: counters(
                registry,
                ("kube_node_node_deletions_total", "Node deletions, by result"),
                ["result"],
                results(),
            )?,
            nodes_replaced: counters(
                registry,
                ("kube_node_node_replacements_total", "Nodes deleted to be replaced, by cause"),
                ["cause"],
                DisruptionReason::VARIANTS.iter().map(|cause| [*cause]),
            )?,
        })
    }

    /// Counts a reconciliation and its time.
    pub(super) fn reconciled(&self, controller: &str, action: Action, took: Duration) {
        let result = if action == Action::Failed { "error" } else { SUCCESS };
        self.reconciliations.with_label_values(&[controller, result]).inc();
        self.reconcile_seconds.with_label_values(&[controller]).observe(took.as_secs_f64());
    }

    /// Moves a Node from one wait reason to another; None: the Node does not wait.
    pub(super) fn waits(&self, before: Option<&'static str>, now: Option<&'static str>) {
        if before == now {
            return;
        }
        for (reason, change) in [(before, -1), (now, 1)] {
            if let Some(reason) = reason {
                self.waiting.with_label_values(&[reason]).add(change);
            }
        }
    }

    /// Counts a Node creation that was sent, by its result.
    pub(super) fn node_created(&self, result: Result<(), &ApiError>) {
        self.nodes_created.with_label_values(&[label(result)]).inc();
    }

    /// Counts a Node creation that was not sent because something that the Node needs is missing.
    pub(super) fn node_not_created(&self, reason: &str) {
        self.nodes_created.with_label_values(&[reason]).inc();
    }

    /// Counts a Node that was deleted to be replaced.
    pub(super) fn node_replaced(&self, cause: DisruptionReason) {
        self.nodes_replaced.with_label_values(&[<&str>::from(cause)]).inc();
    }

    /// Counts a Node deletion that was sent, by its result.
    pub(super) fn node_deleted(&self, result: Result<(), &ApiError>) {
        self.nodes_deleted.with_label_values(&[label(result)]).inc();
    }
}

fn label(result: Result<(), &ApiError>) -> &'static str {
    result.map_or_else(ApiError::reason, |()| SUCCESS)
}
