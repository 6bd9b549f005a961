//! The dashboard and the alerts: each query is one that Prometheus reads, asks for metrics and labels that a running
//! cluster exports, and for values of labels that there can be.

use std::collections::BTreeSet;

use promql_parser::{
    label::{MatchOp, Matcher},
    parser::{self, AggregateExpr, Expr, LabelModifier, VectorSelector},
    util::{ExprVisitor, walk_expr},
};
use serde_json::Value;

use super::{
    code,
    exposition::{self, Metric},
    rows, table,
};

const DASHBOARD: &str = include_str!("../../../charts/kube-node/dashboards/kube-node.json");
const RULES: &str = include_str!("../../../charts/kube-node/rules/kube-node.yaml");

/// Labels that Prometheus gives each target.
const OF_TARGETS: [&str; 4] = ["job", "instance", "namespace", "pod"];

/// What a query asks for.
#[derive(Default)]
struct Asked {
    selectors: Vec<VectorSelector>,
    /// Labels that it groups by.
    groups: BTreeSet<String>,
}

impl ExprVisitor for Asked {
    type Error = String;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, String> {
        match expression {
            Expr::VectorSelector(selector) => self.selectors.push(selector.clone()),
            Expr::MatrixSelector(matrix) => self.selectors.push(matrix.vs.clone()),
            Expr::Aggregate(AggregateExpr { modifier: Some(LabelModifier::Include(labels)), .. }) => {
                self.groups.extend(labels.labels.iter().cloned());
            }
            Expr::Aggregate(AggregateExpr { modifier: Some(LabelModifier::Exclude(_)), .. }) => {
                return Err("name the labels that stay (by), not those that go".to_owned());
            }
            _ => {}
        }
        Ok(true)
    }
}

/// A query, checked against what is exported; the labels that its result has.
fn check(query: &str) -> Result<BTreeSet<String>, String> {
    let expression = parser::parse(query)?;
    let mut used = Asked::default();
    walk_expr(&mut used, &expression)?;
    let exported = exposition::read();
    let mut labels: BTreeSet<String> = BTreeSet::new();
    if used.selectors.is_empty() {
        return Err("it asks for no metric".to_owned());
    }
    for selector in &used.selectors {
        let name = selector.name.as_deref().ok_or("a selector without a name")?;
        let (of, metric) = exported
            .iter()
            .find(|(_, metric)| metric.samples.contains(name))
            .ok_or_else(|| format!("no {name} is exported"))?;
        for matcher in &selector.matchers.matchers {
            matches_something(of, metric, matcher)?;
        }
        let is_bucket = metric.r#type == "histogram" && name.ends_with("_bucket");
        labels.extend(metric.own_labels().into_iter().map(str::to_owned));
        labels.extend(is_bucket.then(|| "le".to_owned()));
    }
    match used.groups.iter().find(|group| !labels.contains(*group)) {
        Some(group) => Err(format!("nothing that it asks for has the label {group}")),
        None => Ok(used.groups),
    }
}

/// Whether a condition on a label can hold.
fn matches_something(of: &str, metric: &Metric, matcher: &Matcher) -> Result<(), String> {
    let label = matcher.name.as_str();
    if OF_TARGETS.contains(&label) {
        return Ok(());
    }
    if !metric.own_labels().contains(label) {
        return Err(format!("{of} has no label {label}"));
    }
    let wanted: Vec<&str> = match &matcher.op {
        MatchOp::Equal | MatchOp::NotEqual => vec![&matcher.value],
        // As they are written here: words, one or another.
        MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.split('|').collect(),
    };
    let known = table::documented(of, label);
    match wanted.into_iter().find(|value| !known.contains(*value)) {
        Some(value) => Err(format!("{label} of {of} is never {value}")),
        None => Ok(()),
    }
}

/// The labels that a text of Prometheus or Grafana fills in.
fn placeholders(text: &str) -> BTreeSet<String> {
    let inner = text.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0.trim()));
    inner
        .map(|inner| inner.trim_start_matches("$labels.").to_owned())
        .filter(|name| !name.starts_with('$'))
        .collect()
}

#[test]
fn a_wrong_query_is_found() {
    let wrong = |query: &str| check(query).unwrap_err();
    assert!(!wrong("sum by (reason").is_empty());
    assert!(wrong("rate(kube_node_nonsense_total[5m])").contains("no kube_node_nonsense_total is exported"));
    assert!(wrong("kube_node_machines{nonsense=\"a\"}").contains("has no label nonsense"));
    assert!(wrong("kube_node_nodes{stage=~\"ready|redy\"}").contains("never redy"));
    assert!(
        wrong("sum by (reason) (kube_node_machines)")
            .contains("nothing that it asks for has the label reason")
    );
    assert!(wrong("kube_node_reconcile_duration_seconds").contains("is exported"), "a histogram is three");
    assert!(wrong("sum without (job) (kube_node_machines)").contains("name the labels"));
    check("max by (provider) (kube_node_machines{job=\"a\"}) > 0").unwrap();
}

#[test]
fn every_query_of_the_dashboard_asks_for_what_there_is() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut used = String::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            used.push_str(query);
            let filled = query.replace("$__rate_interval", "5m").replace("$job", ".*");
            let labels = check(&filled).unwrap_or_else(|error| panic!("{title}: {query}: {error}"));
            let legend = placeholders(target["legendFormat"].as_str().unwrap());
            assert!(legend.is_subset(&labels), "{title}: {legend:?} of {labels:?}");
        }
    }
    for name in exposition::read().keys() {
        assert!(used.contains(name.as_str()), "{name} is on no panel");
    }
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
}

#[test]
fn no_two_panels_lie_on_each_other() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
        for cell in
            (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            assert!(taken.insert(cell), "{} lies on another one", panel["title"]);
        }
    }
}

#[test]
fn every_alert_asks_for_what_there_is_and_is_on_the_page() {
    let rules: Value = serde_norway::from_str(RULES).unwrap();
    let mut alerts = Vec::new();
    for rule in
        rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap())
    {
        let name = rule["alert"].as_str().unwrap();
        let labels = check(rule["expr"].as_str().unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let duration = rule["for"].as_str().unwrap_or_else(|| panic!("{name}: for how long?"));
        assert!(duration.parse::<kube_node_api::GoDuration>().is_ok(), "{name}: {duration}");
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["warning", "critical"].contains(&severity), "{name}: {severity}");
        for text in ["summary", "description"] {
            let text = rule["annotations"][text].as_str().unwrap();
            assert!(text.ends_with('.') && placeholders(text).is_subset(&labels), "{name}: {text}");
        }
        alerts.push((name.to_owned(), severity.to_owned()));
    }
    let named: Vec<(String, String)> =
        rows("alerts").into_iter().map(|row| (code(&row[0])[0].to_owned(), row[1].clone())).collect();
    assert_eq!(alerts, named);
}
