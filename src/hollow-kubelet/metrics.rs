//! Metrics of the hollow kubelets; docs/metrics.md describes each.

use kube_ext::metrics::{counters, gauge, histogram};
use prometheus::{Error, Histogram, IntCounterVec, IntGauge, Registry};

use super::schedule::Priority;

/// Buckets of the Lease renewal delay, in seconds. Renewals give way for 20 s at most; above 25 s is a fault.
const DELAY_SECONDS: [f64; 10] = [0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 25.0, 30.0];
/// Result label of a successful write.
const OK: &str = "ok";
/// Result label of an event that was not sent.
const DROPPED: &str = "dropped";

/// Metrics of all hollow kubelets of a process.
pub struct Metrics {
    /// Number of machines.
    pub machines: IntGauge,
    /// Delay of Lease renewals, in seconds.
    pub lease_delay: Histogram,
    leases: IntCounterVec,
    statuses: IntCounterVec,
    pods: IntCounterVec,
    events: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics; fails if a name is already registered.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        // Failure labels exist only once they occur: thousands of machines are processes of their own.
        let writes = |name, help| counters(registry, (name, help), ["result"], [[OK]]);
        let lease_delay = (
            "kube_node_hollow_lease_delay_seconds",
            "How late renewals of Leases start; at 30 a Lease has run out",
        );
        Ok(Self {
            machines: gauge(
                registry,
                ("kube_node_hollow_machines", "Hollow machines carried by this process"),
            )?,
            lease_delay: histogram(registry, lease_delay, &DELAY_SECONDS)?,
            leases: writes("kube_node_hollow_lease_renewals_total", "Writes of Leases, by result")?,
            statuses: writes("kube_node_hollow_status_writes_total", "Writes of Node statuses, by result")?,
            pods: writes("kube_node_hollow_pod_status_writes_total", "Writes of pod statuses, by result")?,
            events: counters(
                registry,
                ("kube_node_hollow_events_total", "Events about pods, by result; dropped ones found no room"),
                ["result"],
                [[OK], [DROPPED]],
            )?,
        })
    }

    /// Counts a write; `failure` is None if it succeeded.
    pub fn written(&self, priority: Priority, failure: Option<&'static str>) {
        let counter = match priority {
            Priority::Prompt | Priority::Lease | Priority::Renewal => &self.leases,
            Priority::Status => &self.statuses,
            Priority::Pod | Priority::SlowPod => &self.pods,
            Priority::Event => &self.events,
            // One write in the life of a machine, and none.
            Priority::CsiNode | Priority::Lookup => return,
        };
        counter.with_label_values(&[failure.unwrap_or(OK)]).inc();
    }

    /// Counts dropped events.
    pub fn dropped(&self, events: u64) {
        self.events.with_label_values(&[DROPPED]).inc_by(events);
    }
}
