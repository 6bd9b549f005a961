//! What objects say, read from their JSON, and what a change replaced of one.

use std::collections::BTreeSet;

use kube_node_testing::api_server::Change;
use serde_json::Value;

use crate::actions::OTHERS;

pub fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

pub fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

pub fn set_of(node: &Value) -> String {
    node["metadata"]["labels"]["kube-node.io/nodeset"].as_str().unwrap_or_default().to_owned()
}

/// Keys of the taints that keep pods away.
pub fn taints(node: &Value) -> impl Iterator<Item = &str> {
    let all = node["spec"]["taints"].as_array().into_iter().flatten();
    all.filter(|taint| taint["effect"] != "PreferNoSchedule").filter_map(|taint| taint["key"].as_str())
}

pub fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// A Node that a user has cordoned is available: its pods run.
pub fn is_available(node: &Value) -> bool {
    let initialized = taints(node).all(|key| key != "kube-node.io/uninitialized");
    initialized && is_ready(node) && !is_draining(node)
}

/// A Node that is made again may have the note of the drain before.
pub fn is_draining(node: &Value) -> bool {
    let metadata = &node["metadata"];
    metadata["annotations"]["kube-node.io/drain-started"].is_string()
        && metadata["deletionTimestamp"].is_string()
}

/// Labels, annotations, taints and owners that others gave a Node, with their values.
pub fn foreign(node: &Value) -> BTreeSet<String> {
    let metadata = &node["metadata"];
    let maps = [&metadata["labels"], &metadata["annotations"]];
    let entries = maps.into_iter().filter_map(Value::as_object).flatten();
    let entries = entries.map(|(key, value)| format!("{key}={value}"));
    let lists = [&node["spec"]["taints"], &metadata["ownerReferences"]];
    let items = lists.into_iter().filter_map(Value::as_array).flatten().map(Value::to_string);
    entries.chain(items).filter(|text| text.contains(OTHERS)).collect()
}

/// The parts of an object that a change replaced.
pub fn difference(change: &Change) -> String {
    let Some(before) = &change.before else { return String::new() };
    let mut parts = Vec::new();
    compare("", before, &change.after, &mut parts);
    parts.join(", ")
}

fn compare(path: &str, before: &Value, after: &Value, parts: &mut Vec<String>) {
    if before == after || path == ".metadata.resourceVersion" || path.ends_with(".managedFields") {
        return;
    }
    if let (Value::Object(old), Value::Object(new)) = (before, after) {
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            compare(&format!("{path}.{key}"), &before[key], &after[key], parts);
        }
        return;
    }
    let text: String = after.to_string().chars().take(160).collect();
    parts.push(format!("{}={text}", path.trim_start_matches('.')));
}
