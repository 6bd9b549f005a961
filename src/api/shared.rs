//! Types that NodeClass and NodeSet share: resource lists, the Node template, and references.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::api::resource::Quantity};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Quantities by resource name, extended resources included.
pub type Resources = BTreeMap<String, Quantity>;

/// A reference to an object by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = [schema::object_name()]))]
    pub name: String,
}

/// One key of a Secret or a ConfigMap in the operator's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct SecretKeyRef {
    /// Name of the Secret or ConfigMap.
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = [schema::object_name()]))]
    pub name: String,
    /// Key in the Secret or ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$') && self != '.' && !self.startsWith('..')")
        .message("it is a key of a Secret or ConfigMap: write letters, digits, '-', '_' and '.', for example ca.crt"))]
    pub key: String,
}

/// Metadata and taints of every Node of a class or set. Changes reach existing Nodes and never replace one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.labels) || self.labels.all(k, !k.startsWith('kube-node.io/'))")
        .message("labels under kube-node.io/ are the controller's: use a prefix of your own"),
    validation = Rule::new("!has(self.labels) || !('kubernetes.io/hostname' in self.labels)")
        .message("the label kubernetes.io/hostname is the name of each node: leave it out"),
    validation = Rule::new("!has(self.annotations) || self.annotations.all(k, !k.startsWith('kube-node.io/'))")
        .message("annotations under kube-node.io/ are the controller's: use a prefix of your own")
)]
pub struct NodeTemplate {
    /// Labels of every Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of every Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::annotations")]
    pub annotations: BTreeMap<String, String>,
    /// Taints of every Node, kept as long as the template names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::taints")]
    pub taints: Vec<Taint>,
    /// Taints set once at the Node's creation and never again; the component that a taint waits for removes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::startup_taints")]
    pub startup_taints: Vec<Taint>,
}
