//! `/metrics`, read.

use super::CLUSTER;
use std::collections::{BTreeMap, BTreeSet};

/// A metric: all that is exported of it.
#[derive(Debug, Default)]
pub struct Metric {
    pub r#type: String,
    pub help: String,
    /// The names of its samples: a histogram has three.
    pub samples: BTreeSet<String>,
    /// Values by label.
    pub labels: BTreeMap<String, BTreeSet<String>>,
}

/// What the operator exports now, by name.
pub fn read() -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut current = String::new();
    for line in CLUSTER.metrics().lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            name.clone_into(&mut current);
            help.clone_into(&mut metrics.entry(current.clone()).or_default().help);
            continue;
        }
        let metric = metrics.get_mut(&current).unwrap();
        if let Some(type_line) = line.strip_prefix("# TYPE ") {
            type_line.strip_prefix(&format!("{current} ")).unwrap().clone_into(&mut metric.r#type);
            continue;
        }
        let (sample, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        assert!(name.starts_with(&current), "{line}: under {current}");
        metric.samples.insert(name.to_owned());
        for label in labels.strip_suffix('}').unwrap().split(',').filter(|label| !label.is_empty()) {
            let (label, value) = label.split_once('=').unwrap();
            let value = value.trim_matches('"').to_owned();
            metric.labels.entry(label.to_owned()).or_default().insert(value);
        }
    }
    assert!(!metrics.is_empty());
    metrics
}

impl Metric {
    /// The names of its labels, without that of a histogram's buckets.
    pub fn own_labels(&self) -> BTreeSet<&str> {
        self.labels.keys().map(String::as_str).filter(|label| *label != "le").collect()
    }
}
