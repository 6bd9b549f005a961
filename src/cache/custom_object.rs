//! Cached form of our own kinds: the whole object, or the reason why it cannot be parsed.
//!
//! An object stored under an older definition may not fit the current types. Such an object must neither stop
//! the watch of the others nor look deleted: its metadata is always there.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube_node_api::{NodeClass, NodeSet};
use serde::{Deserialize, Deserializer, de, de::DeserializeOwned};
use serde_json::Value;

use super::View;

/// A custom object.
#[derive(Clone, Debug)]
pub struct CustomObject<K> {
    /// Metadata, without `managedFields`.
    pub metadata: ObjectMeta,
    /// The object, shared with users that outlive its cache entry, or the parse error.
    pub object: Result<Arc<K>, String>,
    /// Class name of a NodeSet that cannot be parsed otherwise: the NodeSet uses that class all the same.
    pub class: Option<String>,
}

/// A cached NodeClass.
pub type CachedNodeClass = CustomObject<NodeClass>;
/// A cached NodeSet.
pub type CachedNodeSet = CustomObject<NodeSet>;

impl<K> CustomObject<K> {
    /// Name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns true if the deletion of the object was requested.
    pub fn is_leaving(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns true if the object has this finalizer.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.metadata.finalizers.iter().flatten().any(|own| own == finalizer)
    }
}

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for CustomObject<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Value::deserialize(deserializer)?;
        match K::deserialize(&raw) {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                Ok(Self { metadata: object.meta().clone(), object: Ok(Arc::new(object)), class: None })
            }
            Err(error) => {
                let metadata = ObjectMeta::deserialize(&raw["metadata"]).map_err(de::Error::custom)?;
                Ok(Self {
                    metadata: ObjectMeta { managed_fields: None, ..metadata },
                    object: Err(error.to_string()),
                    class: raw["spec"]["nodeClassName"].as_str().map(str::to_owned),
                })
            }
        }
    }
}

/// Served like `K`.
impl<K: Resource> Resource for CustomObject<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl View for CustomObject<NodeClass> {
    fn key(&self) -> String {
        self.name().to_owned()
    }
}

/// Indexed by class.
impl View for CustomObject<NodeSet> {
    fn key(&self) -> String {
        self.name().to_owned()
    }

    fn index_key(&self) -> Option<&str> {
        match &self.object {
            Ok(set) => Some(&set.spec.node_class_name),
            Err(_) => self.class.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_set_that_cannot_be_read_uses_its_class() {
        let stored = |spec: Value| {
            serde_json::from_value::<CustomObject<NodeSet>>(json!({
                "apiVersion": "kube-node.io/v1alpha1",
                "kind": "NodeSet",
                "metadata": {"name": "set", "managedFields": [{}]},
                "spec": spec,
            }))
            .unwrap()
        };
        let read = stored(json!({"nodeClassName": "medium"}));
        assert_eq!(
            (read.key().as_str(), View::index_key(&read), read.object.is_ok()),
            ("set", Some("medium"), true)
        );
        let odd = stored(json!({"nodeClassName": "medium", "replicas": "many"}));
        assert_eq!(
            (odd.key().as_str(), View::index_key(&odd), odd.object.is_ok()),
            ("set", Some("medium"), false)
        );
        assert_eq!((odd.metadata.managed_fields, read.metadata.managed_fields), (None, None));
        let nameless = stored(json!({"nodeClassName": 7}));
        assert_eq!((View::index_key(&nameless), nameless.object.is_ok()), (None, false));
    }
}
