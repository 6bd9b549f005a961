//! What both kinds share: resource maps, the template of a Node, references, and the pieces of schema that the
//! derive cannot say.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::Taint,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Condition},
};
use kube::{CustomResourceExt, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{NodeClass, NodeSet};

/// Amounts by resource name, extended resources included.
pub type Resources = BTreeMap<String, Quantity>;

/// The name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// One key of a Secret or a ConfigMap in the operator's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretKeyRef {
    /// Name of the Secret or ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key inside it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// What every Node of a class or set carries. Changes reach living Nodes in place; they never replace one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.labels) || self.labels.all(k, !k.startsWith('kube-node.io/'))")
        .message("labels under kube-node.io/ are the controller's: use a prefix of your own"),
    validation = Rule::new("!has(self.annotations) || self.annotations.all(k, !k.startsWith('kube-node.io/'))")
        .message("annotations under kube-node.io/ are the controller's: use a prefix of your own")
)]
pub struct NodeTemplate {
    /// Labels of every Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of every Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "string_map")]
    pub annotations: BTreeMap<String, String>,
    /// Taints of every Node, kept as long as the template names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub taints: Vec<Taint>,
    /// Taints set once at the Node's creation and never again; whoever a taint waits for removes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub startup_taints: Vec<Taint>,
}

/// Schema of labels and annotations: bounded, so that the cost of the rules over them is.
fn string_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 64, "additionalProperties": { "type": "string", "maxLength": 4096 } })
}

/// Schema of a resource map: each value a quantity, not negative, said by its own key.
pub(super) fn resources(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "x-kubernetes-int-or-string": true, "maxLength": 32 },
        "x-kubernetes-validations": [
            {
                "rule": "self.all(k, isQuantity(string(self[k])))",
                "message": "each amount must be a quantity: write for example 4, 500m or 16Gi"
            },
            {
                "rule": "self.all(k, !isQuantity(string(self[k])) || !quantity(string(self[k])).isLessThan(quantity('0')))",
                "message": "an amount cannot be negative"
            }
        ]
    })
}

/// Schema of a number or a percentage.
pub(super) fn int_or_percent(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 8,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 0 : self.matches('^(100|[0-9]{1,2})%$')",
            "message": "write a number of nodes, for example 2, or a percentage of replicas from 0% to 100%, for example 25%"
        }]
    })
}

/// Schema of conditions: a list keyed by type, so that several writers can share it.
pub(super) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": generator.subschema_for::<Condition>(),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"]
    })
}

/// Both CustomResourceDefinitions, in the order in which to apply them.
#[must_use]
pub fn crds() -> [CustomResourceDefinition; 2] {
    [NodeClass::crd(), NodeSet::crd()]
}
