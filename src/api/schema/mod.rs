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
pub(super) use pod::{affinity, image, node_selector, requirements, tolerations};

/// Maximum size of a template's annotations, in bytes: those of class and set, the record of both and those
/// of other writers stay together below the API server's limit of 256 KiB per object.
const MAX_ANNOTATIONS: u32 = 64 * 1024;
/// Maximum size of a class's files, in bytes: they share a Secret, of at most 1 MiB, with the machine's credential.
const MAX_FILES: u32 = 1_000_000;
/// Maximum size of a class's commands, in bytes: the longest argument that Linux passes to a program.
const MAX_COMMANDS: u32 = 128 * 1024;

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

/// Rule for a text that becomes a label value.
pub(super) fn label_value() -> Value {
    rule(
        is_label_value("self"),
        "it becomes the value of a label: write at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends",
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

/// Rule for a key of a Secret or ConfigMap.
pub(super) fn data_key() -> Value {
    rule(
        "self.matches('^[-._a-zA-Z0-9]+$') && self != '.' && !self.startsWith('..')",
        "it is a key of a Secret or ConfigMap: write letters, digits, '-', '_' and '.', for example ca.crt",
    )
}

/// Rule for the path of a file on a machine.
pub(super) fn file_path() -> Value {
    rule(
        "self.startsWith('/') && !self.matches('^(/tmp|/kubeconfig/kubeconfig|/var/run/kube-node/(machine|state))/*$') && !self.startsWith('/var/run/kube-node/machine/')",
        "write an absolute path, for example /etc/motd; /tmp itself, /kubeconfig/kubeconfig and /var/run/kube-node are the machine's own",
    )
}

/// Rule for the owner of a file.
pub(super) fn file_owner() -> Value {
    rule(
        "self.split(':').size() <= 2 && self.split(':').all(id, id in ['root', 'nonroot'] || (id.matches('^[0-9]{1,10}$') && int(id) <= 4294967295))",
        "write user and group, each root, nonroot or a number, for example \"root:root\" or \"1000:1000\"",
    )
}

/// Rule for the mode of a file.
pub(super) fn file_mode() -> Value {
    rule("self.matches('^0?[0-7]{3}$')", "write an octal mode as a text, for example \"0640\"")
}

/// Rule for the files of a class.
pub(super) fn files_size() -> Value {
    rule(
        format!("self.map(f, has(f.content) ? size(bytes(f.content)) : 0).sum() <= {MAX_FILES}"),
        "the contents of all files are more than the 1000000 bytes that one Secret holds: shorten them, or put them into the image",
    )
}

/// Rule for the commands of a class.
pub(super) fn commands_size() -> Value {
    rule(
        format!("self.map(c, size(bytes(c))).sum() <= {MAX_COMMANDS}"),
        "all commands are more than 131072 bytes together: put them into a script of the image",
    )
}

/// Rule for the version of a kubelet.
pub(super) fn version() -> Value {
    rule("self.matches('^v[0-9]+[.][0-9]+[.][0-9]+')", "write a version, for example v1.36.3")
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

/// Adds keywords to a schema.
fn refine(schema: &mut Schema, keywords: Value) {
    if let (Some(found), Value::Object(keywords)) = (schema.as_object_mut(), keywords) {
        merge(found, keywords);
    }
}

/// Adds keywords to those of a schema; objects on both sides are merged.
fn merge(into: &mut Map<String, Value>, keywords: Map<String, Value>) {
    for (keyword, value) in keywords {
        match (into.get_mut(&keyword), value) {
            (Some(Value::Object(known)), Value::Object(more)) => merge(known, more),
            (_, value) => {
                into.insert(keyword, value);
            }
        }
    }
}
