//! Keeps credentials Secrets by a finalizer while a class needs them. Only their metadata is read here.
//!
//! There is no watch: it would take the right to list every Secret of the namespace. The Secret that each
//! class last named is remembered, so that it can be released when the class names another one or was deleted
//! by force.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::Patch, core::PartialObjectMeta};
use kube_ext::call::{ApiError, call};
use kube_node_api::names;
use kube_node_planner::conditions::ConditionUpdate;
use parking_lot::Mutex;
use serde_json::json;

use super::api::{patch_params, with_finalizer};

/// Interval between two checks of a Secret: it may be created, or its deletion requested.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Type of the class's condition about its credentials.
const CONDITION: &str = "Credentials";

/// State of a needed Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretState {
    /// Not created yet.
    Missing,
    /// Protected by the finalizer.
    Kept,
    /// Deletion requested; the Secret serves until it is no longer needed.
    Deleting,
    /// Deletion requested before the finalizer was set: only a third party's finalizer holds the Secret.
    Lost,
}

impl SecretState {
    /// Condition update for a class that names this Secret.
    pub fn condition(self, secret: &str, namespace: &str) -> ConditionUpdate {
        let (status, reason) = match self {
            Self::Kept => (true, "Kept"),
            Self::Missing => (false, "SecretNotFound"),
            Self::Deleting | Self::Lost => (false, "SecretDeleted"),
        };
        let message = match self {
            Self::Kept => format!("Secret {secret} is kept for as long as this class needs it"),
            Self::Missing => format!("there is no Secret {secret} in namespace {namespace}: create it"),
            Self::Deleting => format!(
                "Secret {secret} was deleted; it serves until this class is gone. Change its content in place to replace credentials"
            ),
            Self::Lost => format!("Secret {secret} was deleted and is about to go: create it again then"),
        };
        ConditionUpdate { r#type: CONDITION, status, reason, message }
    }
}

/// The Secret that a class names, as of the last check.
#[derive(Debug)]
struct ClassSecret {
    secret: String,
    state: SecretState,
    checked: Instant,
}

/// Credentials Secrets of classes.
#[derive(Debug)]
pub struct Secrets {
    api: Api<Secret>,
    namespace: String,
    /// By class.
    by_class: Mutex<HashMap<String, ClassSecret>>,
}

impl Secrets {
    /// Secrets in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            by_class: Mutex::default(),
        }
    }

    /// Namespace of the Secrets.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The Secret that a class last named.
    pub fn of(&self, class: &str) -> Option<String> {
        self.by_class.lock().get(class).map(|known| known.secret.clone())
    }

    /// Sets the finalizer of a Secret that this class needs. Reads the Secret at most once per [`CHECK_INTERVAL`].
    pub async fn keep(&self, class: &str, secret: &str) -> Result<SecretState, ApiError> {
        if let Some(known) = self.by_class.lock().get(class)
            && known.secret == secret
            && known.checked.elapsed() < CHECK_INTERVAL
        {
            return Ok(known.state);
        }
        let checked = Instant::now();
        let state = self.set_finalizer(secret, true).await?;
        self.by_class
            .lock()
            .insert(class.to_owned(), ClassSecret { secret: secret.to_owned(), state, checked });
        Ok(state)
    }

    /// Drops the class's need of this Secret, and the finalizer unless another class needs the Secret.
    pub async fn give_up(&self, class: &str, secret: &str, is_needed: bool) -> Result<(), ApiError> {
        if !is_needed {
            self.set_finalizer(secret, false).await?;
        }
        self.by_class.lock().remove(class);
        Ok(())
    }

    async fn set_finalizer(&self, name: &str, wanted: bool) -> Result<SecretState, ApiError> {
        let found = call(format!("read Secret {name}"), self.api.get_metadata_opt(name)).await?;
        let Some(PartialObjectMeta { metadata, .. }) = found else { return Ok(SecretState::Missing) };
        let finalizers = metadata.finalizers.unwrap_or_default();
        let changed = with_finalizer(&finalizers, names::FINALIZER_IN_USE, wanted);
        let finalizers = match changed {
            // The API server accepts no new finalizer after the deletion.
            Some(_) if wanted && metadata.deletion_timestamp.is_some() => return Ok(SecretState::Lost),
            Some(changed) => changed,
            None if wanted && metadata.deletion_timestamp.is_some() => return Ok(SecretState::Deleting),
            None => return Ok(SecretState::Kept),
        };
        let change = json!({ "metadata": {
            "uid": metadata.uid, "resourceVersion": metadata.resource_version, "finalizers": finalizers,
        } });
        let (action, params) = (format!("change the finalizer of Secret {name}"), patch_params());
        match call(action, self.api.patch_metadata(name, &params, &Patch::Merge(change))).await {
            Err(error) if error.is_not_found() => Ok(SecretState::Missing),
            other => other.map(|_| SecretState::Kept),
        }
    }
}
