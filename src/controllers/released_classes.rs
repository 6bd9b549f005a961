//! Classes that this operator releases: it removes, or has removed, the finalizer that keeps them.
//!
//! A late watch shows a released class long after its deletion, and its finalizer with it. A NodeSet would make Nodes of that
//! class while no finalizer keeps a new class of the same name.
//!
//! Invariant: a class is noted before its users are counted, so that a NodeSet either is counted or finds the note. A class that
//! stays gets another resource version, to which the note does not apply.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;

/// Released classes by name, each with the resource version that still has the finalizer.
#[derive(Debug, Default)]
pub struct ReleasedClasses(Mutex<HashMap<String, String>>);

impl ReleasedClasses {
    /// Returns true if the class is released in the version that was read.
    pub(super) fn contains(&self, read: &ObjectMeta) -> bool {
        let noted = self.0.lock();
        let version = read.name.as_ref().and_then(|name| noted.get(name));
        version.is_some() && version == read.resource_version.as_ref()
    }

    /// Notes a class before its finalizer is removed.
    pub(super) fn note(&self, read: &ObjectMeta) {
        if let (Some(name), Some(version)) = (read.name.clone(), read.resource_version.clone()) {
            self.0.lock().insert(name, version);
        }
    }

    /// Forgets a class that the watch does not show any more, or that has users after all.
    pub(super) fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }
}
