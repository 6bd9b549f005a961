//! Expectations of all sets: creations and deletions that were sent and that the watch has not shown yet.
//!
//! The NodeSetController counts on them, and so does the server that tells cluster-autoscaler the size of a set.

use std::collections::{HashMap, HashSet};

use kube_node_cache::NodeView;
use kube_node_planner::expectations::Expectations;
use parking_lot::Mutex;

/// Expectations by set.
#[derive(Debug, Default)]
pub struct ExpectationStore(Mutex<HashMap<String, Expectations>>);

impl ExpectationStore {
    /// Reads or changes the expectations of a set.
    pub(super) fn of<T>(&self, set: &str, with: impl FnOnce(&mut Expectations) -> T) -> T {
        with(self.0.lock().entry(set.to_owned()).or_default())
    }

    /// Records the creations of a set that `choose` picks from the expectations of all sets. No other set
    /// records any meanwhile.
    pub(super) fn reserve(
        &self,
        set: &str,
        choose: impl FnOnce(&HashMap<String, Expectations>) -> Vec<String>,
    ) -> Vec<String> {
        let mut all = self.0.lock();
        let names = choose(&all);
        let expectations = all.entry(set.to_owned()).or_default();
        for name in &names {
            expectations.creating(name);
        }
        names
    }

    /// Reads the expectations of all sets.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&HashMap<String, Expectations>) -> T) -> T {
        read(&self.0.lock())
    }

    /// Copy of the present expectations of a set. Adds no entry for a set without any.
    pub(crate) fn now(&self, set: &str) -> Expectations {
        self.0.lock().get(set).cloned().unwrap_or_default()
    }

    /// Names of all Nodes whose creation was sent and that the watch has not shown.
    pub(super) fn creations(&self) -> HashSet<String> {
        self.0.lock().values().flat_map(Expectations::creations).map(str::to_owned).collect()
    }

    /// Drops the expectations of a deleted set.
    pub(super) fn forget(&self, set: &str) {
        self.0.lock().remove(set);
    }

    /// Records that the watch showed a Node of the set in this state, or its deletion (None).
    pub(super) fn shown(&self, set: &str, name: &str, now: Option<&NodeView>) {
        if let Some(expectations) = self.0.lock().get_mut(set) {
            match now {
                Some(now) => expectations.seen(name, &now.resource_version, now.deleted_at.is_some()),
                None => expectations.gone(name),
            }
        }
    }

    /// Records that a new list has started.
    pub(super) fn relisting(&self) {
        self.0.lock().values_mut().for_each(Expectations::relisting);
    }

    /// Records that the new list is complete.
    pub(super) fn on_resync(&self, listed: impl Fn(&str) -> bool) {
        for expectations in self.0.lock().values_mut() {
            expectations.on_resync(&listed);
        }
    }
}
