//! Readers of single values: each returns the value for a NodeClass or NodeSet, or why the value has no place there. No I/O.

use std::{ops::RangeInclusive, time::Duration};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_node_api::{GoDuration, quantity, taints};
use serde_json::{Value, json};

use super::ledger::Outcome;
use crate::{hollow_nodes::version, import::is_protected};

/// Returns the value as it is.
pub(super) fn text(value: &Value) -> Outcome {
    if value.is_string() { Ok(value.clone()) } else { Err(format!("{value} is no text: write it in quotes")) }
}

pub(super) fn flag(value: &Value) -> Outcome {
    if value.is_boolean() { Ok(value.clone()) } else { Err(format!("{value} is neither true nor false")) }
}

/// A whole number in the range that the schema has.
pub(super) fn count(value: &Value, range: RangeInclusive<u64>) -> Outcome {
    if value.as_u64().is_some_and(|number| range.contains(&number)) {
        return Ok(value.clone());
    }
    Err(format!("{value} is no whole number from {} to {}", range.start(), range.end()))
}

/// [`count`] of a number in an annotation.
pub(super) fn written_count(value: &Value, range: RangeInclusive<u64>) -> Outcome {
    let number = value.as_str().and_then(|text| text.parse::<u64>().ok());
    count(&number.map_or_else(|| value.clone(), Value::from), range)
}

/// A duration from a number of seconds.
pub(super) fn seconds(value: &Value, range: RangeInclusive<u64>) -> Outcome {
    let seconds = count(value, range)?.as_u64().unwrap_or_default();
    Ok(json!(GoDuration(Duration::from_secs(seconds))))
}

pub(super) fn duration(value: &Value) -> Outcome {
    match value {
        Value::String(text) => match text.parse::<GoDuration>() {
            Ok(_) => Ok(value.clone()),
            Err(error) => Err(error.to_string()),
        },
        value => Err(format!("{value} has no unit: write for example 30s")),
    }
}

/// An amount of a resource above zero.
pub(super) fn amount(value: &Value, example: &str) -> Outcome {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if quantity::nanos(&Quantity(text.clone())).is_ok_and(|nanos| nanos > 0) {
        return Ok(json!(text));
    }
    Err(format!("{text:?} is no amount: write for example {example}"))
}

/// A number of nodes or a percentage of them.
pub(super) fn number_or_percentage(value: &Value) -> Outcome {
    let is_number = value.as_u64().is_some_and(|number| i32::try_from(number).is_ok());
    let percentage = value.as_str().and_then(|text| text.strip_suffix('%'));
    let is_percentage = |text: &str| {
        text == "100" || (matches!(text.len(), 1..=2) && text.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if is_number || percentage.is_some_and(is_percentage) {
        return Ok(value.clone());
    }
    Err(format!("{value} is neither a number of nodes nor a percentage: write for example 2 or 25%"))
}

pub(super) fn strategy_type(value: &Value) -> Outcome {
    match value.as_str() {
        Some("RollingUpdate" | "OnDelete") => Ok(value.clone()),
        _ => Err(format!("{value} is no type of strategy: write RollingUpdate or OnDelete")),
    }
}

/// The order of victims for a delete policy.
pub(super) fn scale_down_order(value: &Value) -> Outcome {
    match value.as_str() {
        Some("Newest" | "Oldest") => Ok(value.clone()),
        Some("Random") => Err("no Node goes at random: those with the fewest pods go first".to_owned()),
        _ => Err(format!("{value} is no order: write Newest or Oldest")),
    }
}

/// A version of the kubelet, with the `v` that the Cluster API leaves out.
pub(super) fn kubelet_version(value: &Value) -> Outcome {
    let text = value.as_str().unwrap_or_default();
    let with_prefix = if text.starts_with('v') { text.to_owned() } else { format!("v{text}") };
    version(&with_prefix)
        .map(Value::from)
        .map_err(|_| format!("{value} is no version: write for example v1.36.3"))
}

/// Returns why Nodes cannot have a label or annotation, if they cannot.
pub(super) fn refused_on_nodes(key: &str, value: &Value) -> Option<String> {
    if key.starts_with(taints::OURS) {
        return Some(format!("keys under {} are the controller's: use a prefix of your own", taints::OURS));
    }
    text(value).err()
}

/// Returns why Nodes cannot have a label, if they cannot.
pub(super) fn refused_label(key: &str, value: &Value) -> Option<String> {
    let protected = is_protected(key).then(|| {
        "pods trust Nodes with this label: the chart's admissionPolicies.allowProtectedLabels lets a template set it".to_owned()
    });
    protected.or_else(|| refused_on_nodes(key, value))
}

/// Returns why Nodes cannot have a taint, if they cannot.
pub(super) fn refused_taint(
    key: Option<&Value>,
    value: Option<&Value>,
    effect: Option<&Value>,
) -> Option<String> {
    let Some(key) = key.and_then(Value::as_str).filter(|key| !key.is_empty()) else {
        return Some("a taint needs a key".to_owned());
    };
    if taints::is_reserved(key) {
        return Some(format!("controllers set and remove the taint {key} themselves"));
    }
    if !matches!(effect.and_then(Value::as_str), Some("NoSchedule" | "PreferNoSchedule" | "NoExecute")) {
        return Some("a taint needs an effect: NoSchedule, PreferNoSchedule or NoExecute".to_owned());
    }
    value.filter(|value| !value.is_null()).and_then(|value| text(value).err())
}
