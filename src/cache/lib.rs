//! What the process knows of the cluster: one watch for each kind, pruned to what somebody reads, shared by all.
//!
//! A [`Cache`] is filled by [`reflect::run_protobuf`] alone, or by [`reflect::run`] for kinds that have no protobuf. Whoever wants
//! to know of changes gives it an [`EventHandler`]; observers run in the order of the changes, on the task of the watch, and must
//! not wait.

mod custom_object;
mod interner;
pub mod lossy;
mod node;
mod pod;
mod pod_protobuf;
mod pod_spec;
mod pod_status;
mod protobuf;
mod reflect;
mod resource_list;
mod version;
mod words;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use prost::Message as _;
use tokio::sync::Notify;

pub use custom_object::CustomObject;
pub use node::{ConditionView, NodeView, Stage, WireNode};
pub use pod::{
    HOLLOW_ANNOTATIONS, LONGEST_ANNOTATION, PodOwner, PodView, WirePod, WirePods, hollow_annotation,
};
pub use pod_spec::{
    Container, ContainerResources, Mount, NodeTerm, Operator, PodSpecView, Probe, Requirement, RestartPolicy,
    TOKEN_VOLUME, Toleration,
};
pub use pod_status::{BACK_OFF, ContainerState, ContainerView, Ended, PodCondition, PodStatus, Qos};
pub use reflect::{ReflectError, run, run_protobuf};
pub use resource_list::ResourceList;
pub use version::Written;
pub use words::{InternedStr, word};

/// What is kept of an object.
pub trait View: Send + Sync + 'static {
    /// Its name; `namespace/name` where it has a namespace.
    fn key(&self) -> String;
    /// What it is looked up by besides its key: a Node by its set, a pod by its Node.
    fn group(&self) -> Option<&str>;
}

/// What is kept of a kind that the API server sends as protobuf.
pub trait Protobuf: View + From<Self::Wire> {
    /// The message.
    type Wire: prost::Message + Default;
    /// Path of the list.
    const PATH: &str;
    /// Plural of the kind.
    const KIND: &str;

    /// Path of one that has no namespace. `name` may be anything.
    #[must_use]
    fn path(name: &str) -> String {
        let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
        format!("{}/{name}", Self::PATH)
    }

    /// Reads one.
    fn read(raw: &[u8]) -> Result<Self, prost::DecodeError> {
        Self::Wire::decode(raw).map(Self::from)
    }
}

/// Somebody who follows the changes of a cache.
pub trait EventHandler<V>: Send + Sync {
    /// An object came (`old` is None), changed, or went (`new` is None). The cache shows the new state already.
    fn changed(&self, old: Option<&Arc<V>>, new: Option<&Arc<V>>);
    /// A new list is about to be asked for.
    fn relisting(&self) {}
    /// The cache has just been filled with that list, which the server read at its latest state.
    fn on_resync(&self) {}
}

/// The objects of one kind, as the watch shows them.
pub struct Cache<V> {
    objects: RwLock<Objects<V>>,
    observers: RwLock<Vec<Arc<dyn EventHandler<V>>>>,
    /// Held for a change and while it is told: nobody is told of changes in another order.
    order: Mutex<Lists>,
    in_sync: AtomicBool,
    /// How many lists have begun.
    lists_begun: AtomicU64,
    /// Which of them is complete.
    list_complete: AtomicU64,
    /// A new list is wanted.
    anew: Notify,
}

/// Counts lists: of one that was wanted after it was begun nothing follows.
#[derive(Debug, Default)]
struct Lists {
    wanted: u64,
    /// What was wanted when the last one was begun.
    begun: u64,
}

struct Objects<V> {
    by_key: HashMap<String, Arc<V>>,
    by_group: BTreeMap<String, BTreeSet<String>>,
}

impl<V: View> Default for Cache<V> {
    fn default() -> Self {
        Self {
            objects: RwLock::new(Objects { by_key: HashMap::new(), by_group: BTreeMap::new() }),
            observers: RwLock::default(),
            order: Mutex::default(),
            in_sync: AtomicBool::new(false),
            lists_begun: AtomicU64::new(0),
            list_complete: AtomicU64::new(0),
            anew: Notify::new(),
        }
    }
}

