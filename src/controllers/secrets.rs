//! Protects credentials Secrets by a finalizer while a class needs them. Only their metadata is read here.
//!
//! There is no watch: it would take the right to list every Secret of the namespace. The Secret that each
//! class last named is remembered, so that it can be released when the class names another one or was deleted
//! by force.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use kube_ext::call::{ApiError, call};
use kube_node_api::names;
use kube_node_planner::conditions::ConditionUpdate;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::api;

/// Interval between two checks of a Secret: it may be created, or its deletion requested.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Condition reason of a class whose Secret was deleted.
pub const SECRET_DELETED: &str = "SecretDeleted";

/// The Secret that a class names, as of the last check.
#[derive(Debug)]
struct ClassSecret {
    secret: String,
    condition: ConditionUpdate,
    checked: Instant,
}

/// Credentials Secrets of classes.
#[derive(Debug)]
pub struct Secrets {
    api: Api<Secret>,
    /// By class.
    by_class: Mutex<HashMap<String, ClassSecret>>,
}

impl Secrets {
    /// Secrets in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), by_class: Mutex::default() }
    }

    /// The Secret that a class last named.
    pub fn of(&self, class: &str) -> Option<String> {
        self.by_class.lock().get(class).map(|known| known.secret.clone())
    }

    /// Sets the finalizer of a Secret that this class needs, and returns the class's condition. Reads the
    /// Secret at most once per [`CHECK_INTERVAL`].
    pub async fn protect(&self, class: &str, secret: &str) -> Result<ConditionUpdate, ApiError> {
        if let Some(known) = self.by_class.lock().get(class)
            && known.secret == secret
            && known.checked.elapsed() < CHECK_INTERVAL
        {
            return Ok(known.condition.clone());
        }
        let checked = Instant::now();
        let condition = self.set_finalizer(secret, true).await?;
        let known = ClassSecret { secret: secret.to_owned(), condition: condition.clone(), checked };
        self.by_class.lock().insert(class.to_owned(), known);
        Ok(condition)
    }

    /// Drops the class's need of this Secret, and the finalizer unless another class needs the Secret.
    pub async fn release(&self, class: &str, secret: &str, is_needed: bool) -> Result<(), ApiError> {
        if !is_needed {
            self.set_finalizer(secret, false).await?;
        }
        self.by_class.lock().remove(class);
        Ok(())
    }

    async fn set_finalizer(&self, name: &str, wanted: bool) -> Result<ConditionUpdate, ApiError> {
        let condition =
            |status, reason, message| ConditionUpdate { r#type: "Credentials", status, reason, message };
        let missing = || {
            let namespace = self.api.namespace().unwrap_or_default();
            let message = format!("there is no Secret {name} in namespace {namespace}: create it");
            condition(false, "SecretNotFound", message)
        };
        let found = call(format!("read Secret {name}"), self.api.get_metadata_opt(name)).await?;
        let Some(metadata) = found.map(|found| found.metadata) else { return Ok(missing()) };
        // The API server accepts no new finalizer after the deletion.
        if wanted && metadata.deletion_timestamp.is_some() {
            let message = if metadata.finalizers.iter().flatten().any(|own| own == names::FINALIZER_IN_USE) {
                format!(
                    "Secret {name} was deleted; it serves until this class is gone. Change its content in place to replace credentials"
                )
            } else {
                format!("Secret {name} was deleted and is about to go: create it again then")
            };
            return Ok(condition(false, SECRET_DELETED, message));
        }
        match api::set_finalizer(&self.api, &metadata, names::FINALIZER_IN_USE, wanted).await {
            Err(error) if error.is_not_found() => Ok(missing()),
            Err(error) => Err(error),
            Ok(_) => {
                let message = format!("Secret {name} is kept for as long as this class needs it");
                Ok(condition(true, "Kept", message))
            }
        }
    }
}
