//! Revisions: machine specs, stored as `ControllerRevision`s in the operator's namespace. A revision is kept
//! while a Node or a set names it, and some longer, for a rollback.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        runtime::RawExtension,
    },
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use kube_node_api::{NodeClass, names::LABEL_NODECLASS};
use kube_node_planner::{
    history::{self, StoredRevision},
    revision::{ResolvedMachine, RevisionError},
};

use super::api::{ApiError, FIELD_MANAGER, call};

/// Reason why a revision is not available.
#[derive(Debug, thiserror::Error)]
pub enum RevisionsError {
    /// The machine spec has no revision.
    #[error(transparent)]
    Revision(#[from] RevisionError),
    /// A call to the API server failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The stored object is no machine spec.
    #[error("ControllerRevision {name} cannot be read: delete it if no Node needs it")]
    Unreadable {
        /// Name of the object.
        name: String,
        /// Cause.
        source: serde_json::Error,
    },
    /// The stored object holds another machine spec than its name says.
    #[error("ControllerRevision {name} holds another machine: somebody changed it")]
    Changed {
        /// Name of the object.
        name: String,
    },
}

/// Cached revisions, and access to the others.
pub struct Revisions {
    api: Api<ControllerRevision>,
    /// By object name.
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Clone)]
struct Known {
    /// UID of the owning class. A later class of the same name does not protect the revision from garbage collection.
    owner: Option<String>,
    /// Number in the history.
    number: i64,
    machine: Arc<ResolvedMachine>,
}

