//! What was written to Nodes and the watch does not show yet: a look at what was there before would write it again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::cache::NodeView;

/// The version that the last write made, by the name of the Node.
#[derive(Debug, Default)]
pub(super) struct Written(Mutex<HashMap<Arc<str>, u64>>);

impl Written {
    /// A write made `version`. Versions are numbers that grow (Kubernetes 1.35 on); any other outruns nothing.
    pub(super) fn wrote(&self, node: &Arc<str>, version: &str) {
        if let Ok(version) = version.parse() {
            self.all().insert(Arc::clone(node), version);
        }
    }

    /// Whether a Node is older than what was written to it last: the watch is about to show that.
    pub(super) fn outruns(&self, node: &NodeView) -> bool {
        let mut all = self.all();
        let Some(written) = all.get(&node.name) else { return false };
        let outruns = node.resource_version.parse().is_ok_and(|shown: u64| shown < *written);
        if !outruns {
            all.remove(&node.name);
        }
        outruns
    }

    /// The Node is gone.
    pub(super) fn forget(&self, node: &str) {
        self.all().remove(node);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Arc<str>, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_looked_at_again_once_it_shows_what_was_written() {
        let written = Written::default();
        let shown = |version: &str| {
            let resource_version = version.to_owned();
            written.outruns(&NodeView { name: "a".into(), resource_version, ..NodeView::default() })
        };
        let name: Arc<str> = "a".into();
        assert!(!shown("5"));
        written.wrote(&name, "7");
        assert_eq!([shown("6"), shown("7"), shown("6")], [true, false, false], "it was shown once");
        written.wrote(&name, "9");
        written.forget("a");
        assert!(!shown("8"));
        written.wrote(&name, "opaque");
        assert!(!shown("8"));
    }
}
