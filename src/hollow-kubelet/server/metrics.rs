//! Metrics of the kubelets' endpoints; docs/metrics.md describes each.

use kube_ext::metrics::{counters, gauge};
use prometheus::{Error, IntCounterVec, IntGauge, Registry};

/// Reasons for which a Node has no endpoints, or a client no answer.
const REASONS: [&str; 5] =
    ["NoFreePort", "TooManyFiles", "AddressNotAvailable", "Certificates", "ClientAuthority"];

/// Metrics of all endpoints of a process.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Number of open ports.
    pub open: IntGauge,
    requests: IntCounterVec,
    failures: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics; fails if a name is already registered.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let open = ("kube_node_hollow_endpoints", "Ports at which kubelets of hollow machines are served");
        let requests =
            ("kube_node_hollow_endpoint_requests_total", "Requests to hollow kubelets, by endpoint and code");
        let failures = (
            "kube_node_hollow_endpoint_failures_total",
            "What keeps hollow kubelets from serving, by reason",
        );
        Ok(Self {
            open: gauge(registry, open)?,
            requests: counters(registry, requests, ["endpoint", "code"], [["healthz", "200"]])?,
            failures: counters(registry, failures, ["reason"], REASONS.map(|reason| [reason]))?,
        })
    }

    /// Counts an answered request.
    pub fn answered(&self, endpoint: &str, code: u16) {
        self.requests.with_label_values(&[endpoint, &code.to_string()]).inc();
    }

    /// Counts a failure to serve.
    pub fn failed(&self, reason: &str) {
        self.failures.with_label_values(&[reason]).inc();
    }

    #[cfg(test)]
    pub fn failures(&self, reason: &str) -> u64 {
        self.failures.with_label_values(&[reason]).get()
    }
}
