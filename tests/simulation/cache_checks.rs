//! Caches of the operators, compared with the server: each equals a state that the server had, and in the end the present
//! one.
//!
//! Inputs: all changes of the server, the caches. Output: an object that is in no such state. Invariant: the state that a
//! cache shows is that of its newest object or of a deletion after it, since one watch brings all changes of a kind in order.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube_node_api::names::LABEL_HOLLOW_HOSTS;
use kube_node_cache::{Cache, EventHandler, View};
use kube_node_operator::Caches;
use kube_node_testing::api_server::Change;
use serde_json::Value;
use tokio::time::Instant;

/// Longest delay of a watch that does not freeze.
const LAG: Duration = Duration::from_secs(10);

/// Version of each object of a cache; None while they are of several states.
type Shown = Option<BTreeMap<String, u64>>;
/// Versions of each object of a kind, by its name, and whether they deleted it.
type Versions = BTreeMap<String, Vec<(u64, bool)>>;

/// Notes that a cache has changed.
#[derive(Debug, Default)]
struct Changed(AtomicBool);

impl<V> EventHandler<V> for Changed {
    fn on_change(&self, _: Option<&Arc<V>>, _: Option<&Arc<V>>) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn on_resync(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The caches of an operator, and which of them have changed since they were checked.
pub struct WatchedCaches {
    caches: Caches,
    /// Nodes, sets, classes, pods, Leases of workers.
    changed: [Arc<Changed>; 5],
}

impl WatchedCaches {
    pub fn new(caches: Caches) -> Self {
        let changed: [Arc<Changed>; 5] = Default::default();
        let [nodes, sets, classes, pods, hosts] = changed.clone();
        caches.nodes.add_event_handler(nodes);
        caches.sets.add_event_handler(sets);
        caches.classes.add_event_handler(classes);
        caches.pods.add_event_handler(pods);
        caches.hosts.add_event_handler(hosts);
        Self { caches, changed }
    }
}

/// Versions of all objects, by kind.
#[derive(Default)]
pub struct History {
    versions: BTreeMap<&'static str, Versions>,
    /// Each change, with its time.
    times: Vec<(Instant, u64)>,
    /// The state that each cache of a process showed last.
    shown: BTreeMap<(String, &'static str), u64>,
}

impl History {
    pub fn record(&mut self, change: &Change) {
        let kinds = ["Node", "NodeSet", "NodeClass", "Pod", "Lease"];
        let Some(kind) = kinds.into_iter().find(|kind| change.after["kind"] == *kind) else { return };
        let versions = self.versions.entry(kind).or_default().entry(key(&change.after)).or_default();
        versions.push((change.revision, change.deleted || !is_watched(&change.after)));
        self.times.push((Instant::now(), change.revision));
    }

    /// An object that a cache shows in another version than the rest of it; with `is_present`, in another version than
    /// the server; or in one that the cache had left already. A cache that has not changed shows what it showed.
    pub fn difference(&mut self, process: &str, watched: &WatchedCaches, is_present: bool) -> Option<String> {
        let version = |version: &Option<String>| version.as_deref().map_or(0, |text| text.parse().unwrap());
        let caches = &watched.caches;
        let kinds: [(&str, &dyn Fn() -> Shown); 5] = [
            ("Node", &|| shown(&caches.nodes, |node| node.resource_version.parse().unwrap())),
            ("NodeSet", &|| shown(&caches.sets, |set| version(&set.metadata.resource_version))),
            ("NodeClass", &|| shown(&caches.classes, |class| version(&class.metadata.resource_version))),
            ("Pod", &|| shown(&caches.pods, |pod| pod.resource_version.parse().unwrap())),
            ("Lease", &|| shown(&caches.hosts, |host| host.version.parse().unwrap())),
        ];
        let old = || self.times.iter().rev().find(|(at, _)| at.elapsed() > LAG);
        let old = if is_present { old().map_or(0, |(_, revision)| *revision) } else { 0 };
        kinds.into_iter().zip(&watched.changed).find_map(|((kind, shown), changed)| {
            if !changed.0.swap(false, Ordering::Relaxed) && !is_present {
                return None;
            }
            let Some(shown) = shown() else {
                changed.0.store(true, Ordering::Relaxed);
                return None;
            };
            let last = self.shown.get(&(process.to_owned(), kind)).copied().unwrap_or_default();
            match self.compare(kind, &shown, last.max(old)) {
                Ok(state) => {
                    self.shown.insert((process.to_owned(), kind), state);
                    None
                }
                Err(difference) => Some(difference),
            }
        })
    }

    /// The state that a cache shows, which is `oldest` or a later one.
    fn compare(&self, kind: &str, shown: &BTreeMap<String, u64>, oldest: u64) -> Result<u64, String> {
        let newest = shown.values().copied().max().unwrap_or_default().max(oldest);
        let Some(objects) = self.versions.get(kind) else { return Ok(oldest) };
        let at = |name: &str, revision: u64| {
            let mut versions = objects.get(name)?.iter().rev();
            let (version, gone) = versions.find(|(version, _)| *version <= revision)?;
            (!gone).then_some(*version)
        };
        let differs = |revision: u64| {
            let names = objects.keys().chain(shown.keys());
            names.map(String::as_str).find(|name| shown.get(*name).copied() != at(name, revision))
        };
        let Some(name) = differs(newest) else { return Ok(newest) };
        // A deletion leaves nothing that shows how new the cache is.
        let gone = objects.values().flatten().filter(|(version, gone)| *gone && *version > newest);
        let gone = gone.map(|(version, _)| *version).filter(|version| differs(*version).is_none());
        if let Some(state) = gone.min() {
            return Ok(state);
        }
        let (cached, had) = (shown.get(name), at(name, newest));
        Err(format!("{kind} {name} is cached at {cached:?}, and beside {newest} it was at {had:?}"))
    }
}

/// Key of an object in the cache of its kind.
fn key(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str();
    let name = crate::objects::name(object);
    namespace.map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"))
}

/// Returns true if a watch of its kind shows an object: pods that are bound, and Leases of workers.
fn is_watched(object: &Value) -> bool {
    match object["kind"].as_str() {
        Some("Pod") => object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty()),
        Some("Lease") => object["metadata"]["labels"][LABEL_HOLLOW_HOSTS].is_string(),
        _ => true,
    }
}

fn shown<V: View>(cache: &Cache<V>, version: impl Fn(&V) -> u64) -> Shown {
    let is_one = cache.in_sync() && !cache.is_listing();
    is_one.then(|| cache.all().iter().map(|object| (object.key(), version(object))).collect())
}
