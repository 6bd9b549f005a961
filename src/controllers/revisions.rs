//! Revisions: machine specs, stored as `ControllerRevision`s in the operator's namespace. A revision is kept
//! while a Node or a set names it, and some longer, for a rollback.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use anyhow::{Context, anyhow};
use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        runtime::RawExtension,
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PostParams},
};
use kube_ext::{
    call::{ApiError, call},
    objects,
};
use kube_node_api::{NodeClass, names};
use kube_node_cache::CachedNodeClass;
use kube_node_planner::{
    history::{self, StoredRevision},
    revision::ResolvedMachine,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use super::api::patch_params;

/// Time for which a revision is kept after a set has asked for it: the set's status may name the revision while no watch
/// shows that status yet. Longer than a watch may be silent unnoticed (45 s).
const KEPT_AFTER_USE: Duration = Duration::from_mins(2);

/// Reason why a revision is not available.
#[derive(Debug, thiserror::Error)]
pub enum RevisionsError {
    /// A call to the API server failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The machine spec has no revision, or the stored object is not the machine spec that its name says.
    #[error(transparent)]
    Unusable(#[from] anyhow::Error),
}

/// Result of reading or writing a revision.
pub type Result<T, E = RevisionsError> = std::result::Result<T, E>;

/// Cached revisions, and access to the others.
pub struct Revisions {
    api: Api<ControllerRevision>,
    /// By object name.
    cached: Mutex<HashMap<String, CachedRevision>>,
}

#[derive(Clone)]
struct CachedRevision {
    /// Name of the class by the label; None if the label and the owner disagree.
    class: Option<String>,
    /// UID of the owning class. A later class of the same name does not protect the revision from garbage collection.
    owner: Option<String>,
    /// Number in the history.
    number: i64,
    machine: Arc<ResolvedMachine>,
    /// The content as it is stored, which a newer release may have written.
    data: Arc<Value>,
    /// When a set last asked for it in this process.
    used: Option<Instant>,
}

impl Revisions {
    /// Revisions stored in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), cached: Mutex::default() }
    }

    /// Stores the machine spec unless it is stored, and returns its revision.
    pub(super) async fn ensure(&self, class: &NodeClass, machine: &ResolvedMachine) -> Result<String> {
        let revision = machine.revision()?;
        let name = object_name(&class.name_any(), &revision);
        let stored = match self.cached(&name).filter(|cached| cached.owner == class.metadata.uid) {
            Some(cached) => cached,
            None => self.store(class, &name, machine).await?,
        };
        // Compared by revision: quantities may be written in another form.
        if stored.machine.revision()? != revision {
            let error = anyhow!("ControllerRevision {name} holds another machine: somebody changed it");
            return Err(error.into());
        }
        if let Some(cached) = self.cached.lock().get_mut(&name) {
            cached.used = Some(Instant::now());
        }
        Ok(revision)
    }

    /// The machine spec of a revision of the class; None if there is none.
    pub(crate) async fn get(&self, class: &str, revision: &str) -> Result<Option<Arc<ResolvedMachine>>> {
        let name = object_name(class, revision);
        if self.cached(&name).is_none()
            && let Some(stored) = objects::read(&self.api, &name).await?
        {
            self.remember(&stored)?;
        }
        Ok(self.cached_of(class, &name).map(|cached| cached.machine))
    }

    /// Makes a revision that is requested again the newest of its class, as `StatefulSet`s do: the history
    /// shows the order of rollouts.
    pub(super) async fn raise(&self, class: &str, revision: &str) -> Result<(), ApiError> {
        let listed = self.list(class).await?;
        let name = object_name(class, revision);
        let is_it = |item: &&ControllerRevision| item.name_any() == name;
        let others = listed.iter().filter(|item| !is_it(item)).map(|item| item.revision).max();
        let own = listed.iter().find(is_it).map(|own| own.revision);
        let Some((_, youngest)) = own.zip(others).filter(|(own, youngest)| own <= youngest) else {
            return Ok(());
        };
        let change = Patch::Merge(json!({ "revision": youngest.saturating_add(1) }));
        let (action, params) = (format!("raise ControllerRevision {name}"), patch_params());
        call(action, self.api.patch(&name, &params, &change)).await.map(drop)
    }

    /// Deletes revisions of a class that are not needed, beyond the newest, and restores deleted ones that are
    /// needed and cached. Returns the numbers of deleted and of restored revisions.
    ///
    /// `needed` returns the revisions that are needed now and the number of others to keep; None: nobody knows.
    pub(super) async fn tidy(
        &self,
        class: &CachedNodeClass,
        needed: impl Fn() -> Option<(BTreeSet<String>, usize)>,
    ) -> Result<(usize, usize)> {
        let class_name = class.name();
        let selector = of_class(class_name);
        let action = format!("list the revisions of {class_name}");
        let listed = call(action, self.api.list_metadata(&selector)).await?;
        let names: BTreeSet<String> = listed.iter().map(ResourceExt::name_any).collect();
        let Some((needed_now, limit)) = needed() else { return Ok((0, 0)) };
        let mut restored = 0;
        for name in needed_now.iter().map(|revision| object_name(class_name, revision)) {
            if let Some(cached) = self.cached_of(class_name, &name).filter(|_| !names.contains(&name)) {
                self.create(class, &name, (*cached.data).clone(), cached.number).await?;
                restored += 1;
            }
        }
        if names.len() <= limit {
            return Ok((0, restored));
        }
        let prefix = object_name(class_name, "");
        let stored = |item: ControllerRevision| {
            let revision = item.name_any().strip_prefix(&prefix)?.to_owned();
            Some(StoredRevision { revision, number: item.revision })
        };
        let stored: Vec<_> = self.list(class_name).await?.into_iter().filter_map(stored).collect();
        let mut gone = 0;
        for revision in history::surplus(&stored, &needed_now, limit) {
            // A set may have gone back to it meanwhile.
            if needed().is_none_or(|(needed, _)| needed.contains(&revision)) {
                continue;
            }
            let name = object_name(class_name, &revision);
            let is_used =
                |cached: &CachedRevision| cached.used.is_some_and(|at| at.elapsed() < KEPT_AFTER_USE);
            if self.cached(&name).is_some_and(|cached| is_used(&cached)) {
                continue;
            }
            self.cached.lock().remove(&name);
            objects::delete(&self.api, &name).await?;
            gone += 1;
        }
        Ok((gone, restored))
    }

    /// Drops the cached revisions of a deleted class.
    pub(super) fn forget(&self, class: &str) {
        // A class whose name has the same prefix reads its revisions again.
        let prefix = object_name(class, "");
        self.cached.lock().retain(|name, _| !name.starts_with(&prefix));
    }

    fn cached(&self, name: &str) -> Option<CachedRevision> {
        self.cached.lock().get(name).cloned()
    }

    /// The cached revision of this class. Of class `a` the revision `b-v1-0` would be stored under the name of the revision
    /// `v1-0` of class `a-b`.
    fn cached_of(&self, class: &str, name: &str) -> Option<CachedRevision> {
        self.cached(name).filter(|cached| cached.class.as_deref() == Some(class))
    }

    async fn list(&self, class: &str) -> Result<Vec<ControllerRevision>, ApiError> {
        objects::list(&self.api, &format!("the revisions of {class}"), &of_class(class)).await
    }

    async fn store(
        &self,
        class: &NodeClass,
        name: &str,
        machine: &ResolvedMachine,
    ) -> Result<CachedRevision> {
        if let Some(stored) = objects::read(&self.api, name).await? {
            return self.take_over(class, stored).await;
        }
        let others = self.list(&class.name_any()).await?;
        let last = others.iter().map(|other| other.revision).max().unwrap_or(0);
        let data = serde_json::to_value(machine).context("the machine cannot be encoded")?;
        match self.create(class, name, data, last.saturating_add(1)).await {
            // Another writer was faster, or an earlier call had succeeded after all.
            Err(RevisionsError::Api(error)) if error.is_conflict() => {
                match objects::read(&self.api, name).await? {
                    Some(stored) => self.take_over(class, stored).await,
                    None => Err(error.into()),
                }
            }
            other => other,
        }
    }

    /// Changes the owner of a revision left behind by an earlier class of this name: it would be collected
    /// with that class.
    async fn take_over(&self, class: &NodeClass, stored: ControllerRevision) -> Result<CachedRevision> {
        if owner_of(&stored) == class.metadata.uid {
            return self.remember(&stored);
        }
        let name = stored.name_any();
        let change = Patch::Merge(json!({ "metadata": {
            "resourceVersion": stored.metadata.resource_version,
            "ownerReferences": [class.controller_owner_ref(&())],
        }}));
        let action = format!("take over ControllerRevision {name}");
        self.remember(&call(action, self.api.patch(&name, &patch_params(), &change)).await?)
    }

    async fn create(
        &self,
        class: &impl Resource<DynamicType = ()>,
        name: &str,
        data: Value,
        number: i64,
    ) -> Result<CachedRevision> {
        let object = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some([(names::LABEL_NODECLASS.to_owned(), class.name_any())].into()),
                owner_references: Some(class.controller_owner_ref(&()).into_iter().collect()),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(data)),
            revision: number,
        };
        let params = PostParams { field_manager: patch_params().field_manager, ..PostParams::default() };
        let action = format!("create ControllerRevision {name}");
        self.remember(&call(action, self.api.create(&params, &object)).await?)
    }

    fn remember(&self, stored: &ControllerRevision) -> Result<CachedRevision> {
        let name = stored.name_any();
        let data = stored.data.clone().map_or(Value::Null, |data| data.0);
        let machine = ResolvedMachine::read(&data).with_context(|| {
            format!(
                "ControllerRevision {name} cannot be read: run the release that wrote it, or delete it if no Node needs it"
            )
        })?;
        let cached = CachedRevision {
            class: class_of(stored),
            owner: owner_of(stored),
            number: stored.revision,
            machine: Arc::new(machine),
            data: Arc::new(data),
            used: None,
        };
        self.cached.lock().insert(name, cached.clone());
        Ok(cached)
    }
}

