//! Schema of a Node template: labels, annotations and taints.

use k8s_openapi::api::core::v1::Taint;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::json;

use super::{
    MAX_ANNOTATIONS, QUALIFIED_LENGTH, is_label_value, is_qualified, keys, label_value, merge, qualified,
    rule,
};
use crate::taints::{CLOUD_UNINITIALIZED, HOLLOW, OURS, RESERVED};

/// Schema of labels: keys and values that the API server accepts.
pub fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {
            "type": "string",
            "maxLength": 63,
            "x-kubernetes-validations": [rule(
                is_label_value("self"),
                "the value of a label has at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends: write for example zone-a",
            )]
        },
        "x-kubernetes-validations": [keys(
            &is_qualified("k"),
            "the key of a label has at most 63 letters, digits, '-', '_' and '.', after a DNS name and a slash where it has a prefix: write for example example.com/zone",
        )]
    })
}

/// Schema of annotations: keys that the API server accepts, and a size that leaves space for annotations of others.
pub fn annotations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": { "type": "string", "maxLength": 4096 },
        "x-kubernetes-validations": [
            keys(
                // The API server compares annotation keys in lower case.
                &is_qualified("k.lowerAscii()"),
                "the key of an annotation has at most 63 letters, digits, '-', '_' and '.', after a DNS name and a slash where it has a prefix: write for example example.com/owner",
            ),
            rule(
                "self.all(k, !(k in ['scheduler.alpha.kubernetes.io/taints', 'scheduler.alpha.kubernetes.io/preferAvoidPods']))",
                "scheduler.alpha.kubernetes.io/taints and /preferAvoidPods mean nothing any more, and the API server refuses most values: use taints",
            ),
            rule(
                format!("self.map(k, size(bytes(k)) + size(bytes(self[k]))).sum() <= {MAX_ANNOTATIONS}"),
                "annotations are more than 65536 bytes together: a Node holds 256 KiB, those of others included; shorten them",
            )
        ]
    })
}

/// Schema of permanent taints.
pub fn taints(generator: &mut SchemaGenerator) -> Schema {
    list(generator, &[])
}

/// Schema of startup taints; allows also the taint that a cloud-controller-manager waits for and removes.
pub fn startup_taints(generator: &mut SchemaGenerator) -> Schema {
    list(generator, &[CLOUD_UNINITIALIZED])
}

fn list(generator: &mut SchemaGenerator, allowed: &[&str]) -> Schema {
    let reserved: Vec<String> =
        RESERVED.iter().filter(|key| !allowed.contains(key)).map(|key| format!("'{key}'")).collect();
    let mut taint = generator.subschema_for::<Taint>();
    merge(
        taint.ensure_object(),
        json!({ "properties": {
            "key": { "maxLength": QUALIFIED_LENGTH, "x-kubernetes-validations": [
                qualified(),
                rule(
                    format!("!(self in [{}])", reserved.join(", ")),
                    "Kubernetes or cluster-autoscaler sets and removes this taint itself: use a key of your own, for example example.com/dedicated",
                ),
                rule(
                    format!("!self.startsWith('{OURS}') || self == '{HOLLOW}'"),
                    "taints under kube-node.io/ are the controller's: use a prefix of your own, for example example.com/dedicated",
                )
            ] },
            "value": { "maxLength": 63, "x-kubernetes-validations": [label_value()] },
            "effect": { "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"] },
        } }),
    );
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "atomic",
        "items": taint,
        "x-kubernetes-validations": [rule(
            "self.all(t, self.exists_one(o, o.key == t.key && o.effect == t.effect))",
            "two taints have the same key and effect: a node takes one, so remove the other or give it another effect",
        )]
    })
}
