//! The manifest of `setup --operator` is what the chart makes of its default values, without what belongs to helm.
//!
//! `KUBE_NODE_WRITE=1` writes it.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use super::render::{name, render};

const FILE: &str = "src/local-cluster/operator.yaml";

/// Kind and name of what `setup` applies without `--operator`.
fn applied() -> BTreeSet<(String, String)> {
    let objects = local_cluster::operator::everything(None).unwrap();
    objects.iter().map(|object| serde_json::to_value(object).unwrap()).map(|object| key(&object)).collect()
}

fn key(object: &Value) -> (String, String) {
    (object["kind"].as_str().unwrap().to_owned(), name(object).to_owned())
}

/// Without the labels by which helm knows its own.
fn freed(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.remove("helm.sh/chart");
            if let Some(manager) = fields.get_mut("app.kubernetes.io/managed-by") {
                *manager = json!("kube-node");
            }
            fields.values_mut().for_each(|field| *field = freed(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = freed(item.take())),
        _ => {}
    }
    value
}

#[test]
fn setup_installs_what_the_chart_renders() {
    let applied = applied();
    let is_hook = |object: &Value| !object["metadata"]["annotations"]["helm.sh/hook"].is_null();
    let own: Vec<Value> = render(&[])
        .into_iter()
        .filter(|object| !is_hook(object) && !applied.contains(&key(object)))
        .collect();
    let kinds: BTreeSet<&str> = own.iter().filter_map(|object| object["kind"].as_str()).collect();
    assert!(kinds.contains("Deployment") && kinds.contains("NetworkPolicy"), "{kinds:?}");
    let documents = own.into_iter().map(|object| serde_norway::to_string(&freed(object)).unwrap());
    let documents: Vec<String> = documents.map(|document| format!("---\n{document}")).collect();
    let text = documents.concat();
    let text = format!(
        "# The chart with its default values: KUBE_NODE_WRITE=1 cargo test --test helm writes this.\n{text}"
    );
    if std::env::var_os("KUBE_NODE_WRITE").is_some() {
        fs::write(FILE, &text).unwrap();
    }
    assert!(
        fs::read_to_string(FILE).unwrap() == text,
        "{FILE} is old: KUBE_NODE_WRITE=1 cargo test --test helm"
    );
}
