//! Write cache of a set: the last write, and a write with an unknown outcome.
//!
//! The watch has caught up once it shows the state of the last response, or a later one. Without the cache, a loop that
//! repeats at once would read the old size and request the same change again.

use std::collections::{BTreeMap, BTreeSet};

use kube_node_api::{NodeSet, names::ANNOTATION_VICTIMS};

use super::Bounds;

/// Maximum number of Nodes in one call and of victims recorded in a set; cluster-autoscaler names one or a few.
pub const MOST_VICTIMS: usize = 1_000;

/// State of a set, as far as scale requests need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetSnapshot {
    /// UID of the set.
    pub uid: String,
    /// `metadata.generation`, which counts the changes of the spec.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// `spec.autoscaling`.
    pub bounds: Bounds,
    /// `spec.replicas`.
    pub replicas: i32,
    /// UIDs of the victims.
    pub victims: BTreeSet<String>,
}

impl SetSnapshot {
    /// Snapshot of a set; None if the set is no node group: it has no `spec.autoscaling`, or it is being deleted.
    pub fn of(set: &NodeSet) -> Option<Self> {
        let metadata = &set.metadata;
        let autoscaling = set.spec.autoscaling.as_ref()?;
        // Without a maximum, which the schema requires, the group cannot grow.
        let max = autoscaling.max_replicas;
        metadata.deletion_timestamp.is_none().then(|| Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            bounds: Bounds { min: autoscaling.min_replicas, max },
            replicas: set.spec.replicas,
            victims: victims(metadata.annotations.as_ref()),
        })
    }

    /// Generation and resource version: what the states of one set are ordered by. A request that names only Nodes above
    /// the replicas changes the victims alone, which the generation does not count. Versions are growing numbers
    /// (Kubernetes 1.35 on); one that is no number is older than all.
    fn age(&self) -> (i64, u64) {
        (self.generation, self.version.parse().unwrap_or_default())
    }
}

/// UIDs of the victims in the annotations of a set.
pub fn victims(annotations: Option<&BTreeMap<String, String>>) -> BTreeSet<String> {
    let text = annotations.and_then(|annotations| annotations.get(ANNOTATION_VICTIMS));
    let uids = text.into_iter().flat_map(|text| text.split(','));
    uids.filter(|uid| !uid.is_empty()).map(str::to_owned).collect()
}

/// Annotation value for the victims; None without victims.
pub fn record(victims: &BTreeSet<String>) -> Option<String> {
    let text = victims.iter().map(String::as_str).collect::<Vec<_>>().join(",");
    Some(text).filter(|text| !text.is_empty())
}

/// Writes to one set.
#[derive(Clone, Debug, Default)]
pub struct WriteCache {
    read: Option<SetSnapshot>,
    unsettled: Option<SetSnapshot>,
    /// True if the set was read since, in the state of the write without a response, and cannot be fenced.
    not_fenced: bool,
    /// UID and replicas of the set as cluster-autoscaler knows them from the last answer.
    told: Option<(String, i32)>,
}

impl WriteCache {
    /// State of the set: as the watch shows it, or newer if this process knows more. None while a write has
    /// an unknown outcome, unless the API server refuses to settle it.
    pub fn current<'a>(&'a self, shown: &'a SetSnapshot) -> Option<&'a SetSnapshot> {
        if !self.not_fenced && self.unsettled.as_ref().is_some_and(|open| open.uid == shown.uid) {
            return None;
        }
        // A recreated set has another UID, and its generation starts again.
        let newer = |read: &&SetSnapshot| read.uid == shown.uid && read.age() > shown.age();
        Some(self.read.as_ref().filter(newer).unwrap_or(shown))
    }

    /// Records the state from which a target size was answered, or which a complete request has left.
    pub fn tell(&mut self, snapshot: &SetSnapshot) {
        self.told = Some((snapshot.uid.clone(), snapshot.replicas));
    }

    /// Returns false if the last answer was for another number of replicas. The delta of a request was then computed for
    /// another size: a write of an earlier process, which got no response, may have been applied since.
    pub fn is_told(&self, snapshot: &SetSnapshot) -> bool {
        let told = self.told.as_ref().filter(|(uid, _)| *uid == snapshot.uid);
        told.is_none_or(|(_, replicas)| *replicas == snapshot.replicas)
    }

    /// Records the state in an API server's response.
    pub fn read(&mut self, snapshot: SetSnapshot) {
        (self.unsettled, self.not_fenced) = (None, false);
        self.read = Some(snapshot);
    }

    /// Records a write without a response, made on this state: it may have been applied, or may be applied later.
    pub fn lost(&mut self, on: SetSnapshot) {
        (self.unsettled, self.not_fenced) = (Some(on), false);
    }

    /// Records that the API server refuses the write that would settle one without a response, in the state `live`. The set
    /// is in that state, and may change as by another client. Requests stay refused: each tries to settle first.
    pub fn not_fenced(&mut self, live: SetSnapshot) {
        (self.read, self.not_fenced) = (Some(live), true);
    }

    /// Returns true if the API server refuses to settle a write without a response.
    pub const fn is_not_fenced(&self) -> bool {
        self.not_fenced
    }

    /// The state on which a write without a response was made.
    pub const fn unsettled(&self) -> Option<&SetSnapshot> {
        self.unsettled.as_ref()
    }

    /// Returns true if the write without a response can have no further effect: its precondition is a
    /// resource version that the live set no longer has.
    pub fn settles(&self, live: &SetSnapshot) -> bool {
        self.unsettled.as_ref().is_none_or(|open| open.uid != live.uid || open.version != live.version)
    }

    /// Forgets a set that is gone.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}
