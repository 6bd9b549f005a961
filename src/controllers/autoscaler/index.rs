//! Index of Nodes by providerID: cluster-autoscaler has no other name for a machine whose Node it has not seen.

use std::{collections::HashMap, sync::Arc};

use kube_node_cache::{Cache, EventHandler, NodeView};
use parking_lot::RwLock;

/// Names of Nodes by providerID, byte for byte.
#[derive(Debug, Default)]
pub(super) struct Index(RwLock<HashMap<String, Arc<str>>>);

impl Index {
    /// An index that follows `nodes`, beginning with those that are there.
    pub(super) fn of(nodes: &Cache<NodeView>) -> Arc<Self> {
        let index = Arc::new(Self::default());
        nodes.add_event_handler(index.clone());
        index
    }

    /// The name of the Node with this providerID.
    pub(super) fn name(&self, provider_id: &str) -> Option<Arc<str>> {
        self.0.read().get(provider_id).cloned()
    }
}

impl EventHandler<NodeView> for Index {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        let id = |node: Option<&Arc<NodeView>>| node.and_then(|node| node.provider_id.clone());
        let (before, now) = (id(old), id(new));
        if before == now && old.is_some() {
            return;
        }
        let mut names = self.0.write();
        // If two Nodes share a providerID, which should never happen, the later one is indexed.
        if let (Some(before), Some(old)) = (before, old)
            && names.get(&before).is_some_and(|name| *name == old.name)
        {
            names.remove(&before);
        }
        if let (Some(now), Some(new)) = (now, new) {
            names.insert(now, Arc::clone(&new.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, id: Option<&str>) -> Arc<NodeView> {
        Arc::new(NodeView { name: name.into(), provider_id: id.map(str::to_owned), ..NodeView::default() })
    }

    #[test]
    fn holds_the_nodes_that_were_there_before_it() {
        let node =
            NodeView { name: "a".into(), provider_id: Some("hollow://a".into()), ..NodeView::default() };
        let index = Index::of(&Cache::full([node]));
        assert_eq!(index.name("hollow://a").as_deref(), Some("a"));
    }

    #[test]
    fn follows_what_comes_and_goes() {
        let index = Index::default();
        let (bare, registered) = (node("a", None), node("a", Some("hollow://a")));
        index.on_change(None, Some(&bare));
        assert_eq!(index.name("hollow://a"), None);
        index.on_change(Some(&bare), Some(&registered));
        assert_eq!(index.name("hollow://a").as_deref(), Some("a"));
        assert_eq!(index.name("hollow%3A//a"), None, "byte for byte");
        let twin = node("b", Some("hollow://a"));
        index.on_change(None, Some(&twin));
        index.on_change(Some(&registered), None);
        assert_eq!(index.name("hollow://a").as_deref(), Some("b"));
        index.on_change(Some(&twin), None);
        assert_eq!(index.name("hollow://a"), None);
    }
}
