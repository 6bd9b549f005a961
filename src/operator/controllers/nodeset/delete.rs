//! Deletes the victims of a plan, each only in the state that was seen.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube_ext::call::ApiError;
use kube_node_cache::NodeView;
use kube_node_planner::{
    disruption::DisruptionReason,
    expectations::Expectations,
    failed_writes::{self, Write},
    set_planner::SetPlan,
};
use tracing::info;

use super::{
    NodeSetController,
    apply::{Applied, BATCH, WRITES_AT_ONCE},
    observe::Observed,
};
use crate::controllers::api;

impl NodeSetController {
    /// Deletes the victims of a plan, and repeats deletions without a response.
    pub(super) async fn delete(&self, observed: &Observed, plan: &SetPlan<'_>, applied: &mut Applied) {
        applied.more |= plan.delete.len() > BATCH;
        let unanswered = observed.expectations.unanswered().map(|name| (name, None));
        let planned = plan.delete.iter().take(BATCH).map(|deletion| (deletion.name, deletion.cause));
        let nodes: Vec<_> = unanswered
            .chain(planned)
            .filter_map(|(name, cause)| Some((self.context.nodes.get(name)?, cause)))
            .collect();
        let (given_up, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        stream::iter(nodes)
            .for_each_concurrent(WRITES_AT_ONCE, |(node, cause)| {
                let (given_up, refused) = (&given_up, &refused);
                async move {
                    let sent = self.delete_one(&observed.name, &node).await;
                    // A deletion without a response may have taken effect; it is repeated without a cause.
                    let lost = sent.as_ref().is_err_and(|error| !error.is_final() && !error.is_conflict());
                    if cause == Some(DisruptionReason::FailedToStart) && (sent.is_ok() || lost) {
                        given_up.fetch_add(1, Ordering::Relaxed);
                    }
                    if sent.as_ref().is_err_and(ApiError::is_final) {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    if let Some(cause) = cause.filter(|_| sent.is_ok()) {
                        info!(node = &*node.name, cause = cause.reason(), "replaced");
                        self.context.metrics.node_replaced(cause);
                    }
                }
            })
            .await;
        applied.given_up = given_up.into_inner();
        // The next plan passes over a Node whose deletion was refused, and may choose another one.
        applied.more |= refused.into_inner() > 0;
        self.refusals(&observed.name, |refusals| {
            refusals.keep(Write::Delete, |name| {
                self.context.nodes.get(name).is_some_and(|node| node.deleted_at.is_none())
            });
        });
    }

    /// Deletes one Node in the state that was seen. A failure is recorded unless it is a conflict: the next
    /// reconciliation sees the changed Node, and may choose another victim.
    pub(super) async fn delete_one(&self, set: &str, node: &Arc<NodeView>) -> Result<(), ApiError> {
        self.expectations(set, |expectations| expectations.deleting(&node.name, &node.resource_version));
        let result = api::delete::<Node>(&self.context.client, &**node).await;
        // The watch may have shown the deletion already.
        let now = self.context.nodes.get(&node.name);
        let changed = now.as_ref().is_none_or(|now| now.resource_version != node.resource_version);
        self.expectations(set, |expectations: &mut Expectations| match &result {
            Ok(()) if now.is_none_or(|now| now.deleted_at.is_some()) => expectations.gone(&node.name),
            Ok(()) => expectations.deleted(&node.name),
            Err(error) if error.is_final() || (error.is_conflict() && changed) => {
                expectations.kept(&node.name);
            }
            // The deletion may have taken effect; the watch will show it.
            Err(_) => {}
        });
        // The Node was gone already.
        if result.as_ref().is_err_and(ApiError::is_not_found) {
            return Ok(());
        }
        self.record(
            set,
            Write::Delete,
            &node.name,
            failed_writes::intent(&node.uid),
            result.as_ref().copied(),
        );
        self.context.metrics.node_deleted(result.as_ref().copied());
        result
    }
}