impl<V: View> Cache<V> {
    /// Lets `observer` know of every change from now on, and before that of what is there, as if it came.
    pub fn observe(&self, observer: Arc<dyn EventHandler<V>>) {
        let _order = self.order();
        for object in self.all() {
            observer.changed(None, Some(&object));
        }
        self.observers.write().unwrap_or_else(PoisonError::into_inner).push(observer);
    }

    /// Has the watch begin again with a new list, and is not in sync until that is there.
    pub fn list_anew(&self) {
        let mut lists = self.order();
        lists.wanted += 1;
        self.in_sync.store(false, Ordering::Release);
        drop(lists);
        self.anew.notify_one();
    }

    /// The object of this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<V>> {
        self.read(|objects| objects.by_key.get(key).cloned())
    }

    /// All objects of a group, by key.
    #[must_use]
    pub fn group(&self, group: &str) -> Vec<Arc<V>> {
        self.read(|objects| {
            let keys = objects.by_group.get(group).into_iter().flatten();
            keys.filter_map(|key| objects.by_key.get(key).cloned()).collect()
        })
    }

    /// All objects, in no order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<V>> {
        self.read(|objects| objects.by_key.values().cloned().collect())
    }

    /// How many there are of which `is_counted` holds.
    #[must_use]
    pub fn count(&self, is_counted: impl Fn(&V) -> bool) -> usize {
        self.read(|objects| objects.by_key.values().filter(|object| is_counted(object)).count())
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read(|objects| objects.by_key.len())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it was filled; it stays so while a broken watch is made anew.
    #[must_use]
    pub fn in_sync(&self) -> bool {
        self.in_sync.load(Ordering::Acquire)
    }

    /// What a write of an object of this kind, answered just now with `version`, is known by.
    #[must_use]
    pub fn written(&self, version: &str) -> Written {
        Written::new(version, self.lists_begun.load(Ordering::Acquire))
    }

    /// Whether an object with the version `shown` is older than what was written, so that nothing can be concluded from it:
    /// the watch is about to show what was written.
    #[must_use]
    pub fn is_outrun(&self, shown: &str, written: Written) -> bool {
        written.outruns(shown, self.list_complete.load(Ordering::Acquire))
    }

    /// A full cache, for the tests of those who read one.
    #[doc(hidden)]
    pub fn full(objects: impl IntoIterator<Item = V>) -> Arc<Self> {
        let cache = Arc::new(Self::default());
        objects.into_iter().for_each(|object| cache.apply(object));
        cache.in_sync.store(true, Ordering::Release);
        cache
    }

    /// A whole new list, as the watch brings it.
    #[doc(hidden)]
    pub fn list_of(&self, objects: impl IntoIterator<Item = V>) {
        self.relisting();
        let mut listed = BTreeSet::new();
        for object in objects {
            listed.insert(object.key());
            self.apply(object);
        }
        self.on_resync(&listed);
    }

    /// A new or changed object.
    fn apply(&self, object: V) {
        let _order = self.order();
        let new = Arc::new(object);
        let old = self.write(|objects| objects.insert(new.key(), Arc::clone(&new)));
        self.tell(old.as_ref(), Some(&new));
    }

    /// An object that is gone.
    fn remove(&self, key: &str) {
        let _order = self.order();
        if let Some(old) = self.write(|objects| objects.remove(key)) {
            self.tell(Some(&old), None);
        }
    }

    /// A whole new list is about to be asked for.
    fn relisting(&self) {
        let mut lists = self.order();
        lists.begun = lists.wanted;
        self.lists_begun.fetch_add(1, Ordering::AcqRel);
        drop(lists);
        for observer in self.observers() {
            observer.relisting();
        }
    }

    /// A whole new list took the place of what was known; `listed` are the keys in it, applied one by one already.
    fn on_resync(&self, listed: &BTreeSet<String>) {
        let gone: Vec<String> = self
            .read(|objects| objects.by_key.keys().filter(|key| !listed.contains(*key)).cloned().collect());
        for key in gone {
            self.remove(&key);
        }
        let lists = self.order();
        self.list_complete.store(self.lists_begun.load(Ordering::Acquire), Ordering::Release);
        self.in_sync.store(lists.begun == lists.wanted, Ordering::Release);
        drop(lists);
        for observer in self.observers() {
            observer.on_resync();
        }
    }

    fn order(&self) -> MutexGuard<'_, Lists> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, old: Option<&Arc<V>>, new: Option<&Arc<V>>) {
        for observer in self.observers() {
            observer.changed(old, new);
        }
    }

    fn observers(&self) -> Vec<Arc<dyn EventHandler<V>>> {
        self.observers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn read<T>(&self, read: impl FnOnce(&Objects<V>) -> T) -> T {
        read(&self.objects.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, write: impl FnOnce(&mut Objects<V>) -> T) -> T {
        write(&mut self.objects.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<V: View> Objects<V> {
    fn insert(&mut self, key: String, object: Arc<V>) -> Option<Arc<V>> {
        let old = self.by_key.get(&key).cloned();
        if old.as_ref().and_then(|old| old.group()) != object.group() {
            if let Some(old) = &old {
                self.leave_group(&key, old);
            }
            if let Some(group) = object.group() {
                self.by_group.entry(group.to_owned()).or_default().insert(key.clone());
            }
        }
        self.by_key.insert(key, object);
        old
    }

    fn remove(&mut self, key: &str) -> Option<Arc<V>> {
        let old = self.by_key.remove(key)?;
        self.leave_group(key, &old);
        Some(old)
    }

    fn leave_group(&mut self, key: &str, object: &V) {
        let Some(group) = object.group() else { return };
        if let Some(keys) = self.by_group.get_mut(group) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_group.remove(group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug)]
    struct Thing(&'static str, Option<&'static str>);

    impl View for Thing {
        fn key(&self) -> String {
            self.0.to_owned()
        }
        fn group(&self) -> Option<&str> {
            self.1
        }
    }

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl EventHandler<Thing> for Log {
        fn changed(&self, old: Option<&Arc<Thing>>, new: Option<&Arc<Thing>>) {
            self.0.lock().unwrap().push(format!("{:?} {:?}", old.map(|t| t.1), new.map(|t| t.1)));
        }
        fn on_resync(&self) {
            self.0.lock().unwrap().push("relisted".to_owned());
        }
    }

    fn names(cache: &Cache<Thing>, group: &str) -> Vec<&'static str> {
        cache.group(group).iter().map(|thing| thing.0).collect()
    }

    #[test]
    fn the_index_follows_an_object_from_group_to_group() {
        let cache = Cache::default();
        cache.apply(Thing("a", Some("x")));
        cache.apply(Thing("b", Some("x")));
        cache.apply(Thing("a", Some("y")));
        assert_eq!((names(&cache, "x"), names(&cache, "y")), (vec!["b"], vec!["a"]));
        cache.apply(Thing("a", None));
        cache.remove("b");
        assert!(names(&cache, "x").is_empty() && names(&cache, "y").is_empty());
        assert_eq!(cache.len(), 1);
        assert!(cache.read(|objects| objects.by_group.is_empty()));
    }

    #[test]
    fn a_relist_takes_away_what_it_does_not_name() {
        let (cache, log) = (Cache::default(), Arc::new(Log::default()));
        cache.apply(Thing("gone", Some("x")));
        cache.observe(log.clone());
        assert_eq!(
            std::mem::take(&mut *log.0.lock().unwrap()),
            ["None Some(Some(\"x\"))"],
            "what is there is told"
        );
        assert!(!cache.in_sync());
        cache.apply(Thing("stays", Some("x")));
        cache.on_resync(&BTreeSet::from(["stays".to_owned()]));
        assert!(cache.in_sync());
        assert_eq!(names(&cache, "x"), ["stays"]);
        assert_eq!(*log.0.lock().unwrap(), ["None Some(Some(\"x\"))", "Some(Some(\"x\")) None", "relisted"]);
    }

    #[test]
    fn a_list_that_was_begun_before_another_was_wanted_is_not_that_one() {
        let cache = Cache::<Thing>::default();
        cache.relisting();
        cache.list_anew();
        cache.on_resync(&BTreeSet::new());
        assert!(!cache.in_sync());
        cache.relisting();
        cache.on_resync(&BTreeSet::new());
        assert!(cache.in_sync());
        cache.list_anew();
        assert!(!cache.in_sync());
    }
}
