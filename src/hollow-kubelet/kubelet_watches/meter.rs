//! Metrics of kubelet watches; docs/metrics.md describes each.

use kube_ext::{
    metrics::{counter, gauge},
    watch,
};
use prometheus::{Error, IntCounter, IntGauge, Registry};

/// Metrics of all machines of a process with kubelet watches.
#[derive(Clone, Debug)]
pub struct Meter {
    /// Number of machines with a dedicated client.
    pub machines: IntGauge,
    open: IntGauge,
    events: IntCounter,
    bytes: IntCounter,
}

/// An open watch, counted until dropped.
pub struct Open(IntGauge);

impl Meter {
    /// Registers the metrics; fails if a name is already registered.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let help = "Hollow machines with an identity, a connection and watches of their own";
        Ok(Self {
            machines: gauge(registry, ("kube_node_hollow_kubelets", help))?,
            open: gauge(registry, ("kube_node_hollow_watches", "Watches that these machines hold open"))?,
            events: counter(
                registry,
                ("kube_node_hollow_watch_events_total", "What these watches brought, bookmarks included"),
            )?,
            bytes: counter(
                registry,
                ("kube_node_hollow_watch_bytes_total", "Bytes that these watches brought"),
            )?,
        })
    }
}

impl watch::Meter for Meter {
    type Open = Open;

    fn open(&self) -> Open {
        self.open.inc();
        Open(self.open.clone())
    }

    fn bytes(&self, count: usize) {
        self.bytes.inc_by(u64::try_from(count).unwrap_or_default());
    }

    fn event(&self) {
        self.events.inc();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
