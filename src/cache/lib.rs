//! Caches of cluster objects: one shared watch per kind, pruned to the fields that are read.
//!
//! A [`Cache`] is filled by [`run_protobuf`] alone, or by [`run`] for kinds that have no protobuf. An
//! [`EventHandler`] is called for each change, in the order of the changes, on the task of the watch, and
//! must not wait.

mod custom_object;
mod interner;
mod lossy;
pub mod machine_status;
mod node;
mod pod;
mod pod_protobuf;
mod pod_references;
mod pod_spec;
mod pod_status;
mod protobuf;
mod reflect;
mod resource_list;
mod version;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use kube_ext::watch::Newest;
use parking_lot::{Mutex, RwLock};
use prost::Message as _;
use tokio::sync::Notify;

pub use custom_object::{CachedNodeClass, CachedNodeSet, CustomObject};
pub use interner::{InternedStr, intern};
pub use node::{ConditionView, NodeStage, NodeView, ProtobufNode};
pub use pod::{
    HOLLOW_ANNOTATIONS, LONGEST_ANNOTATION, PodOwner, PodView, ProtobufPod, ProtobufPods, hollow_annotation,
};
pub use pod_references::{Reference, ReferenceKind, ReferenceUser, TOKEN_VOLUME, Variable, VariableValue};
pub use pod_spec::{
    Container, ContainerResources, NodeSelectorRequirement, NodeSelectorTerm, PodSpecView, Probe,
    RestartPolicy, Toleration, VolumeMount,
};
pub use pod_status::{
    BACK_OFF, CONFIG_ERROR, ContainerState, ContainerView, PodCondition, PodStatus, Qos, Terminated,
};
pub use reflect::{ReflectError, run, run_protobuf};
pub use resource_list::ResourceList;
pub use version::Written;

/// Cached form of an object.
pub trait View: Send + Sync + 'static {
    /// Name of the object; `namespace/name` if it has a namespace.
    fn key(&self) -> String;
    /// Index key besides the name: the NodeSet of a Node, the Node of a pod.
    fn index_key(&self) -> Option<&str> {
        None
    }
    /// Group in which the object is counted, and part of the group: the class and the NodeSet of a Node, the Node of a pod.
    fn counted_in(&self) -> Option<(&str, Option<&str>)> {
        None
    }
}

/// Cached form of a kind that the API server sends as protobuf.
pub trait Protobuf: View + From<Self::Message> {
    /// Protobuf message.
    type Message: prost::Message + Default;
    /// URL path of the collection.
    const PATH: &str;
    /// Plural of the kind.
    const KIND: &str;

    /// URL path of a cluster-scoped object. `name` may be any text.
    fn path(name: &str) -> String {
        let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
        format!("{}/{name}", Self::PATH)
    }

    /// Decodes an object.
    fn read(raw: &[u8]) -> Result<Self, prost::DecodeError> {
        Self::Message::decode(raw).map(Self::from)
    }
}

/// Event handler of a cache.
pub trait EventHandler<V>: Send + Sync {
    /// An object was added (`old` is None), changed, or deleted (`new` is None). The cache shows the new
    /// state already.
    fn on_change(&self, old: Option<&Arc<V>>, new: Option<&Arc<V>>);
    /// A new list is about to be requested.
    fn on_relist(&self) {}
    /// The cache has just been filled with a list that shows what the watch had shown and all writes that were
    /// [`Cache::written`] before the list began.
    fn on_resync(&self) {}
}

/// Objects of one kind, as the watch shows them.
pub struct Cache<V> {
    objects: RwLock<Objects<V>>,
    handlers: RwLock<Vec<Arc<dyn EventHandler<V>>>>,
    /// Held during a change and its notification: all event handlers see changes in the same order.
    order: Mutex<Lists>,
    in_sync: AtomicBool,
    /// Number of lists begun.
    lists_begun: AtomicU64,
    /// Number of the last complete list.
    list_complete: AtomicU64,
    /// Notified when a new list is wanted.
    relist_wanted: Notify,
    /// Newest known resource version of this kind.
    newest: Newest,
}

