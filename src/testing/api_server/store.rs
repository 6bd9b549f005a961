//! Objects of the in-memory API server, and the log of their changes.
//!
//! Inputs: objects as the rules of writes made them. Outputs: the objects now and at an earlier revision, and all
//! changes after one. Invariants: each change has the next revision, and its object has that `resourceVersion`; the
//! changes up to the compacted revision are forgotten.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{apply, kinds::KINDS};

/// Position of a kind in [`KINDS`], and `namespace/name` or the name.
pub type Key = (usize, String);

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// Revision of the change.
    pub revision: u64,
    /// Position of the kind in [`KINDS`].
    pub kind: usize,
    /// The object before; None for a new one.
    pub before: Option<Arc<Value>>,
    /// The object after; of a deleted one its last state, with the revision of the deletion.
    pub after: Arc<Value>,
    /// True if the object is gone.
    pub deleted: bool,
}

/// All objects.
#[derive(Clone, Debug)]
pub struct Store {
    revision: u64,
    compacted: u64,
    /// By kind and key.
    objects: [BTreeMap<String, Arc<Value>>; KINDS.len()],
    log: Vec<Change>,
    /// Fields that belong to the manager that applies alone, and what it applied last, by the UID of the object. Null: an
    /// apply of nothing has made the object, and nobody has written to it since.
    owned: BTreeMap<String, (Value, Value)>,
    /// Revision of the last change of each kind.
    last: [u64; KINDS.len()],
    /// Of each kind the last change that is forgotten.
    forgotten: [u64; KINDS.len()],
    /// By kind. Not a `watch` channel: that one wakes its receivers in a random order.
    changed: [Arc<Notify>; KINDS.len()],
}

impl Default for Store {
    fn default() -> Self {
        let (log, owned, changed) = <_>::default();
        let objects = [const { BTreeMap::new() }; KINDS.len()];
        let (last, forgotten) = ([0; KINDS.len()], [0; KINDS.len()]);
        Self { revision: 1, compacted: 0, objects, log, owned, last, forgotten, changed }
    }
}

impl Store {
    /// Revision of the last change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Revision up to which changes are forgotten.
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Forgets the changes up to the present.
    pub fn compact(&mut self) {
        self.compacted = self.revision;
        self.log.clear();
        self.forgotten = self.last;
        for changed in &self.changed {
            changed.notify_waiters();
        }
    }

    /// Returns true if a change of a kind after a revision is forgotten.
    pub fn has_forgotten(&self, kind: usize, revision: u64) -> bool {
        revision < self.forgotten[kind]
    }

    /// Notified at each change of a kind.
    pub fn changed(&self, kind: usize) -> Arc<Notify> {
        Arc::clone(&self.changed[kind])
    }

    /// An object.
    pub fn get(&self, (kind, key): &Key) -> Option<&Arc<Value>> {
        self.objects[*kind].get(key)
    }

    /// Fields of an object that belong to the manager that applies alone.
    pub fn owned(&self, object: &Value) -> Value {
        self.owned.get(uid(object)).map(|(fields, _)| fields.clone()).unwrap_or_default()
    }

    /// Returns true if this is what the manager applied to an object last; before the first time, that is nothing.
    pub fn is_applied(&self, object: &Value, config: &Value) -> bool {
        self.owned.get(uid(object)).map_or_else(|| apply::sets_nothing(config), |(_, last)| last == config)
    }

    /// Keeps which fields of an object belong to that manager, which has applied this.
    pub fn own(&mut self, object: &Value, fields: Value, config: Value) {
        self.owned.insert(uid(object).to_owned(), (fields, config));
    }

    /// Objects of a kind at present, by key.
    pub fn all(&self, kind: usize) -> impl Iterator<Item = (&str, &Arc<Value>)> {
        self.objects[kind].iter().map(|(key, object)| (key.as_str(), object))
    }

    /// Objects of a kind at a revision that is not compacted, by key.
    pub fn all_at(&self, kind: usize, revision: u64) -> BTreeMap<String, Arc<Value>> {
        let mut objects: BTreeMap<String, Arc<Value>> =
            self.all(kind).map(|(key, object)| (key.to_owned(), Arc::clone(object))).collect();
        for change in self.log.iter().rev().take_while(|change| change.revision > revision) {
            if change.kind == kind {
                match &change.before {
                    Some(before) => objects.insert(key_of(kind, before), Arc::clone(before)),
                    None => objects.remove(&key_of(kind, &change.after)),
                };
            }
        }
        objects
    }

    /// All changes since the last compaction.
    pub fn log(&self) -> &[Change] {
        &self.log
    }

    /// Changes of a kind after a revision.
    pub fn since(&self, kind: usize, revision: u64) -> impl Iterator<Item = &Change> {
        let first = self.log.partition_point(|change| change.revision <= revision);
        self.log[first..].iter().filter(move |change| change.kind == kind)
    }

    /// Stores an object as its next version.
    pub fn put(&mut self, kind: usize, object: Value) -> Arc<Value> {
        let key = key_of(kind, &object);
        if let Some((own, last)) = self.owned.remove(uid(&object)).filter(|(_, last)| !last.is_null()) {
            self.owned.insert(uid(&object).to_owned(), (apply::left(&own, &object), last));
        }
        let object = self.versioned(object);
        let before = self.objects[kind].insert(key, Arc::clone(&object));
        self.record(Change {
            revision: self.revision,
            kind,
            before,
            after: Arc::clone(&object),
            deleted: false,
        });
        object
    }

    /// Removes an object; returns its last state.
    pub fn remove(&mut self, kind: usize, last: Value) -> Arc<Value> {
        let before = self.objects[kind].remove(&key_of(kind, &last));
        self.owned.remove(uid(&last));
        let last = self.versioned(last);
        self.record(Change {
            revision: self.revision,
            kind,
            before,
            after: Arc::clone(&last),
            deleted: true,
        });
        last
    }

    fn versioned(&mut self, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        Arc::new(object)
    }

    fn record(&mut self, change: Change) {
        let kind = change.kind;
        self.last[kind] = change.revision;
        self.log.push(change);
        self.changed[kind].notify_waiters();
    }
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Key of an object within its kind.
pub fn key_of(kind: usize, object: &Value) -> String {
    let metadata = &object["metadata"];
    key(kind, metadata["namespace"].as_str(), metadata["name"].as_str().unwrap_or_default())
}

/// Key of an object by its namespace and name.
pub fn key(kind: usize, namespace: Option<&str>, name: &str) -> String {
    if KINDS[kind].namespaced { format!("{}/{name}", namespace.unwrap_or_default()) } else { name.to_owned() }
}
