//! What is known of a set beyond what the watch shows: what was written last, and whether a write is out whose fate
//! nobody knows.
//!
//! Every order raises or lowers the replicas, which the API server counts in `metadata.generation`: the watch has caught
//! up once it shows that generation. Without this, a loop that follows an order at once would read the old size and
//! order the same again.

use std::collections::{BTreeMap, BTreeSet};

use kube_node_api::{NodeSet, names::ANNOTATION_VICTIMS};

use super::Bounds;

/// How a set stands, as far as orders need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetSnapshot {
    /// UID of the set.
    pub uid: String,
    /// `metadata.generation`: counts the changes of its spec.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// `spec.autoscaling`.
    pub bounds: Bounds,
    /// `spec.replicas`.
    pub replicas: i32,
    /// UIDs of Nodes that were named to go.
    pub victims: BTreeSet<String>,
}

impl SetSnapshot {
    /// How a set stands; None where it is no group: nobody asked for it, or it leaves.
    #[must_use]
    pub fn of(set: &NodeSet) -> Option<Self> {
        let metadata = &set.metadata;
        let autoscaling = set.spec.autoscaling.as_ref()?;
        // Without a greatest size, which the schema asks for, nothing may grow.
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
}

/// UIDs of Nodes that the annotations of a set name to go.
#[must_use]
pub fn victims(annotations: Option<&BTreeMap<String, String>>) -> BTreeSet<String> {
    let text = annotations.and_then(|annotations| annotations.get(ANNOTATION_VICTIMS));
    text.into_iter()
        .flat_map(|text| text.split(','))
        .filter(|uid| !uid.is_empty())
        .map(str::to_owned)
        .collect()
}

/// How they are written; None where there is none.
#[must_use]
pub fn record(victims: &BTreeSet<String>) -> Option<String> {
    let text = victims.iter().map(String::as_str).collect::<Vec<_>>().join(",");
    Some(text).filter(|text| !text.is_empty())
}

/// What was written to one set.
#[derive(Clone, Debug, Default)]
pub struct WriteCache {
    read: Option<SetSnapshot>,
    unsettled: Option<SetSnapshot>,
}

impl WriteCache {
    /// How the set stands: as the watch shows it, or as this process knows better. None while the fate of a write is
    /// open.
    #[must_use]
    pub fn current<'a>(&'a self, shown: &'a SetSnapshot) -> Option<&'a SetSnapshot> {
        if self.unsettled.as_ref().is_some_and(|open| open.uid == shown.uid) {
            return None;
        }
        // A set that was made anew has another UID, and counts from the beginning.
        let newer = |read: &&SetSnapshot| read.uid == shown.uid && read.generation > shown.generation;
        Some(self.read.as_ref().filter(newer).unwrap_or(shown))
    }

    /// The API server has answered with this state.
    pub fn read(&mut self, standing: SetSnapshot) {
        self.unsettled = None;
        self.read = Some(standing);
    }

    /// A write to the set in this state has no answer: it may have happened, or may yet.
    pub fn lost(&mut self, on: SetSnapshot) {
        self.unsettled = Some(on);
    }

    /// The state that a write without an answer was for.
    #[must_use]
    pub const fn unsettled(&self) -> Option<&SetSnapshot> {
        self.unsettled.as_ref()
    }

    /// Whether the API server's answer says that the write can have no effect any more that it has not had: it names the
    /// version that it was for, and the set has another one by now.
    #[must_use]
    pub fn settles(&self, live: &SetSnapshot) -> bool {
        self.unsettled.as_ref().is_none_or(|open| open.uid != live.uid || open.version != live.version)
    }

    /// The set is gone.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}