/// State of the lists. A list that began before the last one was wanted does not count.
#[derive(Debug, Default)]
struct Lists {
    wanted: u64,
    /// Value of `wanted` when the last list began.
    begun: u64,
    /// Keys in the list under way; None outside of one.
    listed: Option<BTreeSet<String>>,
}

struct Objects<V> {
    by_key: BTreeMap<String, Arc<V>>,
    by_index: BTreeMap<String, BTreeSet<String>>,
    counts: HashMap<String, Count>,
}

/// Number of objects of a group.
#[derive(Debug, Default)]
struct Count {
    all: usize,
    /// Numbers of those in a part of the group.
    of_parts: HashMap<String, usize>,
}

impl<V: View> Default for Cache<V> {
    fn default() -> Self {
        Self {
            objects: RwLock::new(Objects {
                by_key: BTreeMap::new(),
                by_index: BTreeMap::new(),
                counts: HashMap::new(),
            }),
            handlers: RwLock::default(),
            order: Mutex::default(),
            in_sync: AtomicBool::new(false),
            lists_begun: AtomicU64::new(0),
            list_complete: AtomicU64::new(0),
            relist_wanted: Notify::new(),
            newest: Newest::default(),
        }
    }
}

impl<V: View> Cache<V> {
    /// Registers `handler`. It is called with the present objects first, as if they were added, and then
    /// with every change.
    pub fn add_event_handler(&self, handler: Arc<dyn EventHandler<V>>) {
        let _order = self.order.lock();
        for object in self.all() {
            handler.on_change(None, Some(&object));
        }
        self.handlers.write().push(handler);
    }

    /// Makes the watch list the latest state; the cache is not in sync until that list is complete.
    pub fn relist(&self) {
        let mut lists = self.order.lock();
        lists.wanted += 1;
        self.in_sync.store(false, Ordering::Release);
        drop(lists);
        self.relist_wanted.notify_one();
    }

    /// The object with this key.
    pub fn get(&self, key: &str) -> Option<Arc<V>> {
        self.objects.read().by_key.get(key).cloned()
    }

    /// All objects with this index key, ordered by key.
    pub fn by_index(&self, key: &str) -> Vec<Arc<V>> {
        let objects = self.objects.read();
        let keys = objects.by_index.get(key).into_iter().flatten();
        keys.filter_map(|key| objects.by_key.get(key).cloned()).collect()
    }

    /// All objects, ordered by key.
    pub fn all(&self) -> Vec<Arc<V>> {
        self.objects.read().by_key.values().cloned().collect()
    }

    /// Number of objects for which `is_counted` returns true.
    pub fn count(&self, is_counted: impl Fn(&V) -> bool) -> usize {
        self.objects.read().by_key.values().filter(|object| is_counted(object)).count()
    }

    /// Number of objects that are counted in a group, but for those of one part. It costs the same for any number.
    pub fn counted(&self, group: &str, but_for: Option<&str>) -> usize {
        let objects = self.objects.read();
        let Some(count) = objects.counts.get(group) else { return 0 };
        count.all - but_for.and_then(|part| count.of_parts.get(part)).copied().unwrap_or_default()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.read().by_key.len()
    }

    /// Returns true if the cache has no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the cache was filled. A watch that breaks and reconnects does not change that.
    pub fn in_sync(&self) -> bool {
        self.in_sync.load(Ordering::Acquire)
    }

    /// Returns true while a list is being applied: some objects are newer than others.
    pub fn is_listing(&self) -> bool {
        self.order.lock().listed.is_some()
    }

    /// Record of a write to an object of this kind that was just answered with the resource version
    /// `version`, empty if the answer has none. A list that begins from now on shows the write.
    pub fn written(&self, version: &str) -> Written {
        self.newest.note(version);
        Written::new(version, self.lists_begun.load(Ordering::SeqCst))
    }

    /// Returns true if an object at the resource version `shown` is older than the write: nothing can be
    /// concluded from it, since the watch is about to show the written state.
    pub fn is_stale(&self, shown: &str, written: Written) -> bool {
        written.is_newer_than(shown, self.list_complete.load(Ordering::Acquire))
    }