impl Revisions {
    /// Revisions stored in `namespace`.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), known: Mutex::default() }
    }

    /// Stores the machine spec unless it is stored, and returns its revision.
    pub async fn ensure(
        &self,
        class: &NodeClass,
        machine: &ResolvedMachine,
    ) -> Result<String, RevisionsError> {
        let revision = machine.revision()?;
        let name = object_name(class.metadata.name.as_deref().unwrap_or_default(), &revision);
        let stored = match self.known(&name).filter(|known| known.owner == class.metadata.uid) {
            Some(known) => known,
            None => self.store(class, &name, machine).await?,
        };
        // Compared by revision: quantities may be written in another form.
        if stored.machine.revision()? == revision {
            Ok(revision)
        } else {
            Err(RevisionsError::Changed { name })
        }
    }

    /// The machine spec of a revision; None if the revision is gone.
    pub async fn get(
        &self,
        class: &str,
        revision: &str,
    ) -> Result<Option<Arc<ResolvedMachine>>, RevisionsError> {
        let name = object_name(class, revision);
        if let Some(known) = self.known(&name) {
            return Ok(Some(known.machine));
        }
        let stored = call(|| format!("read ControllerRevision {name}"), self.api.get_opt(&name)).await?;
        stored.map(|stored| Ok(self.remember(&name, &stored)?.machine)).transpose()
    }

    /// Makes a revision that is requested again the newest of its class, as `StatefulSet`s do: the history
    /// shows the order of rollouts.
    pub async fn raise(&self, class: &str, revision: &str) -> Result<(), ApiError> {
        let listed =
            call(|| format!("list the revisions of {class}"), self.api.list(&of_class(class))).await?;
        let name = object_name(class, revision);
        let is_it = |item: &&ControllerRevision| item.metadata.name.as_deref() == Some(name.as_str());
        let others = listed.items.iter().filter(|item| !is_it(item)).map(|item| item.revision).max();
        let Some((own, youngest)) = listed.items.iter().find(is_it).zip(others) else { return Ok(()) };
        if own.revision > youngest {
            return Ok(());
        }
        let change = Patch::Merge(serde_json::json!({ "revision": youngest.saturating_add(1) }));
        call(|| format!("raise ControllerRevision {name}"), self.api.patch(&name, &written_by_us(), &change))
            .await
            .map(drop)
    }

    /// Deletes revisions of a class that are not `needed`, beyond the `limit` newest, and restores deleted
    /// ones that are needed and cached. Returns the numbers of deleted and of restored revisions.
    pub async fn tidy(
        &self,
        class: &ObjectMeta,
        needed: &BTreeSet<String>,
        limit: usize,
    ) -> Result<(usize, usize), RevisionsError> {
        let class_name = class.name.as_deref().unwrap_or_default();
        let selector = of_class(class_name);
        let action = || format!("list the revisions of {class_name}");
        let listed = call(action, self.api.list_metadata(&selector)).await?;
        let names: BTreeSet<&str> =
            listed.items.iter().filter_map(|item| item.metadata.name.as_deref()).collect();
        let mut restored = 0;
        for name in needed.iter().map(|revision| object_name(class_name, revision)) {
            if let Some(known) = self.known(&name).filter(|_| !names.contains(name.as_str())) {
                self.create(class, &name, &known.machine, known.number).await?;
                restored += 1;
            }
        }
        if names.len() <= limit {
            return Ok((0, restored));
        }
        let listed = call(action, self.api.list(&selector)).await?;
        let prefix = object_name(class_name, "");
        let stored: Vec<StoredRevision> = listed
            .items
            .iter()
            .filter_map(|item| {
                let revision = item.metadata.name.as_deref()?.strip_prefix(&prefix)?.to_owned();
                Some(StoredRevision { revision, number: item.revision })
            })
            .collect();
        let surplus = history::surplus(&stored, needed, limit);
        for revision in &surplus {
            let name = object_name(class_name, revision);
            self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
            let params = DeleteParams::default();
            let deletion = self.api.delete(&name, &params);
            match call(|| format!("delete ControllerRevision {name}"), deletion).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok((surplus.len(), restored))
    }

    /// Drops the cached revisions of a deleted class.
    pub fn forget(&self, class: &str) {
        // A class whose name has the same prefix reads its revisions again.
        let prefix = object_name(class, "");
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|name, _| !name.starts_with(&prefix));
    }

    fn known(&self, name: &str) -> Option<Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    async fn store(
        &self,
        class: &NodeClass,
        name: &str,
        machine: &ResolvedMachine,
    ) -> Result<Known, RevisionsError> {
        let class = &class.metadata;
        let read = || call(|| format!("read ControllerRevision {name}"), self.api.get_opt(name));
        if let Some(stored) = read().await? {
            return self.take_over(class, name, stored).await;
        }
        let class_name = class.name.as_deref().unwrap_or_default();
        let action = || format!("list the revisions of {class_name}");
        let others = call(action, self.api.list(&of_class(class_name))).await?;
        let last = others.items.iter().map(|other| other.revision).max().unwrap_or(0);
        match self.create(class, name, machine, last.saturating_add(1)).await {
            // Another writer was faster, or an earlier call had succeeded after all.
            Err(RevisionsError::Api(error)) if error.is_conflict() => match read().await? {
                Some(stored) => self.take_over(class, name, stored).await,
                None => Err(error.into()),
            },
            other => other,
        }
    }

    /// Changes the owner of a revision left behind by an earlier class of this name: it would be collected
    /// with that class.
    async fn take_over(
        &self,
        class: &ObjectMeta,
        name: &str,
        stored: ControllerRevision,
    ) -> Result<Known, RevisionsError> {
        if owner_of(&stored) == class.uid {
            return self.remember(name, &stored);
        }
        let change = Patch::Merge(serde_json::json!({ "metadata": {
            "resourceVersion": stored.metadata.resource_version,
            "ownerReferences": owned_by(class),
        }}));
        let action = || format!("take over ControllerRevision {name}");
        let stored = call(action, self.api.patch(name, &written_by_us(), &change)).await?;
        self.remember(name, &stored)
    }

    async fn create(
        &self,
        class: &ObjectMeta,
        name: &str,
        machine: &ResolvedMachine,
        number: i64,
    ) -> Result<Known, RevisionsError> {
        let class_name = class.name.clone().unwrap_or_default();
        let object = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some([(LABEL_NODECLASS.to_owned(), class_name)].into()),
                owner_references: Some(owned_by(class)),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(serde_json::to_value(machine).map_err(RevisionError::from)?)),
            revision: number,
        };
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let action = || format!("create ControllerRevision {name}");
        let stored = call(action, self.api.create(&params, &object)).await?;
        self.remember(name, &stored)
    }

    fn remember(&self, name: &str, stored: &ControllerRevision) -> Result<Known, RevisionsError> {
        let data = stored.data.clone().map_or(serde_json::Value::Null, |data| data.0);
        let machine: ResolvedMachine = serde_json::from_value(data)
            .map_err(|source| RevisionsError::Unreadable { name: name.to_owned(), source })?;
        let known = Known { owner: owner_of(stored), number: stored.revision, machine: Arc::new(machine) };
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), known.clone());
        Ok(known)
    }
}

fn of_class(class: &str) -> ListParams {
    ListParams::default().labels(&format!("{LABEL_NODECLASS}={class}"))
}

fn owned_by(class: &ObjectMeta) -> Vec<OwnerReference> {
    vec![OwnerReference {
        api_version: NodeClass::api_version(&()).into_owned(),
        kind: NodeClass::kind(&()).into_owned(),
        name: class.name.clone().unwrap_or_default(),
        uid: class.uid.clone().unwrap_or_default(),
        controller: Some(true),
        ..OwnerReference::default()
    }]
}

/// UID of the class that owns a revision.
fn owner_of(stored: &ControllerRevision) -> Option<String> {
    stored
        .metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
        .map(|o| o.uid.clone())
}

fn written_by_us() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

fn object_name(class: &str, revision: &str) -> String {
    format!("{class}-{revision}")
}
