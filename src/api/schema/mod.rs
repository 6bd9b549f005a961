//! Schema parts that the derive macros cannot express: values that Kubernetes would refuse later on a Node or
//! a pod are refused here, with a message that says what to write.
//!
//! Rules are CEL: a `pattern` shows only itself when it refuses a value, and no schema of a
//! CustomResourceDefinition can restrict the keys of a map. Maximum sizes of lists, maps and texts keep the
//! estimated cost of the rules below the API server's limit.

mod amounts;
mod node;
mod pod;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

pub(super) use amounts::resources;
pub(super) use node::{annotations, labels, startup_taints, taints};
pub(super) use pod::{affinity, image, requirements, tolerations};

/// Maximum size of a template's annotations, in bytes: those of class and set, the record of both and those
/// of other writers stay together below the API server's limit of 256 KiB per object.
const MAX_ANNOTATIONS: u32 = 64 * 1024;
/// Name part of a label key, or a label value that is not empty.
const NAME: &str = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?";
/// Name of most objects (DNS subdomain).
const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
/// Maximum length of a qualified name: a DNS subdomain, a slash and a name.
const QUALIFIED_LENGTH: u32 = 253 + 1 + 63;

/// A CEL rule with the message for a refused value.
pub(super) fn rule(rule: impl Into<String>, message: &str) -> Value {
    json!({ "rule": rule.into(), "message": message })
}

/// A CEL rule over the keys of a map. Its message cannot name the key: without a maximum length, its cost is too high.
fn keys(valid: &str, message: &str) -> Value {
    rule(format!("self.all(k, {valid})"), message)
}

/// CEL expression: `text` is a qualified name, as keys of labels and taints are.
fn is_qualified(text: &str) -> String {
    format!("{text}.matches('^({SUBDOMAIN}/)?{NAME}$') && {text}.indexOf('/') <= 253")
}

/// CEL expression: `text` is a valid label value.
fn is_label_value(text: &str) -> String {
    format!("{text}.matches('^({NAME})?$')")
}

/// CEL expression: `text` is the length of a phase, a second or more, or none. A text that is no duration is left to the
/// rule of durations. One with a number of six digits is long enough; `duration` fails beyond 292 years.
pub(super) fn is_phase(text: &str) -> String {
    let is_duration = format!("{text}.matches('{}')", super::duration::PATTERN);
    let length = format!("duration({text})");
    format!(
        "!{is_duration} || {text}.matches('[1-9][0-9]{{5}}') || {length} == duration('0') || {length} >= duration('1s')"
    )
}

/// Rule for a text that becomes a label value.
pub(super) fn label_value() -> Value {
    rule(
        is_label_value("self"),
        "it becomes the value of a label: write at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends",
    )
}

/// Rule for the name of a revision. A revision is stored under the name of its class and its own, so a name of another form
/// could lead to the revision of another class.
pub(super) fn revision() -> Value {
    rule(
        "self.matches('^v[0-9]+-[0-9a-f]+$')",
        "write a revision as kube-node rollout history shows it, for example v1-9f86d08188, or remove it to have the newest",
    )
}

/// Rule for the key of a label or taint, or the type of a condition.
pub(super) fn qualified() -> Value {
    rule(
        is_qualified("self"),
        "write at most 63 letters, digits, '-', '_' and '.', after a DNS name and a slash where it has a prefix, for example example.com/zone",
    )
}

/// Rule for the name of an object.
pub(super) fn object_name() -> Value {
    rule(
        format!("self.matches('^{SUBDOMAIN}$')"),
        "it is the name of an object: write lower case letters, digits, '-' and '.', with a letter or digit at both ends",
    )
}

/// Rule for a share between 0 and 1.
pub(super) fn share() -> Value {
    rule(
        "self.matches('^(0([.][0-9]{1,6})?|1([.]0{1,6})?)$')",
        "write a share between 0 and 1, as a text, for example \"0.5\"",
    )
}

/// Schema of a number or a percentage.
pub(super) fn int_or_percent(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 8,
        "x-kubernetes-validations": [rule(
            "type(self) == int ? self >= 0 && self <= 2147483647 : self.matches('^(100|[0-9]{1,2})%$')",
            "write a number of nodes, for example 2, or a percentage of replicas from 0% to 100%, for example 25%",
        )]
    })
}

/// Adds keywords to those of a schema; objects on both sides are merged.
fn merge(schema: &mut Map<String, Value>, keywords: Value) {
    let Value::Object(keywords) = keywords else { return };
    for (keyword, value) in keywords {
        match schema.get_mut(&keyword) {
            Some(Value::Object(known)) if value.is_object() => merge(known, value),
            _ => drop(schema.insert(keyword, value)),
        }
    }
}