    /// A filled cache, for tests of its users.
    #[doc(hidden)]
    pub fn full(objects: impl IntoIterator<Item = V>) -> Arc<Self> {
        let cache = Arc::new(Self::default());
        objects.into_iter().for_each(|object| cache.apply(object));
        cache.in_sync.store(true, Ordering::Release);
        cache
    }

    /// Replaces all objects by a new list, as the watch does.
    #[doc(hidden)]
    pub fn list_of(&self, objects: impl IntoIterator<Item = V>) {
        self.begin_list();
        objects.into_iter().for_each(|object| self.apply(object));
        self.complete_list();
    }

    /// Stores a new, changed or listed object.
    fn apply(&self, object: V) {
        let mut lists = self.order.lock();
        let (key, new) = (object.key(), Arc::new(object));
        if let Some(listed) = &mut lists.listed {
            listed.insert(key.clone());
        }
        let old = self.objects.write().insert(key, Arc::clone(&new));
        self.notify(old.as_ref(), Some(&new));
    }

    /// Removes the object with this key if `is_gone` returns true for it. For objects whose deletion was
    /// observed elsewhere, while the watch of this cache is down.
    pub fn remove_if(&self, key: &str, is_gone: impl Fn(&V) -> bool) {
        let _order = self.order.lock();
        let mut objects = self.objects.write();
        if objects.by_key.get(key).is_none_or(|object| !is_gone(object)) {
            return;
        }
        let old = objects.remove(key);
        drop(objects);
        self.notify(old.as_ref(), None);
    }

    fn remove(&self, key: &str) {
        self.remove_if(key, |_| true);
    }

    /// Notes that a whole list is about to be requested.
    fn begin_list(&self) {
        let mut lists = self.order.lock();
        (lists.begun, lists.listed) = (lists.wanted, Some(BTreeSet::new()));
        self.lists_begun.fetch_add(1, Ordering::SeqCst);
        drop(lists);
        for handler in self.handlers() {
            handler.on_relist();
        }
    }

    /// Completes a list: removes every object that was not applied since its beginning.
    fn complete_list(&self) {
        let listed = self.order.lock().listed.take().unwrap_or_default();
        let is_gone = |key: &&String| !listed.contains(*key);
        let gone: Vec<String> = self.objects.read().by_key.keys().filter(is_gone).cloned().collect();
        for key in gone {
            self.remove(&key);
        }
        let lists = self.order.lock();
        self.list_complete.store(self.lists_begun.load(Ordering::Acquire), Ordering::Release);
        self.in_sync.store(lists.begun == lists.wanted, Ordering::Release);
        drop(lists);
        for handler in self.handlers() {
            handler.on_resync();
        }
    }

    fn notify(&self, old: Option<&Arc<V>>, new: Option<&Arc<V>>) {
        for handler in self.handlers() {
            handler.on_change(old, new);
        }
    }

    fn handlers(&self) -> Vec<Arc<dyn EventHandler<V>>> {
        self.handlers.read().clone()
    }
}

impl<V: View> Objects<V> {
    fn insert(&mut self, key: String, object: Arc<V>) -> Option<Arc<V>> {
        let old = self.by_key.get(&key).cloned();
        if old.as_ref().and_then(|old| old.index_key()) != object.index_key() {
            if let Some(old) = &old {
                self.leave_index(&key, old);
            }
            if let Some(index) = object.index_key() {
                self.by_index.entry(index.to_owned()).or_default().insert(key.clone());
            }
        }
        if old.as_ref().and_then(|old| old.counted_in()) != object.counted_in() {
            if let Some(old) = &old {
                self.uncount(old);
            }
            self.count(&object);
        }
        self.by_key.insert(key, object);
        old
    }

    fn count(&mut self, object: &V) {
        let Some((group, part)) = object.counted_in() else { return };
        let count = self.counts.entry(group.to_owned()).or_default();
        count.all += 1;
        if let Some(part) = part {
            *count.of_parts.entry(part.to_owned()).or_default() += 1;
        }
    }

    fn uncount(&mut self, object: &V) {
        let Some((group, part)) = object.counted_in() else { return };
        let Some(count) = self.counts.get_mut(group) else { return };
        count.all -= 1;
        if let Some(part) = part
            && let Some(of_part) = count.of_parts.get_mut(part)
        {
            *of_part -= 1;
            if *of_part == 0 {
                count.of_parts.remove(part);
            }
        }
        if count.all == 0 {
            self.counts.remove(group);
        }
    }

