//! The three kinds of patches, applied to a JSON value.
//!
//! Strategic merge patches know the merge keys of the lists that components of a cluster patch so; every other list is
//! replaced.

use serde_json::{Map, Value, json};

/// Why a patch cannot be applied.
#[derive(Debug, PartialEq, Eq)]
pub enum PatchError {
    /// The patch cannot be read.
    Unreadable(String),
    /// An operation of a JSON patch does not fit the object.
    Unfit(String),
}

/// Applies a JSON merge patch (RFC 7396).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return target.clone_from(patch) };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(target) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Applies a JSON patch (RFC 6902).
pub fn json_patch(target: &mut Value, patch: &[u8]) -> Result<(), PatchError> {
    let patch: json_patch::Patch =
        serde_json::from_slice(patch).map_err(|error| PatchError::Unreadable(error.to_string()))?;
    json_patch::patch(target, &patch).map_err(|error| PatchError::Unfit(error.to_string()))
}

/// Merge key of a list; None for a list that is replaced.
fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "conditions" | "addresses" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        "ownerReferences" => Some("uid"),
        "containers" | "initContainers" | "volumes" | "imagePullSecrets" | "env" => Some("name"),
        _ => None,
    }
}

/// Applies a strategic merge patch.
pub fn strategic(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return target.clone_from(patch) };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(target) = target.as_object_mut() else { return };
    if patch.get("$patch").is_some_and(|directive| directive == "replace") {
        target.clear();
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().cloned().unwrap_or_default();
            if let Some(Value::Array(items)) = target.get_mut(list) {
                items.retain(|item| !gone.contains(item));
            }
        }
    }
    for (key, value) in patch {
        match (key.as_str(), value) {
            (directive, _) if directive.starts_with('$') => {}
            (_, Value::Null) => drop(target.remove(key)),
            ("finalizers", Value::Array(added)) => add_missing(target, key, added),
            (_, Value::Array(items)) => match merge_key(key) {
                Some(by) => merge_list(target, key, items, by, patch.get(&format!("$setElementOrder/{key}"))),
                None => drop(target.insert(key.clone(), value.clone())),
            },
            _ => strategic(target.entry(key).or_insert(Value::Null), value),
        }
    }
}

/// Adds the values that a list of primitives lacks.
fn add_missing(target: &mut Map<String, Value>, key: &str, added: &[Value]) {
    let Value::Array(items) = target.entry(key).or_insert_with(|| json!([])) else { return };
    let before = items.clone();
    items.extend(added.iter().filter(|value| !before.contains(value)).cloned());
    arrange(items, &before, added, |one, other| one == other);
}

/// Merges a list by its key. With an order, the named items come in it.
fn merge_list(target: &mut Map<String, Value>, list: &str, patch: &[Value], by: &str, order: Option<&Value>) {
    let Value::Array(items) = target.entry(list).or_insert_with(|| json!([])) else { return };
    let before = items.clone();
    if patch.iter().any(|item| item["$patch"] == "replace") {
        items.clear();
    }
    for item in patch {
        let found = items.iter().position(|old| old.get(by) == item.get(by));
        match (item["$patch"].as_str(), found) {
            (Some("delete"), Some(at)) => drop(items.remove(at)),
            (Some(_), _) => {}
            (None, Some(at)) => strategic(&mut items[at], item),
            (None, None) => {
                let mut new = Value::Null;
                strategic(&mut new, item);
                items.push(new);
            }
        }
    }
    let order = order.and_then(Value::as_array).map_or(patch, Vec::as_slice);
    arrange(items, &before, order, |one, other| one.get(by) == other.get(by));
}

/// Brings the items that `order` names into that order. Any other item stays before those that it preceded in
/// `before`, and comes last otherwise (apimachinery, `strategicpatch`, `mergeSortedSlice`).
fn arrange(items: &mut Vec<Value>, before: &[Value], order: &[Value], same: impl Fn(&Value, &Value) -> bool) {
    let place = |list: &[Value], item: &Value| list.iter().position(|other| same(other, item));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        std::mem::take(items).into_iter().partition(|item| place(order, item).is_some());
    named.sort_by_key(|item| place(order, item));
    others.sort_by_key(|item| place(before, item));
    let mut others = others.into_iter().peekable();
    for item in named {
        let at = place(before, &item);
        while let Some(other) = others.next_if(|other| at.is_some() && place(before, other) < at) {
            items.push(other);
        }
        items.push(item);
    }
    items.extend(others);
}
