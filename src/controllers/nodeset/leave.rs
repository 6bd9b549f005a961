//! A NodeSet that leaves takes its Nodes along, and goes only after the last of them: their drain and their class's
//! settings are needed until then. `--cascade=orphan` leaves the Nodes behind.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::json;

use super::{
    Error, NodeSetController,
    apply::{RETRY, seen_meta},
};
use crate::{
    api::{NodeSet, names},
    cache::{NodeView, Own},
    controllers::api::{self, call},
    runtime::work_queue::Action,
};

/// Finalizer by which the garbage collector takes owner references off before it lets an owner go.
const FINALIZER_ORPHAN: &str = "orphan";
/// Deletions under way at once.
const DELETIONS_AT_ONCE: usize = 32;

impl NodeSetController {
    /// One look at a set whose deletion was asked for.
    pub(super) async fn leave(&self, set: &Own<NodeSet>) -> Result<Action, Error> {
        if !set.has_finalizer(names::FINALIZER_NODES) {
            return Ok(Action::AwaitChange);
        }
        // Nodes are not deleted while the garbage collector takes their owner away: it was asked to keep them.
        if set.has_finalizer(FINALIZER_ORPHAN) {
            return Ok(Action::AwaitChange);
        }
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        self.forget_what_never_came(set.name()).await?;
        // Before the Nodes are looked at: what is shown in between is then known twice, and never not at all.
        let pending = self.expectations(set.name(), |expectations| expectations.pending_creations());
        let owned: Vec<Arc<NodeView>> = self
            .context
            .nodes
            .group(set.name())
            .into_iter()
            .filter(|node| node.owner().is_some_and(|owner| owner.uid == uid))
            .collect();
        if owned.is_empty() {
            if pending > 0 {
                return Ok(Action::RequeueAfter(RETRY));
            }
            self.remove_finalizer(set).await?;
            return Ok(Action::AwaitChange);
        }
        let staying: Vec<_> = owned.iter().filter(|node| node.deleted_at.is_none()).cloned().collect();
        let conflicts: Vec<bool> = stream::iter(staying)
            .map(|node| async move {
                match self.delete_one(set.name(), &node).await {
                    // Seen in a state that is past, such as that before the garbage collector made it an orphan.
                    Err(error) if error.is_conflict() => Ok(true),
                    other => other.map(|()| false),
                }
            })
            .buffer_unordered(DELETIONS_AT_ONCE)
            .try_collect()
            .await?;
        let views: Vec<&NodeView> = owned.iter().map(AsRef::as_ref).collect();
        self.leaving_status(set, &views).await?;
        Ok(if conflicts.contains(&true) {
            Action::RequeueAfter(Duration::from_millis(500))
        } else {
            Action::AwaitChange
        })
    }

    /// Creations whose outcome nobody knows are looked up, where nothing will ask for them again.
    pub(super) async fn forget_what_never_came(&self, set: &str) -> Result<(), Error> {
        let unconfirmed: Vec<String> =
            self.expectations(set, |expectations| expectations.unconfirmed().map(str::to_owned).collect());
        for name in unconfirmed {
            let nodes: Api<Node> = Api::all(self.context.client.clone());
            let found = call(|| format!("read Node {name}"), nodes.get_metadata_opt(&name)).await?;
            self.expectations(set, |expectations| match found {
                Some(_) => expectations.created(&name),
                None => expectations.refused(&name),
            });
        }
        Ok(())
    }

    async fn remove_finalizer(&self, set: &Own<NodeSet>) -> Result<(), Error> {
        let mut finalizers = set.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != names::FINALIZER_NODES);
        let change = json!({ "metadata": { "finalizers": finalizers } });
        let seen = seen_meta(&set.metadata);
        match api::patch::<NodeSet>(&self.context.client, seen, change, "drop the finalizer").await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map_err(Error::from),
        }
    }
}
