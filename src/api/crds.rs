//! CustomResourceDefinitions of NodeClass and NodeSet, generated from the Rust types.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use super::{NodeClass, NodeSet};

/// Both CustomResourceDefinitions. They are derived once: that takes milliseconds.
static CRDS: LazyLock<[CustomResourceDefinition; 2]> = LazyLock::new(|| {
    [NodeClass::crd(), NodeSet::crd()].map(|mut crd| {
        let schemas = crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
        schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut()).for_each(not_nullable);
        crd
    })
});

/// Both CustomResourceDefinitions, in the order in which to apply them.
pub fn crds() -> &'static [CustomResourceDefinition; 2] {
    &CRDS
}

/// Removes `nullable`, which the schema derivation adds to each optional field. By the API conventions an
/// optional field is absent, and the API server drops a null where the schema allows none.
fn not_nullable(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.properties.iter_mut().flatten().for_each(|(_, field)| not_nullable(field));
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        not_nullable(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        not_nullable(values);
    }
}
