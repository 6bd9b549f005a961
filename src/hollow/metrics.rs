//! What the hollow kubelets count.

use prometheus::{Error, Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry};

use super::schedule::Lane;

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
}

impl Metrics {
    /// Registers them; fails where their names are taken.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounterVec::new(Opts::new(name, help), &["result"])?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, Error>(counter)
        };
        let machines =
            IntGauge::new("kube_node_hollow_machines", "Hollow machines carried by this process.")?;
        registry.register(Box::new(machines.clone()))?;
        let lease_delay = Histogram::with_opts(
            HistogramOpts::new(
                "kube_node_hollow_lease_delay_seconds",
                "How late renewals of Leases start; at 30 a Lease has run out.",
            )
            .buckets(vec![0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0]),
        )?;
        registry.register(Box::new(lease_delay.clone()))?;
        Ok(Self {
            machines,
            lease_delay,
            leases: counter("kube_node_hollow_lease_renewals_total", "Writes of Leases, by result.")?,
            statuses: counter("kube_node_hollow_status_writes_total", "Writes of Node statuses, by result.")?,
            pods: counter("kube_node_hollow_pod_status_writes_total", "Writes of pod statuses, by result.")?,
        })
    }

    /// A write has ended.
    pub fn written(&self, lane: Lane, result: &str) {
        let counter = match lane {
            Lane::Lease => &self.leases,
            Lane::Status => &self.statuses,
            Lane::Pod => &self.pods,
        };
        counter.with_label_values(&[result]).inc();
    }
}
