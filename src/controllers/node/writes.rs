//! Writes to Nodes that the watch does not show yet: a reconciliation of the older state would repeat them.

use std::{collections::BTreeMap, sync::Arc};

use kube_node_cache::{Cache, NodeView, Written};
use parking_lot::Mutex;

/// Last writes by name of the Node.
#[derive(Debug, Default)]
pub(super) struct Writes(Mutex<BTreeMap<Arc<str>, Written>>);

impl Writes {
    /// Records a write that the API server accepted.
    pub(super) fn wrote(&self, node: &Arc<str>, version: Written) {
        self.0.lock().insert(Arc::clone(node), version);
    }

    /// Returns true if a Node is older than the last write to it: the watch, or a new list, is about to show
    /// that write.
    pub(super) fn outruns(&self, node: &NodeView, nodes: &Cache<NodeView>) -> bool {
        let mut all = self.0.lock();
        let Some(written) = all.get(&node.name) else { return false };
        let outruns = nodes.is_stale(&node.resource_version, *written);
        if !outruns {
            all.remove(&node.name);
        }
        outruns
    }

    /// Nodes with a write that the watch has not shown.
    pub(super) fn nodes(&self) -> Vec<Arc<str>> {
        self.0.lock().keys().cloned().collect()
    }

    /// Forgets a deleted Node.
    pub(super) fn forget(&self, node: &str) {
        self.0.lock().remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_looked_at_again_once_it_shows_what_was_written() {
        let (writes, nodes) = (Writes::default(), Cache::<NodeView>::default());
        let shown = |version: &str| {
            let resource_version = version.to_owned();
            writes.outruns(&NodeView { name: "a".into(), resource_version, ..NodeView::default() }, &nodes)
        };
        let name: Arc<str> = "a".into();
        assert!(!shown("5"));
        writes.wrote(&name, nodes.written("7"));
        assert_eq!([shown("6"), shown("7"), shown("6")], [true, false, false], "it was shown once");
        writes.wrote(&name, nodes.written("9"));
        assert_eq!(writes.nodes(), [Arc::clone(&name)]);
        writes.forget("a");
        assert!(!shown("8"));
    }
}
