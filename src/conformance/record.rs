//! Recorded history of objects: every state that a watch showed, for checks after the fact.

use std::{
    collections::{BTreeMap, HashSet},
    pin::pin,
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use kube_ext::objects::Typed;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

/// Recorded history of one object.
#[derive(Clone, Debug)]
pub(super) struct History<K> {
    /// States with the time of observation, oldest first; never empty.
    states: Vec<(Instant, K)>,
    /// Time at which the object was observed to be gone.
    pub(super) gone: Option<Instant>,
}

impl<K: Clone> History<K> {
    /// The newest state.
    pub(super) fn last(&self) -> Option<&K> {
        self.states.last().map(|(_, state)| state)
    }

    /// All states, oldest first.
    pub(super) fn states(&self) -> Vec<K> {
        self.states.iter().map(|(_, state)| state.clone()).collect()
    }

    /// Time of the first state for which `is` holds.
    pub(super) fn since(&self, is: impl Fn(&K) -> bool) -> Option<Instant> {
        self.states.iter().find(|(_, state)| is(state)).map(|(at, _)| *at)
    }
}

/// Histories by UID.
pub(super) type Histories<K> = BTreeMap<String, History<K>>;

/// Newest states of the objects that exist.
pub(super) fn existing<K: Clone>(histories: &Histories<K>) -> Vec<K> {
    let existing = histories.values().filter(|history| history.gone.is_none());
    existing.filter_map(|history| history.last().cloned()).collect()
}

/// Histories of the objects of this name.
pub(super) fn of_name<'a, K: Clone + Resource>(
    histories: &'a Histories<K>,
    name: &'a str,
) -> impl Iterator<Item = &'a History<K>> {
    histories.values().filter(move |history| history.last().is_some_and(|last| last.name_any() == name))
}

/// Records objects until dropped.
pub(super) struct Recorder<K> {
    histories: watch::Receiver<Histories<K>>,
    _task: AbortOnDropHandle<()>,
}

impl<K: Typed + Send + Sync + 'static> Recorder<K> {
    /// Starts to record the objects for which `ours` holds when they first appear.
    pub(super) fn new(api: Api<K>, ours: impl Fn(&K) -> bool + Send + 'static) -> Self {
        let (recorded, histories) = watch::channel(Histories::new());
        let task = tokio::spawn(async move {
            let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
            // UIDs of the list in progress.
            let mut listed = HashSet::new();
            // A broken watch reconnects by itself.
            while let Some(event) = events.next().await {
                let Ok(event) = event else { continue };
                recorded.send_modify(|histories| take(histories, &mut listed, event, &ours));
            }
        });
        Self { histories, _task: AbortOnDropHandle::new(task) }
    }

    /// Newest states of the objects that exist.
    pub(super) fn existing(&self) -> Vec<K> {
        existing(&self.histories.borrow())
    }

    /// All histories.
    pub(super) fn all(&self) -> Histories<K> {
        self.histories.borrow().clone()
    }

    /// History of the existing object of this name, or of the last one that existed.
    pub(super) fn of(&self, name: &str) -> Option<History<K>> {
        of_name(&self.histories.borrow(), name).max_by_key(|history| history.gone.is_none()).cloned()
    }

    /// States of the object of this name, oldest first.
    pub(super) fn states(&self, name: &str) -> Vec<K> {
        self.of(name).as_ref().map(History::states).unwrap_or_default()
    }

    /// Waits until an object is gone and returns the time of that observation; `None` after the time limit.
    pub(super) async fn gone(&self, name: &str, limit: Duration) -> Option<Instant> {
        self.until(limit, |all| of_name(all, name).find_map(|history| history.gone)).await
    }

    /// Waits until `find` returns a value; `None` after the time limit.
    pub(super) async fn until<T>(
        &self,
        limit: Duration,
        mut find: impl FnMut(&Histories<K>) -> Option<T>,
    ) -> Option<T> {
        let (mut histories, mut found) = (self.histories.clone(), None);
        let is_found = |all: &Histories<K>| {
            found = find(all);
            found.is_some()
        };
        let _ = timeout(limit, histories.wait_for(is_found)).await;
        found
    }
}

/// Adds a watch event to the histories.
fn take<K: Resource<DynamicType = ()> + Clone>(
    histories: &mut Histories<K>,
    listed: &mut HashSet<String>,
    event: Event<K>,
    ours: impl Fn(&K) -> bool,
) {
    let now = Instant::now();
    match event {
        Event::Init => listed.clear(),
        Event::InitDone => {
            for (uid, history) in histories {
                if !listed.contains(uid) {
                    history.gone.get_or_insert(now);
                }
            }
        }
        Event::InitApply(object) | Event::Apply(object) => {
            let Some(uid) = object.uid() else { return };
            listed.insert(uid.clone());
            if let Some(history) = histories.get_mut(&uid) {
                if history.last().and_then(ResourceExt::resource_version) != object.resource_version() {
                    history.states.push((now, object));
                }
            } else if ours(&object) {
                histories.insert(uid, History { states: vec![(now, object)], gone: None });
            }
        }
        Event::Delete(object) => {
            if let Some(history) = object.uid().and_then(|uid| histories.get_mut(&uid)) {
                history.gone.get_or_insert(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;

    fn node(uid: &str, version: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": uid, "uid": uid, "resourceVersion": version}}))
            .unwrap()
    }

    #[test]
    fn a_list_after_a_broken_watch_shows_what_went_meanwhile() {
        let (mut histories, mut listed) = (Histories::new(), HashSet::new());
        let events = [
            Event::Apply(node("a", "1")),
            Event::Apply(node("b", "2")),
            Event::Apply(node("other", "3")),
            Event::Init,
            Event::InitApply(node("a", "1")),
            Event::InitApply(node("a", "4")),
            Event::InitDone,
        ];
        for event in events {
            take(&mut histories, &mut listed, event, |node| node.name_any() != "other");
        }
        assert_eq!(histories.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((histories["a"].states.len(), histories["a"].gone.is_none()), (2, true));
        assert!(histories["b"].gone.is_some());
    }
}
