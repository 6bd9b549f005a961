//! Namespaces in which writes of pods are not answered in time, as with a webhook that is dead. Such writes have room of
//! their own, and say nothing about the writes of others.

use std::collections::HashSet;

use kube_ext::log_once::LogOnce;
use kube_node_cache::InternedStr;
use tracing::warn;

/// Namespaces whose last write was not answered in time.
#[derive(Debug, Default)]
pub struct SlowNamespaces {
    names: HashSet<InternedStr>,
    logged: LogOnce,
}

impl SlowNamespaces {
    /// Returns true if the last write in `namespace` was not answered in time.
    pub fn has<'a>(&self, namespace: impl FnOnce() -> Option<&'a InternedStr>) -> bool {
        !self.names.is_empty() && namespace().is_some_and(|namespace| self.names.contains(namespace))
    }

    /// Notes the answer to a write in `namespace`; `late` if there was none in time.
    pub fn answered<'a>(&mut self, namespace: impl FnOnce() -> Option<&'a InternedStr>, late: bool) {
        if !late && self.names.is_empty() {
            return;
        }
        let Some(namespace) = namespace() else { return };
        if !late {
            self.names.remove(namespace);
            return;
        }
        let was_slow = !self.names.insert(InternedStr::clone(namespace));
        // With an API server that is overloaded, every namespace is slow.
        if was_slow && self.names.len() == 1 && self.logged.is_new(namespace) {
            warn!(
                namespace = &**namespace,
                "writes of pods in this namespace are not answered in time, and no longer hold up others"
            );
        }
    }
}
