//! Deletion of a NodeSet: it deletes its Nodes and stays until the last one is gone, since their drain and
//! the settings of their class depend on it. `--cascade=orphan` leaves the Nodes behind.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use kube_ext::{environment, work_queue::Action};
use kube_node_api::names;
use kube_node_cache::{CachedNodeSet, NodeView};
use kube_node_planner::failed_writes::{self, Write};
use tokio::time::Instant;

use super::{NodeSetController, Result, apply::RETRY};
use crate::{api, batch::Batch};

/// Finalizer with which the garbage collector removes owner references before it lets an owner go.
const FINALIZER_ORPHAN: &str = "orphan";

impl NodeSetController {
    /// Reconciles a set that is being deleted.
    pub(super) async fn leave(&self, set: &CachedNodeSet) -> Result<Action> {
        // With `orphan`, the garbage collector removes the Nodes' owner: none is deleted meanwhile.
        if !set.has_finalizer(names::FINALIZER_NODES) || set.has_finalizer(FINALIZER_ORPHAN) {
            return Ok(Action::AwaitChange);
        }
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let mut applied = self.confirm_creations(set.name()).await;
        // Read before the Nodes: a Node shown in between is counted twice, never zero times.
        let expectations = self.expectations(set.name(), |expectations| expectations.clone());
        let pending = expectations.pending_creations();
        let mut owned = self.context.nodes.by_index(set.name());
        owned.retain(|node| node.owner().is_some_and(|owner| owner.uid == uid));
        if owned.is_empty() {
            if pending > 0 {
                return Ok(Action::RequeueAfter(RETRY));
            }
            api::set_finalizer(&self.api, &set.metadata, names::FINALIZER_NODES, false).await?;
            return Ok(Action::AwaitChange);
        }
        self.failed_writes(set.name(), |failures| {
            // Other failures no longer matter.
            for write in [Write::Create, Write::Adopt, Write::Update] {
                failures.keep(write, |_| false);
            }
            failures.keep(Write::Delete, |name| owned.iter().any(|node| *node.name == *name));
        });
        let now = environment::now();
        let failed: HashSet<&str> = self.failed_writes(set.name(), |failures| {
            let intent = |node: &NodeView| failed_writes::intent(&node.uid);
            let left = |node: &NodeView| failures.retry_in(Write::Delete, &node.name, intent(node), now);
            let waits = owned.iter().filter(|node| left(node).is_some_and(|left| !left.is_zero()));
            waits.map(|node| &*node.name).collect()
        });
        let may_go = |node: &Arc<NodeView>| {
            let is_leaving = node.deleted_at.is_some() || expectations.is_deleted(&node.name);
            let is_protected = node.has_finalizer(names::FINALIZER_MACHINE);
            is_protected && !is_leaving && !failed.contains(&*node.name)
        };
        let mut batch = Batch::new(Instant::now(), owned.clone().into_iter().filter(may_go));
        let mut results = stream::iter(&mut batch)
            .map(|node| async move { (self.delete_one(set.name(), &node).await, node) })
            .buffer_unordered(self.writes_at_once(1));
        while let Some((result, node)) = results.next().await {
            // The Node was seen in an older state, for example before the garbage collector orphaned it.
            let is_conflict = result.is_err_and(|error| error.is_conflict());
            applied.conflict |= is_conflict;
            applied.more |= is_conflict && self.await_change(&node);
        }
        drop(results);
        applied.more |= batch.left().next().is_some();
        let retry_in = self.failed_writes(set.name(), |failures| {
            applied.problems.extend(failures.problems());
            failures.next_retry_in(environment::now())
        });
        self.write_leaving_status(set, &owned, &applied).await?;
        Ok(match applied.retry_in(retry_in) {
            _ if applied.failed => Action::Failed,
            _ if applied.more => Action::RequeueAfter(Duration::ZERO),
            Some(left) => Action::RequeueAfter(left),
            None => Action::AwaitChange,
        })
    }
}