fn of_class(class: &str) -> ListParams {
    ListParams::default().labels(&format!("{}={class}", names::LABEL_NODECLASS))
}

/// Name of the class of a revision: that of its label, unless another object owns the revision. A class that is gone and
/// made again has the name of its revisions' owner.
fn class_of(stored: &ControllerRevision) -> Option<String> {
    let class = stored.labels().get(names::LABEL_NODECLASS)?;
    let is_owned = |owner: &OwnerReference| owner.kind == NodeClass::kind(&()) && owner.name == *class;
    controller_of(stored).is_none_or(is_owned).then(|| class.clone())
}

/// UID of the class that owns a revision.
fn owner_of(stored: &ControllerRevision) -> Option<String> {
    controller_of(stored).map(|owner| owner.uid.clone())
}

fn controller_of(stored: &ControllerRevision) -> Option<&OwnerReference> {
    stored.owner_references().iter().find(|owner| owner.controller == Some(true))
}

fn object_name(class: &str, revision: &str) -> String {
    format!("{class}-{revision}")
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response, StatusCode};
    use kube::client::Body;
    use tower::service_fn;

    use super::*;

    /// Revisions of an API server that has this object alone, and none in lists.
    fn revisions(name: &'static str, stored: serde_json::Value) -> Revisions {
        let service = service_fn(move |request: Request<Body>| {
            let (status, body) = if request.uri().path().ends_with(&format!("/{name}")) {
                (StatusCode::OK, stored.clone())
            } else if request.method() == Method::GET
                && request.uri().path().ends_with("/controllerrevisions")
            {
                (StatusCode::OK, json!({ "metadata": {}, "items": [] }))
            } else if request.method() == Method::POST {
                (StatusCode::CREATED, stored.clone())
            } else {
                (StatusCode::NOT_FOUND, json!({ "kind": "Status", "code": 404, "reason": "NotFound" }))
            };
            let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
            async move { Ok::<_, tower::BoxError>(response?) }
        });
        Revisions::new(Client::new(service, "default"), "kube-node-system")
    }

    fn stored(name: &str, class: &str, owner: &str) -> serde_json::Value {
        json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1,
            "metadata": {
                "name": name, "labels": { "kube-node.io/nodeclass": class },
                "ownerReferences": [{
                    "apiVersion": "kube-node.io/v1alpha1", "kind": "NodeClass", "name": owner, "uid": "u", "controller": true
                }],
            },
            "data": { "nodeController": "hollow" },
        })
    }

    #[tokio::test]
    async fn a_revision_is_found_in_its_own_class_alone() {
        let name = "small-gpu-v1-0a";
        for (of_small, of_gpu, class, owner) in [
            (false, true, "small-gpu", "small-gpu"),
            (true, false, "small", "small"),
            (false, false, "small", "small-gpu"),
        ] {
            let revisions = revisions(name, stored(name, class, owner));
            // The first answer is read, the second is cached.
            for _ in 0..2 {
                let small = revisions.get("small", "gpu-v1-0a").await.unwrap();
                assert_eq!(small.is_some(), of_small, "label {class}, owner {owner}");
                let gpu = revisions.get("small-gpu", "v1-0a").await.unwrap();
                assert_eq!(gpu.is_some(), of_gpu, "label {class}, owner {owner}");
            }
        }
        assert!(revisions("x", json!({})).get("small", "v1-0a").await.unwrap().is_none());
    }
    #[tokio::test]
    async fn a_deleted_revision_is_restored_in_its_own_class_alone() {
        let name = "small-gpu-v1-0a";
        for (class, revision, restored) in [("small", "gpu-v1-0a", 0), ("small-gpu", "v1-0a", 1)] {
            let revisions = revisions(name, stored(name, "small-gpu", "small-gpu"));
            revisions.get(class, revision).await.unwrap();
            let class: CachedNodeClass =
                serde_json::from_value(json!({ "metadata": { "name": class, "uid": "u" } })).unwrap();
            let needed = || Some(([revision.to_owned()].into(), 10));
            assert_eq!(revisions.tidy(&class, needed).await.unwrap(), (0, restored), "{revision}");
        }
    }
}
