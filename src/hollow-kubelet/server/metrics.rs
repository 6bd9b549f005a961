//! What the kubelets' endpoints count; docs/metrics.md says what each means.

use kube_ext::metrics::{counters, gauge};
use prometheus::{Error, IntCounterVec, IntGauge, Registry};

/// Why a Node has no endpoints, or a client no answer.
const REASONS: [&str; 5] =
    ["NoFreePort", "TooManyFiles", "AddressNotAvailable", "Certificates", "ClientAuthority"];

/// The metrics of all endpoints of a process.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Open ports.
    pub open: IntGauge,
    requests: IntCounterVec,
    failures: IntCounterVec,
}

impl Metrics {
    /// Registers them; fails where their names are taken.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            open: gauge(
                registry,
                ("kube_node_hollow_endpoints", "Ports at which kubelets of hollow machines are served"),
            )?,
            requests: counters(
                registry,
                (
                    "kube_node_hollow_endpoint_requests_total",
                    "Requests to hollow kubelets, by endpoint and code",
                ),
                ["endpoint", "code"],
                [["healthz", "200"]],
            )?,
            failures: counters(
                registry,
                (
                    "kube_node_hollow_endpoint_failures_total",
                    "What keeps hollow kubelets from serving, by reason",
                ),
                ["reason"],
                REASONS.map(|reason| [reason]),
            )?,
        })
    }

    /// A request was answered.
    pub fn answered(&self, endpoint: &str, code: u16) {
        self.requests.with_label_values(&[endpoint, &code.to_string()]).inc();
    }

    /// Something could not be served.
    pub fn failed(&self, reason: &str) {
        self.failures.with_label_values(&[reason]).inc();
    }

    #[cfg(test)]
    pub fn failures(&self, reason: &str) -> u64 {
        self.failures.with_label_values(&[reason]).get()
    }
}
