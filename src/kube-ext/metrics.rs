//! Constructors of metrics: each registers its metric, with the known label values at zero. A counter that
//! first appears with 1 shows no increase to an alert.

use prometheus::{
    Error, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
    core::{Collector, Desc, MetricVec, MetricVecBuilder},
    proto::MetricFamily,
};

/// Registers the gauge that shows the version of this build.
pub fn build(registry: &Registry) -> Result<(), Error> {
    let name = ("kube_node_build_info", "Always 1, with the version of kube-node as its label");
    let build = gauges(registry, name, ["version"], [])?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    Ok(())
}

/// Registers a counter.
pub fn counter(registry: &Registry, (name, help): (&str, &str)) -> Result<IntCounter, Error> {
    registered(registry, IntCounter::new(name, help)?)
}

/// Registers counters with labels, those of `known` at zero.
pub fn counters<const N: usize>(
    registry: &Registry,
    (name, help): (&str, &str),
    labels: [&str; N],
    known: impl IntoIterator<Item = [&'static str; N]>,
) -> Result<IntCounterVec, Error> {
    with_known(registry, IntCounterVec::new(Opts::new(name, help), &labels)?, known)
}

/// Registers a gauge.
pub fn gauge(registry: &Registry, (name, help): (&str, &str)) -> Result<IntGauge, Error> {
    registered(registry, IntGauge::new(name, help)?)
}

/// Registers gauges with labels, those of `known` at zero.
pub fn gauges<const N: usize>(
    registry: &Registry,
    (name, help): (&str, &str),
    labels: [&str; N],
    known: impl IntoIterator<Item = [&'static str; N]>,
) -> Result<IntGaugeVec, Error> {
    with_known(registry, IntGaugeVec::new(Opts::new(name, help), &labels)?, known)
}

/// Registers gauges with labels that `update` computes at each scrape; those of `known` start at zero.
pub fn computed<const N: usize>(
    registry: &Registry,
    (name, help): (&str, &str),
    labels: [&str; N],
    known: impl IntoIterator<Item = [&'static str; N]>,
    update: impl Fn(&IntGaugeVec) + Send + Sync + 'static,
) -> Result<(), Error> {
    let gauges = IntGaugeVec::new(Opts::new(name, help), &labels)?;
    let known = known.into_iter().collect();
    registry.register(Box::new(ComputedGauges { gauges, known, update }))
}

/// Gauges computed at each scrape.
struct ComputedGauges<const N: usize, F> {
    gauges: IntGaugeVec,
    known: Vec<[&'static str; N]>,
    update: F,
}

impl<const N: usize, F: Fn(&IntGaugeVec) + Send + Sync> Collector for ComputedGauges<N, F> {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for values in &self.known {
            self.gauges.with_label_values(values).set(0);
        }
        (self.update)(&self.gauges);
        self.gauges.collect()
    }
}

/// Registers a histogram with these upper bounds.
pub fn histogram(
    registry: &Registry,
    (name, help): (&str, &str),
    bounds: &[f64],
) -> Result<Histogram, Error> {
    let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
    registered(registry, Histogram::with_opts(options)?)
}

/// Registers histograms with a label, those of `known` empty.
pub fn histograms(
    registry: &Registry,
    (name, help): (&str, &str),
    bounds: &[f64],
    label: &str,
    known: impl IntoIterator<Item = &'static str>,
) -> Result<HistogramVec, Error> {
    let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
    with_known(registry, HistogramVec::new(options, &[label])?, known.into_iter().map(|value| [value]))
}

/// Registers metrics with labels, with those of `known`.
fn with_known<B: MetricVecBuilder + 'static, const N: usize>(
    registry: &Registry,
    metrics: MetricVec<B>,
    known: impl IntoIterator<Item = [&'static str; N]>,
) -> Result<MetricVec<B>, Error> {
    for values in known {
        metrics.get_metric_with_label_values(&values)?;
    }
    registered(registry, metrics)
}

/// Registers a metric and returns it.
pub fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
