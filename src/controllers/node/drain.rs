//! Evicts the pods of a Node that leaves, through the Eviction API, so that disruption budgets hold. Pods of DaemonSets
//! and mirror pods stay; what a budget holds back is named on the Node.

use std::sync::Arc;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, EvictParams, PostParams, Preconditions},
};

use super::{Error, NodeController};
use crate::{
    api::names,
    cache::{NodeView, PodView},
    controllers::{ApiError, api::call},
};

/// Evictions of one Node under way at once.
const EVICTIONS_AT_ONCE: usize = 8;

impl NodeController {
    pub(super) async fn evict(&self, node: &NodeView) -> Result<(), Error> {
        let pods: Vec<Arc<PodView>> = self
            .context
            .pods
            .group(&node.name)
            .into_iter()
            .filter(|pod| pod.holds_up_drain() && pod.deleted_at.is_none())
            .collect();
        let results: Vec<(Arc<PodView>, Result<(), ApiError>)> = stream::iter(pods)
            .map(|pod| async move {
                let result = self.evict_one(&pod).await;
                (pod, result)
            })
            .buffer_unordered(EVICTIONS_AT_ONCE)
            .collect()
            .await;
        let mut blocked: Vec<String> = Vec::new();
        let mut failed = None;
        for (pod, result) in results {
            match result {
                Ok(()) => {}
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) if error.is_too_many_requests() => {
                    blocked.push(format!("pod {}/{}: {}", pod.namespace, pod.name, error.server_message()));
                }
                Err(error) => failed = Some(error),
            }
        }
        blocked.sort();
        let reason = "PodDisruptionBudget";
        if let Some(first) = blocked.first() {
            let more =
                if blocked.len() > 1 { format!(" ({} more)", blocked.len() - 1) } else { String::new() };
            let message = format!("{first}{more}");
            self.warn(node, "DrainBlocked", message.clone()).await;
            self.say(node, names::CONDITION_DRAINED, false, reason, &message).await?;
        } else if node.condition(names::CONDITION_DRAINED).is_some_and(|drained| &*drained.reason == reason) {
            self.say(node, names::CONDITION_DRAINED, false, "Draining", "pods are leaving").await?;
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    async fn evict_one(&self, pod: &PodView) -> Result<(), ApiError> {
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), &pod.namespace);
        let params = EvictParams {
            delete_options: Some(DeleteParams::default().preconditions(Preconditions {
                // Another pod of this name, as a StatefulSet makes it, is not this one.
                uid: Some(pod.uid.to_string()),
                resource_version: None,
            })),
            post_options: PostParams::default(),
        };
        call(|| format!("evict pod {}/{}", pod.namespace, pod.name), pods.evict(&pod.name, &params))
            .await
            .map(drop)
    }
}
