//! What was asked of the API server for each set and is not shown by the watch yet: the controller counts on it, and so
//! does whoever tells others how large a set is.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use kube_node_cache::NodeView;
use kube_node_planner::expectations::Expectations;

/// Expectations by set.
#[derive(Debug, Default)]
pub struct ExpectationStore(Mutex<HashMap<String, Expectations>>);

impl ExpectationStore {
    /// Reads or changes those of a set.
    pub(super) fn of<T>(&self, set: &str, with: impl FnOnce(&mut Expectations) -> T) -> T {
        with(self.all().entry(set.to_owned()).or_default())
    }

    /// Notes the creations of a set that `choose` picks out of sight of what is outstanding for each set: nobody else notes
    /// any meanwhile.
    pub(super) fn reserve(
        &self,
        set: &str,
        choose: impl FnOnce(&HashMap<String, Expectations>) -> Vec<String>,
    ) -> Vec<String> {
        let mut all = self.all();
        let names = choose(&all);
        let expectations = all.entry(set.to_owned()).or_default();
        for name in &names {
            expectations.creating(name);
        }
        names
    }

    /// Reads what is outstanding for all sets.
    pub fn read<T>(&self, read: impl FnOnce(&HashMap<String, Expectations>) -> T) -> T {
        read(&self.all())
    }

    /// Those of a set as they are now; a set that nobody has asked anything for stays unknown.
    #[must_use]
    pub fn now(&self, set: &str) -> Expectations {
        self.all().get(set).cloned().unwrap_or_default()
    }

    /// Names of all Nodes that were asked for and are not shown.
    pub(super) fn creations(&self) -> HashSet<String> {
        self.all().values().flat_map(Expectations::creations).map(str::to_owned).collect()
    }

    /// The set is gone.
    pub(super) fn forget(&self, set: &str) {
        self.all().remove(set);
    }

    /// The watch showed a Node of the set as it is now, or that it is gone.
    pub(super) fn shown(&self, set: &str, name: &str, now: Option<&NodeView>) {
        if let Some(expectations) = self.all().get_mut(set) {
            match now {
                Some(now) => expectations.seen(name, &now.resource_version, now.deleted_at.is_some()),
                None => expectations.gone(name),
            }
        }
    }

    /// The watch begins anew.
    pub(super) fn relisting(&self) {
        self.all().values_mut().for_each(Expectations::relisting);
    }

    /// The list is there.
    pub(super) fn on_resync(&self, listed: impl Fn(&str) -> bool) {
        for expectations in self.all().values_mut() {
            expectations.on_resync(&listed);
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Expectations>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
