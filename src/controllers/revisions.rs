//! Revisions as `ControllerRevision`s in the operator's namespace: what each Node's machine is made from, kept for as
//! long as a Node or a set names it, and some longer, for a rollback.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};

use super::api::{ApiError, FIELD_MANAGER, call};
use crate::{
    api::{NodeClass, names::LABEL_NODECLASS},
    core::{
        history::{self, Stored},
        revision::{Machine, RevisionError},
    },
};

/// Why a revision cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RevisionsError {
    /// The machine has none.
    #[error(transparent)]
    Revision(#[from] RevisionError),
    /// The API server did not answer as hoped.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// What is stored is no machine.
    #[error("ControllerRevision {name} cannot be read: delete it if no Node needs it")]
    Unreadable {
        /// Its name.
        name: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Two machines have one name.
    #[error("ControllerRevision {name} holds another machine: somebody changed it")]
    Changed {
        /// Its name.
        name: String,
    },
}

/// The revisions that are known, and the way to those that are not.
pub struct Revisions {
    api: Api<ControllerRevision>,
    known: Mutex<HashMap<String, Arc<Machine>>>,
}

impl Revisions {
    /// Revisions kept in `namespace`.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), known: Mutex::default() }
    }

    /// Stores the machine where it is not stored yet, and returns its revision.
    pub async fn ensure(&self, class: &NodeClass, machine: &Machine) -> Result<String, RevisionsError> {
        let revision = machine.revision()?;
        let class_name = class.metadata.name.as_deref().unwrap_or_default();
        let name = object_name(class_name, &revision);
        let stored = match self.read(&name).await? {
            Some(stored) => stored,
            None => self.create(class, &name, machine).await?,
        };
        // Equal by revision: amounts may be written in another form.
        if stored.revision()? == revision { Ok(revision) } else { Err(RevisionsError::Changed { name }) }
    }

    /// What a Node's machine is made from; None where the revision is gone.
    pub async fn get(&self, class: &str, revision: &str) -> Result<Option<Arc<Machine>>, RevisionsError> {
        self.read(&object_name(class, revision)).await
    }

    /// Makes a revision that is asked for again the youngest of its class, as `StatefulSet`s do it: the history tells what
    /// came after what.
    pub async fn raise(&self, class: &str, revision: &str) -> Result<(), ApiError> {
        let selector = ListParams::default().labels(&format!("{LABEL_NODECLASS}={class}"));
        let listed = call(|| format!("list the revisions of {class}"), self.api.list(&selector)).await?;
        let name = object_name(class, revision);
        let is_it = |item: &&ControllerRevision| item.metadata.name.as_deref() == Some(name.as_str());
        let others = listed.items.iter().filter(|item| !is_it(item)).map(|item| item.revision).max();
        let Some((own, youngest)) = listed.items.iter().find(is_it).zip(others) else { return Ok(()) };
        if own.revision > youngest {
            return Ok(());
        }
        let change = Patch::Merge(serde_json::json!({ "revision": youngest.saturating_add(1) }));
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        call(|| format!("raise ControllerRevision {name}"), self.api.patch(&name, &params, &change))
            .await
            .map(drop)
    }

    /// Forgets revisions of a class that are not `needed`, beyond the `limit` youngest. How many went.
    pub async fn prune(
        &self,
        class: &str,
        needed: &BTreeSet<String>,
        limit: usize,
    ) -> Result<usize, ApiError> {
        let selector = ListParams::default().labels(&format!("{LABEL_NODECLASS}={class}"));
        let listed =
            call(|| format!("list the revisions of {class}"), self.api.list_metadata(&selector)).await?;
        if listed.items.len() <= limit {
            return Ok(0);
        }
        let listed = call(|| format!("list the revisions of {class}"), self.api.list(&selector)).await?;
        let prefix = object_name(class, "");
        let stored: Vec<Stored> = listed
            .items
            .iter()
            .filter_map(|item| {
                let revision = item.metadata.name.as_deref()?.strip_prefix(&prefix)?.to_owned();
                Some(Stored { revision, number: item.revision })
            })
            .collect();
        let surplus = history::surplus(&stored, needed, limit);
        for revision in &surplus {
            let name = object_name(class, revision);
            self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
            let params = DeleteParams::default();
            let deletion = self.api.delete(&name, &params);
            match call(|| format!("delete ControllerRevision {name}"), deletion).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(surplus.len())
    }

    async fn read(&self, name: &str) -> Result<Option<Arc<Machine>>, RevisionsError> {
        if let Some(machine) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(Some(Arc::clone(machine)));
        }
        let stored = call(|| format!("read ControllerRevision {name}"), self.api.get_opt(name)).await?;
        stored.map(|stored| self.remember(name, &stored)).transpose()
    }

    async fn create(
        &self,
        class: &NodeClass,
        name: &str,
        machine: &Machine,
    ) -> Result<Arc<Machine>, RevisionsError> {
        let class_name = class.metadata.name.clone().unwrap_or_default();
        let selector = ListParams::default().labels(&format!("{LABEL_NODECLASS}={class_name}"));
        let others = call(|| format!("list the revisions of {class_name}"), self.api.list(&selector)).await?;
        let last = others.items.iter().map(|other| other.revision).max().unwrap_or(0);
        let data = serde_json::to_value(machine).map_err(RevisionError::from)?;
        let object = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some([(LABEL_NODECLASS.to_owned(), class_name)].into()),
                owner_references: class.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(data)),
            revision: last.saturating_add(1),
        };
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let action = || format!("create ControllerRevision {name}");
        let stored = match call(action, self.api.create(&params, &object)).await {
            // Somebody was faster, or an earlier call had succeeded after all.
            Err(error) if error.is_conflict() => call(action, self.api.get(name)).await?,
            other => other?,
        };
        self.remember(name, &stored)
    }

    fn remember(&self, name: &str, stored: &ControllerRevision) -> Result<Arc<Machine>, RevisionsError> {
        let data = stored.data.clone().map_or(serde_json::Value::Null, |data| data.0);
        let machine: Machine = serde_json::from_value(data)
            .map_err(|source| RevisionsError::Unreadable { name: name.to_owned(), source })?;
        let machine = Arc::new(machine);
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.to_owned(), Arc::clone(&machine));
        Ok(machine)
    }
}

fn object_name(class: &str, revision: &str) -> String {
    format!("{class}-{revision}")
}
