//! What the hollow kubelets count; docs/metrics.md says what each means.

use kube_ext::metrics::{counters, gauge, histogram};
use prometheus::{Error, Histogram, IntCounterVec, IntGauge, Registry};

use super::schedule::Priority;

/// Upper bounds of the delay of a Lease, in seconds. Renewals make room for 20 s at most; beyond 25 something is wrong.
const DELAY_SECONDS: [f64; 10] = [0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 25.0, 30.0];
/// The result of a write that was taken.
const OK: &str = "ok";
/// The result of an event that was not sent.
const DROPPED: &str = "dropped";

/// The metrics of all hollow kubelets of a process.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Machines carried.
    pub machines: IntGauge,
    /// How late renewals of Leases start, in seconds.
    pub lease_delay: Histogram,
    leases: IntCounterVec,
    statuses: IntCounterVec,
    pods: IntCounterVec,
    events: IntCounterVec,
}

impl Metrics {
    /// Registers them; fails where their names are taken.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        // Of failures only those that happen are kept: thousands of machines are processes of their own.
        let writes = |name, help| counters(registry, (name, help), ["result"], [[OK]]);
        Ok(Self {
            machines: gauge(
                registry,
                ("kube_node_hollow_machines", "Hollow machines carried by this process"),
            )?,
            lease_delay: histogram(
                registry,
                (
                    "kube_node_hollow_lease_delay_seconds",
                    "How late renewals of Leases start; at 30 a Lease has run out",
                ),
                &DELAY_SECONDS,
            )?,
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

    /// A write has ended; None where it was taken.
    pub fn written(&self, priority: Priority, failure: Option<&'static str>) {
        let counter = match priority {
            Priority::Prompt | Priority::Lease | Priority::Renewal => &self.leases,
            Priority::Status => &self.statuses,
            Priority::Pod => &self.pods,
            Priority::Event => &self.events,
        };
        counter.with_label_values(&[failure.unwrap_or(OK)]).inc();
    }

    /// Events found no room.
    pub fn dropped(&self, events: u64) {
        self.events.with_label_values(&[DROPPED]).inc_by(events);
    }
}
