//! The tables of metrics and of their labels: what they say is there, what is there they say, and by the conventions.

use std::collections::{BTreeMap, BTreeSet};

use super::{CLUSTER, code, exposition, rows};
use kube_node_testing::{Fixture, class_spec};

/// Names that objects of this test have: no label may have them.
const NAME: &str = "observability-table";
/// Units that a name may end with, before `_total`.
const UNITS: [&str; 2] = ["seconds", "bytes"];

/// Values by metric and label, as the page has them.
fn values() -> BTreeMap<(String, String), BTreeSet<String>> {
    let of = |cell: &str| -> BTreeSet<String> { code(cell).into_iter().map(str::to_owned).collect() };
    let mut values: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for row in rows("labels") {
        let key = (code(&row[0])[0].to_owned(), code(&row[1])[0].to_owned());
        let value = match row[2].as_str() {
            "that of `kube-node --version`" => [env!("CARGO_PKG_VERSION").to_owned()].into(),
            cell if cell.starts_with("as of `") => values[&(code(cell)[0].to_owned(), key.1.clone())].clone(),
            cell => of(cell),
        };
        assert!(values.insert(key.clone(), value).is_none(), "{key:?} stands there twice");
    }
    values
}

/// The values of a label that the page names.
pub fn documented(metric: &str, label: &str) -> BTreeSet<String> {
    values().remove(&(metric.to_owned(), label.to_owned())).unwrap_or_default()
}

#[tokio::test]
async fn what_is_exported_is_what_the_page_says() {
    let own = Fixture::new(&CLUSTER, NAME, 2, class_spec()).await;
    own.settled(2).await;
    let exported = exposition::read();
    let mut documented = BTreeSet::new();
    for row in rows("metrics") {
        let name = code(&row[0])[0].to_owned();
        let metric = exported.get(&name).unwrap_or_else(|| panic!("{name} is not exported"));
        assert_eq!(metric.r#type, row[1], "{name}");
        assert_eq!(metric.own_labels(), code(&row[2]).into_iter().collect(), "labels of {name}");
        assert!(documented.insert(name.clone()), "{name} stands there twice");
        assert!(!row[4].is_empty(), "{name} means something");
        let unit =
            UNITS.into_iter().find(|unit| name.trim_end_matches("_total").ends_with(&format!("_{unit}")));
        assert!(unit.is_none_or(|unit| unit == row[3]), "unit of {name}");
        assert!(unit.is_some() || !UNITS.contains(&row[3].as_str()), "{name} has its unit in its name");
    }
    let exported_names: BTreeSet<String> = exported.keys().cloned().collect();
    assert_eq!(exported_names, documented, "what is exported is on the page");
    let values = values();
    for (name, metric) in &exported {
        for label in metric.own_labels() {
            let seen = &metric.labels[label];
            let known = values.get(&(name.clone(), label.to_owned()));
            let known =
                known.unwrap_or_else(|| panic!("the values of {label} of {name} are not on the page"));
            assert!(seen.is_subset(known), "{name}: {label}: {:?}", seen.difference(known));
            let from_the_start = !matches!(label, "code") && !name.starts_with("kube_node_hollow_");
            assert!(!from_the_start || known == seen, "{name}: {label}: {:?}", known.difference(seen));
        }
    }
    for (name, label) in values.keys() {
        assert!(exported[name].own_labels().contains(label.as_str()), "{name} has no {label}");
    }
    own.clean_up().await;
}

#[tokio::test]
async fn metrics_are_named_by_the_conventions() {
    let own = Fixture::new(&CLUSTER, "observability-names", 1, class_spec()).await;
    own.settled(1).await;
    for (name, metric) in exposition::read() {
        assert!(name.starts_with("kube_node_"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert_eq!(name.ends_with("_total"), metric.r#type == "counter", "{name}: a total is a counter");
        let has_unit = UNITS.iter().any(|unit| name.ends_with(&format!("_{unit}")));
        assert!(metric.r#type != "histogram" || has_unit, "{name} is measured in something");
        assert!(!metric.help.is_empty() && !metric.help.ends_with('.'), "{name}: {}", metric.help);
        for label in metric.own_labels() {
            let values = &metric.labels[label];
            // A set waits for one of some thirty reasons.
            assert!(values.len() <= 64, "{name}: {label} is not bounded: {values:?}");
            for value in values {
                let is_word = value.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
                assert!(is_word && !value.contains("observability-"), "{name}: {label}={value}");
            }
        }
    }
    own.clean_up().await;
}
