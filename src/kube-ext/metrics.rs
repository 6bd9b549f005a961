//! How metrics are made: registered where they are made, and with the values of their labels that are known from the
//! start, at zero. A counter that comes into the world with 1 has no increase that an alert could see.

use prometheus::{
    Error, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, core::Collector,
};

/// Which build this is.
pub fn build(registry: &Registry) -> Result<(), Error> {
    let build = gauges(
        registry,
        ("kube_node_build_info", "Always 1, with the version of kube-node as its label"),
        ["version"],
        [[env!("CARGO_PKG_VERSION")]],
    )?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    Ok(())
}

/// A counter.
pub fn counter(registry: &Registry, (name, help): (&str, &str)) -> Result<IntCounter, Error> {
    registered(registry, IntCounter::new(name, help)?)
}

/// Counters with labels, those of `known` at zero.
pub fn counters<const N: usize>(
    registry: &Registry,
    (name, help): (&str, &str),
    labels: [&str; N],
    known: impl IntoIterator<Item = [&'static str; N]>,
) -> Result<IntCounterVec, Error> {
    let counters = IntCounterVec::new(Opts::new(name, help), &labels)?;
    for values in known {
        counters.get_metric_with_label_values(&values)?;
    }
    registered(registry, counters)
}

/// A gauge.
pub fn gauge(registry: &Registry, (name, help): (&str, &str)) -> Result<IntGauge, Error> {
    registered(registry, IntGauge::new(name, help)?)
}

/// Gauges with labels, those of `known` at zero.
pub fn gauges<const N: usize>(
    registry: &Registry,
    (name, help): (&str, &str),
    labels: [&str; N],
    known: impl IntoIterator<Item = [&'static str; N]>,
) -> Result<IntGaugeVec, Error> {
    let gauges = IntGaugeVec::new(Opts::new(name, help), &labels)?;
    for values in known {
        gauges.get_metric_with_label_values(&values)?;
    }
    registered(registry, gauges)
}

/// A histogram with these upper bounds.
pub fn histogram(
    registry: &Registry,
    (name, help): (&str, &str),
    bounds: &[f64],
) -> Result<Histogram, Error> {
    let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
    registered(registry, Histogram::with_opts(options)?)
}

/// Histograms with a label, those of `known` empty.
pub fn histograms(
    registry: &Registry,
    (name, help): (&str, &str),
    bounds: &[f64],
    label: &str,
    known: impl IntoIterator<Item = &'static str>,
) -> Result<HistogramVec, Error> {
    let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
    let histograms = HistogramVec::new(options, &[label])?;
    for value in known {
        histograms.get_metric_with_label_values(&[value])?;
    }
    registered(registry, histograms)
}

/// The same metric, once the registry has it.
pub fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
