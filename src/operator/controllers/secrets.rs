//! Keeps credentials Secrets by a finalizer while a class needs them. Only their metadata is read here.
//!
//! There is no watch: it would take the right to list every Secret of the namespace. The Secret that each
//! class last named is remembered, so that it can be released when the class names another one or was deleted
//! by force.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
};
use kube_node_api::names;
use kube_node_planner::conditions::ConditionUpdate;
use serde_json::json;

use super::{ApiError, api::call};

/// Interval between two checks of a Secret: it may be created, or its deletion requested.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Type of the class's condition about its credentials.
const CONDITION: &str = "Credentials";

/// State of a needed Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// Not created yet.
    Missing,
    /// Protected by the finalizer.
    Kept,
    /// Deletion requested; the Secret serves until it is no longer needed.
    Deleting,
    /// Deletion requested before the finalizer was set: only a third party's finalizer holds the Secret.
    Lost,
}

impl Stand {
    /// Condition update for a class that names this Secret.
    #[must_use]
    pub fn says(self, secret: &str, namespace: &str) -> ConditionUpdate {
        let (status, reason, message) = match self {
            Self::Kept => {
                (true, "Kept", format!("Secret {secret} is kept for as long as this class needs it"))
            }
            Self::Missing => (
                false,
                "SecretNotFound",
                format!("there is no Secret {secret} in namespace {namespace}: create it"),
            ),
            Self::Deleting => (
                false,
                "SecretDeleted",
                format!(
                    "Secret {secret} was deleted; it serves until this class is gone. Change its content in place to replace credentials"
                ),
            ),
            Self::Lost => (
                false,
                "SecretDeleted",
                format!("Secret {secret} was deleted and is about to go: create it again then"),
            ),
        };
        ConditionUpdate { r#type: CONDITION, status, reason, message }
    }
}

/// The Secret that a class names, as of the last check.
#[derive(Debug)]
struct Named {
    secret: String,
    stand: Stand,
    reconciled: Instant,
}

/// Credentials Secrets of classes.
#[derive(Debug)]
pub struct Secrets {
    api: Api<Secret>,
    namespace: String,
    /// By class.
    named: Mutex<HashMap<String, Named>>,
}

impl Secrets {
    /// Secrets in `namespace`.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            named: Mutex::default(),
        }
    }

    /// Namespace of the Secrets.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The Secret that a class last named.
    #[must_use]
    pub fn of(&self, class: &str) -> Option<String> {
        self.lock().get(class).map(|named| named.secret.clone())
    }

    /// Sets the finalizer of a Secret that this class needs. Reads the Secret at most once per [`CHECK_INTERVAL`].
    pub async fn keep(&self, class: &str, secret: &str) -> Result<Stand, ApiError> {
        let known = self.lock().get(class).filter(|named| named.secret == secret).map(|named| {
            let is_fresh = named.reconciled.elapsed() < CHECK_INTERVAL;
            is_fresh.then_some(named.stand)
        });
        if let Some(Some(stand)) = known {
            return Ok(stand);
        }
        let reconciled = Instant::now();
        let stand = self.set_finalizer(secret, true).await?;
        self.lock().insert(class.to_owned(), Named { secret: secret.to_owned(), stand, reconciled });
        Ok(stand)
    }

    /// Drops the class's need of this Secret, and the finalizer unless another class needs the Secret.
    pub async fn give_up(&self, class: &str, secret: &str, is_needed: bool) -> Result<(), ApiError> {
        if !is_needed {
            self.set_finalizer(secret, false).await?;
        }
        self.lock().remove(class);
        Ok(())
    }

    async fn set_finalizer(&self, name: &str, wanted: bool) -> Result<Stand, ApiError> {
        let seen = call(|| format!("read Secret {name}"), self.api.get_metadata_opt(name)).await?;
        let Some(PartialObjectMeta { metadata, .. }) = seen else { return Ok(Stand::Missing) };
        let mut finalizers = metadata.finalizers.unwrap_or_default();
        let has = finalizers.iter().any(|finalizer| finalizer == names::FINALIZER_IN_USE);
        let is_leaving = metadata.deletion_timestamp.is_some();
        match (wanted, has) {
            (true, true) if is_leaving => return Ok(Stand::Deleting),
            // The API server accepts no new finalizer after the deletion.
            (true, false) if is_leaving => return Ok(Stand::Lost),
            (true, false) => finalizers.push(names::FINALIZER_IN_USE.to_owned()),
            (false, true) => finalizers.retain(|finalizer| finalizer != names::FINALIZER_IN_USE),
            (true, true) | (false, false) => return Ok(Stand::Kept),
        }
        let change = json!({ "metadata": {
            "uid": metadata.uid, "resourceVersion": metadata.resource_version, "finalizers": finalizers,
        } });
        let params =
            PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let action = || format!("change the finalizer of Secret {name}");
        match call(action, self.api.patch_metadata(name, &params, &Patch::Merge(change))).await {
            Err(error) if error.is_not_found() => Ok(Stand::Missing),
            other => other.map(|_| Stand::Kept),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Named>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
