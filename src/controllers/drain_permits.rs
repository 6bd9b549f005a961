//! Drain permits: which deleted Nodes may start draining now.
//!
//! The NodeSetController grants permits within the set's budget; the NodeController starts a drain only with
//! one. A deleted Node without a permit keeps serving its pods.
//!
//! Invariant: permits live in memory only. After a restart they are granted again from the observed state; a
//! drain that has started is visible as a cordoned Node and needs no permit.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

type OnGrant = Box<dyn Fn(&Arc<str>) + Send + Sync>;

/// Permits of all NodeSets in this process.
#[derive(Default)]
pub struct DrainPermits {
    /// Granted Node UIDs by NodeSet name.
    granted: Mutex<HashMap<Arc<str>, HashSet<Arc<str>>>>,
    on_grant: OnceLock<OnGrant>,
}

impl DrainPermits {
    /// Registers the callback for new permits; it gets the name of the Node. Only the first registration counts.
    pub(super) fn on_grant(&self, enqueue: impl Fn(&Arc<str>) + Send + Sync + 'static) {
        drop(self.on_grant.set(Box::new(enqueue)));
    }

    /// Replaces the permits of a NodeSet, given as UIDs and names, and reports the new ones to the `on_grant`
    /// callback.
    pub fn replace(&self, set: &str, nodes: impl IntoIterator<Item = (Arc<str>, Arc<str>)>) {
        let nodes: Vec<_> = nodes.into_iter().collect();
        let uids = nodes.iter().map(|(uid, _)| Arc::clone(uid)).collect();
        let before = self.granted.lock().insert(set.into(), uids).unwrap_or_default();
        let new = nodes.iter().filter(|(uid, _)| !before.contains(uid));
        if let Some(on_grant) = self.on_grant.get() {
            new.for_each(|(_, name)| on_grant(name));
        }
    }

    /// Drops the permits of a deleted NodeSet.
    pub(super) fn forget(&self, set: &str) {
        self.granted.lock().remove(set);
    }

    /// Returns true if this Node of the set may start draining.
    pub(super) fn is_granted(&self, set: &str, uid: &str) -> bool {
        self.granted.lock().get(set).is_some_and(|uids| uids.contains(uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_permits_are_reported_once_and_expire_with_the_next_reconcile() {
        let drain_permits = DrainPermits::default();
        let reported: Arc<Mutex<Vec<Arc<str>>>> = Arc::default();
        let into = Arc::clone(&reported);
        drain_permits.on_grant(move |name| into.lock().push(Arc::clone(name)));
        let permit = |uid: &str| (Arc::from(uid), Arc::from(format!("node-{uid}")));
        drain_permits.replace("set", [permit("a")]);
        drain_permits.replace("set", [permit("a"), permit("b")]);
        assert!(
            drain_permits.is_granted("set", "a")
                && drain_permits.is_granted("set", "b")
                && !drain_permits.is_granted("other", "a")
        );
        drain_permits.replace("set", [permit("b")]);
        assert!(!drain_permits.is_granted("set", "a"));
        assert_eq!(*reported.lock(), ["node-a".into(), "node-b".into()]);
    }
}
