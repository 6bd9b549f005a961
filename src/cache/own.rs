//! What is kept of our own kinds: the whole object, or why it cannot be read.
//!
//! An object stored under an older definition may not fit the types of today. It must neither stop the watch of the
//! others nor look like one that is gone: its metadata is always there.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::DeserializeGuard};

use super::View;
use crate::api::{NodeClass, NodeSet};

/// An object of ours.
#[derive(Clone, Debug)]
pub struct Own<K> {
    /// Its metadata, without managedFields.
    pub metadata: ObjectMeta,
    /// The object, for whoever keeps it longer than the cache does, or why it cannot be read.
    pub object: Result<Arc<K>, String>,
}

impl<K> Own<K> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether its deletion was asked for.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it carries a finalizer.
    #[must_use]
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.metadata.finalizers.iter().flatten().any(|own| own == finalizer)
    }
}

impl<K: Resource> From<DeserializeGuard<K>> for Own<K> {
    fn from(DeserializeGuard(result): DeserializeGuard<K>) -> Self {
        match result {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                Self { metadata: object.meta().clone(), object: Ok(Arc::new(object)) }
            }
            Err(invalid) => Self {
                metadata: ObjectMeta { managed_fields: None, ..invalid.metadata },
                object: Err(invalid.error),
            },
        }
    }
}

impl View for Own<NodeClass> {
    fn key(&self) -> String {
        self.name().to_owned()
    }

    fn group(&self) -> Option<&str> {
        None
    }
}

/// Grouped by class.
impl View for Own<NodeSet> {
    fn key(&self) -> String {
        self.name().to_owned()
    }

    fn group(&self) -> Option<&str> {
        self.object.as_ref().ok().map(|set| set.spec.node_class_name.as_str())
    }
}
