//! Readers of single values: each returns the value for a NodeClass or NodeSet, or why the value has no place there. No I/O.

use std::{ops::RangeInclusive, time::Duration};

use kube_node_api::{GoDuration, quantity, taints};
use serde_json::{Value, json};

use super::{
    ledger::Outcome,
    syntax::{is_image, is_label_value, is_qualified},
};
use crate::{hollow_nodes::version, import::is_protected};

/// Maximum lengths in the schema.
const AMOUNT_LENGTH: usize = 32;
const ANNOTATION_LENGTH: usize = 4_096;
const VERSION_LENGTH: usize = 63;
/// Annotations that the schema refuses.
const OBSOLETE: [&str; 2] =
    ["scheduler.alpha.kubernetes.io/preferAvoidPods", "scheduler.alpha.kubernetes.io/taints"];
const KEY: &str = "the key has at most 63 letters, digits, '-', '_' and '.', after a DNS name and a slash where it has a prefix: write for example example.com/zone";
const LABEL_VALUE: &str = "the value has at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends: write for example zone-a";

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

/// The length of a phase of the fault injection.
pub(super) fn phase(value: &Value) -> Outcome {
    let outcome = duration(value)?;
    let length = value.as_str().and_then(|text| text.parse::<GoDuration>().ok()).unwrap_or_default();
    if (Duration::from_nanos(1)..Duration::from_secs(1)).contains(&length.0) {
        return Err(format!("{value} is too short: write at least 1s"));
    }
    Ok(outcome)
}

/// An amount of a resource above zero and below 8Ei, the limit of the schema.
pub(super) fn amount(value: &Value, example: &str) -> Outcome {
    const LIMIT: i128 = i64::MAX as i128 * 1_000_000_000;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let digits = text.trim_start_matches('0');
    if digits.len() < text.len() && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        // YAML 1.1, which kubectl reads, has octal numbers.
        let octal =
            u64::from_str_radix(&text, 8).map_or_else(|_| String::new(), |octal| format!("{octal} or "));
        return Err(format!(
            "{text} begins with 0, which YAML 1.1 and 1.2 read differently: write {octal}{digits}"
        ));
    }
    match quantity::nanos_of(&text) {
        Ok(nanos) if (1..LIMIT).contains(&nanos) && text.len() <= AMOUNT_LENGTH => Ok(json!(text)),
        Ok(LIMIT..) => Err(format!("{value} is not less than 8Ei: write for example {example}")),
        _ => Err(format!("{value} is no amount: write for example {example}")),
    }
}

pub(super) fn image(value: &Value) -> Outcome {
    match value.as_str() {
        Some(text) if is_image(text) => Ok(value.clone()),
        _ => Err(format!(
            "{value} is no name of an image: write for example registry.example.com/kubemark:v1.36.3"
        )),
    }
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
        .ok()
        .filter(|version| version.len() <= VERSION_LENGTH)
        .map(Value::from)
        .ok_or_else(|| format!("{value} is no version: write for example v1.36.3"))
}

/// Returns why an object cannot have a label or annotation, if it cannot: of `labels` or `annotations`, a key and its value.
pub(super) type Refused = fn(&str, &str, &Value) -> Option<String>;

/// [`Refused`] for any object.
pub(super) fn refused_text(field: &str, key: &str, value: &Value) -> Option<String> {
    let refused = if field == "labels" {
        // API servers compare keys of annotations in lower case.
        (!is_qualified(key))
            .then_some(KEY)
            .or_else(|| (!is_label_value(value.as_str()?)).then_some(LABEL_VALUE))
    } else {
        (!is_qualified(&key.to_ascii_lowercase())).then_some(KEY)
    };
    text(value).err().or_else(|| refused.map(str::to_owned))
}

/// [`Refused`] for Nodes.
pub(super) fn refused_on_nodes(field: &str, key: &str, value: &Value) -> Option<String> {
    let is_label = field == "labels";
    if is_label && is_protected(key) {
        return Some("pods trust Nodes with this label: the chart's admissionPolicies.allowProtectedLabels lets a template set it".to_owned());
    }
    if key.starts_with(taints::OURS) {
        return Some(format!("keys under {} are the controller's: use a prefix of your own", taints::OURS));
    }
    if !is_label && OBSOLETE.contains(&key) {
        return Some("it means nothing any more: use taints".to_owned());
    }
    let is_long = !is_label && value.as_str().is_some_and(|value| value.chars().count() > ANNOTATION_LENGTH);
    let long = is_long.then(|| format!("it has more than {ANNOTATION_LENGTH} characters: shorten it"));
    refused_text(field, key, value).or(long)
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
    if !is_qualified(key) {
        return Some(KEY.to_owned());
    }
    if taints::is_reserved(key) {
        return Some(format!("controllers set and remove the taint {key} themselves"));
    }
    if !matches!(effect.and_then(Value::as_str), Some("NoSchedule" | "PreferNoSchedule" | "NoExecute")) {
        return Some("a taint needs an effect: NoSchedule, PreferNoSchedule or NoExecute".to_owned());
    }
    let value = value.filter(|value| !value.is_null())?;
    text(value).err().or_else(|| (!is_label_value(value.as_str()?)).then(|| LABEL_VALUE.to_owned()))
}