    fn remove(&mut self, key: &str) -> Option<Arc<V>> {
        let old = self.by_key.remove(key)?;
        self.leave_index(key, &old);
        self.uncount(&old);
        Some(old)
    }

    fn leave_index(&mut self, key: &str, object: &V) {
        let Some(index) = object.index_key() else { return };
        if let Some(keys) = self.by_index.get_mut(index) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_index.remove(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Thing(&'static str, Option<&'static str>);

    impl View for Thing {
        fn key(&self) -> String {
            self.0.to_owned()
        }
        fn index_key(&self) -> Option<&str> {
            self.1
        }
        fn counted_in(&self) -> Option<(&str, Option<&str>)> {
            Some((self.1?, Some(self.0).filter(|name| *name != "a")))
        }
    }

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl EventHandler<Thing> for Log {
        fn on_change(&self, old: Option<&Arc<Thing>>, new: Option<&Arc<Thing>>) {
            self.0.lock().push(format!("{:?} {:?}", old.map(|t| t.1), new.map(|t| t.1)));
        }
        fn on_resync(&self) {
            self.0.lock().push("relisted".to_owned());
        }
    }

    fn names(cache: &Cache<Thing>, key: &str) -> Vec<&'static str> {
        cache.by_index(key).iter().map(|thing| thing.0).collect()
    }

    #[test]
    fn the_index_follows_an_object_from_key_to_key() {
        let cache = Cache::default();
        cache.apply(Thing("a", Some("x")));
        cache.apply(Thing("b", Some("x")));
        cache.apply(Thing("a", Some("y")));
        assert_eq!((names(&cache, "x"), names(&cache, "y")), (vec!["b"], vec!["a"]));
        cache.apply(Thing("a", None));
        cache.remove("b");
        assert!(names(&cache, "x").is_empty() && names(&cache, "y").is_empty());
        assert_eq!(cache.len(), 1);
        assert!(cache.objects.read().by_index.is_empty());
    }

    #[test]
    fn counts_follow_objects_from_group_to_group() {
        let cache = Cache::default();
        for name in ["a", "b", "c"] {
            cache.apply(Thing(name, Some("x")));
        }
        cache.apply(Thing("b", Some("x")));
        assert_eq!((cache.counted("x", None), cache.counted("x", Some("b"))), (3, 2));
        assert_eq!((cache.counted("x", Some("a")), cache.counted("y", None)), (3, 0), "a has no part");
        cache.apply(Thing("b", Some("y")));
        cache.list_of([Thing("b", Some("y")), Thing("c", None)]);
        assert_eq!(
            (cache.counted("x", None), cache.counted("y", None), cache.counted("y", Some("b"))),
            (0, 1, 0)
        );
        cache.remove("b");
        assert!(cache.objects.read().counts.is_empty());
    }

    #[test]
    fn a_relist_takes_away_what_it_does_not_name() {
        let (cache, log) = (Cache::default(), Arc::new(Log::default()));
        cache.apply(Thing("gone", Some("x")));
        cache.add_event_handler(log.clone());
        assert_eq!(std::mem::take(&mut *log.0.lock()), ["None Some(Some(\"x\"))"], "what is there is told");
        assert!(!cache.in_sync());
        cache.begin_list();
        cache.apply(Thing("stays", Some("x")));
        cache.complete_list();
        assert!(cache.in_sync());
        assert_eq!(names(&cache, "x"), ["stays"]);
        assert_eq!(*log.0.lock(), ["None Some(Some(\"x\"))", "Some(Some(\"x\")) None", "relisted"]);
    }

    #[test]
    fn a_list_that_was_begun_before_another_was_wanted_is_not_that_one() {
        let cache = Cache::<Thing>::default();
        cache.begin_list();
        cache.relist();
        cache.complete_list();
        assert!(!cache.in_sync());
        cache.begin_list();
        cache.complete_list();
        assert!(cache.in_sync());
        cache.relist();
        assert!(!cache.in_sync());
    }
}
