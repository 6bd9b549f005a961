//! Drains a leaving Node: observes its pods and executes planned evictions and deletions. Evictions use the
//! Eviction API, so that disruption budgets hold.

use std::{collections::BTreeMap, sync::Arc, vec::IntoIter};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PartialObjectMeta, PostParams, Preconditions},
};
use kube_ext::{
    call::{ApiError, call, read},
    environment,
};
use kube_node_api::names;
use kube_node_cache::{CachedNodeSet, NodeView, PodOwner, PodView, Protobuf, ProtobufPods};
use kube_node_planner::{
    drain::{self, Blockage, DrainProgress, Fate, Obstacle, PodId},
    node::{Attached, MachineState, Pods},
    taints,
};

use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::Instant;

use super::{NodeController, Result, observe::Observed};
use crate::batch::Batch;

/// Concurrent evictions or deletions of one Node.
const EVICTIONS_AT_ONCE: usize = 8;

/// Evictions of a Node so far.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// Pods whose last eviction was refused.
    refused: BTreeMap<PodId, Blockage>,
    /// First pod of the next batch.
    next: Option<PodId>,
}

impl NodeController {
    /// Progress of the drain of a leaving Node.
    pub(super) async fn pods(&self, observed: &Observed) -> Result<Pods> {
        let node = &*observed.node;
        let has_machine = match observed.machine {
            MachineState::Exists if node.unschedulable => true,
            MachineState::Exists | MachineState::Dead | MachineState::Leaving => return Ok(Pods::Unknown),
            MachineState::Absent => false,
        };
        let known: Vec<drain::Pod> =
            self.context.pods.by_index(&node.name).iter().map(|pod| drained(pod)).collect();
        let mut drain = self.plan(node, &known);
        let is_to_be_confirmed = if has_machine {
            drain.is_done()
        } else {
            // A list from before the Node was closed to pods would say nothing of those that came later.
            drain.bound.is_empty()
                && !observed.node_state().takes_pods()
                && !self.empty.lock().contains(&node.uid)
        };
        if is_to_be_confirmed {
            // The cache may lag behind the cordon, or behind pods of a machine that was lost: a list confirms that no pod
            // is left.
            drain = self.plan(node, &self.listed(node).await?);
            if drain.bound.is_empty() {
                self.empty.lock().insert(Arc::clone(&node.uid));
            }
        }
        let asks_for_volumes = if has_machine {
            drain.awaits_volumes
        } else {
            drain.bound.is_empty() && taints::out_of_service_since(&node.taints).is_some()
        };
        let attached = if asks_for_volumes {
            self.attachments.of(node).await?
        } else {
            self.attachments.forget(&node.uid);
            Attached::default()
        };
        Ok(Pods::Known { drain, attached })
    }

    fn plan(&self, node: &NodeView, pods: &[drain::Pod]) -> drain::DrainPlan {
        let set = self.set_of(node);
        let policy = set.and_then(|set| set.object.as_ref().ok()?.spec.drain.clone()).unwrap_or_default();
        let progress = DrainProgress {
            began: self.drain_began(node),
            unreachable: node.condition("Ready").is_some_and(|ready| &*ready.status == "Unknown"),
        };
        drain::plan(pods, &policy, progress, environment::now())
    }

    async fn listed(&self, node: &NodeView) -> Result<Vec<drain::Pod>, ApiError> {
        let url = format!("{}?fieldSelector=spec.nodeName%3D{}", PodView::PATH, node.name);
        let action = format!("list the pods of {}", node.name);
        let ProtobufPods { items } = read(&self.context.client, action, &url).await?;
        Ok(items.into_iter().map(|pod| drained(&PodView::from(pod))).collect())
    }

    /// Start of the drain by this process's clock.
    pub(super) fn drain_began(&self, node: &NodeView) -> Timestamp {
        self.context.counted(node, names::ANNOTATION_DRAIN_STARTED, drain_began(node))
    }

    /// The set that owns the Node, if it still exists.
    pub(super) fn set_of(&self, node: &NodeView) -> Option<Arc<CachedNodeSet>> {
        let owner = node.owner()?;
        let set = self.context.sets.get(&owner.name)?;
        (set.metadata.uid.as_deref() == Some(owner.uid.as_str())).then_some(set)
    }

    /// Returns true if the drain of a Node may start.
    pub(super) fn has_drain_permit(&self, node: &NodeView) -> bool {
        let set = self.granting_set(node);
        set.is_none_or(|set| self.context.drain_permits.is_granted(set.name(), &node.uid))
    }

    /// The set whose permit the drain of a Node needs. Without a readable set that stays, no permit is needed.
    pub(super) fn granting_set(&self, node: &NodeView) -> Option<Arc<CachedNodeSet>> {
        self.set_of(node).filter(|set| !set.is_leaving() && set.object.is_ok())
    }

    /// Pods whose last eviction was refused, of those that are to be evicted.
    pub(super) fn refused(&self, observed: &Observed, pods: &[PodId]) -> Vec<Blockage> {
        let drains = self.drains.lock();
        let refused = drains.get(&observed.node.uid).map(|drain| &drain.refused);
        refused
            .into_iter()
            .flat_map(|refused| pods.iter().filter_map(|pod| refused.get(pod)))
            .cloned()
            .collect()
    }

    /// Evicts pods for a while. Returns true if some are left.
    pub(super) async fn evict(&self, observed: &Observed, pods: &[PodId]) -> Result<bool> {
        let mut batch = self.batch(observed, pods);
        let mut results = stream::iter(&mut batch)
            .map(|pod| async move {
                let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &pod.namespace);
                // kube's `evict` names the field `delete_options`, which the API server does not know.
                let eviction = json!({
                    "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": &*pod.name },
                    "deleteOptions": this(&pod),
                });
                let params = PostParams::default();
                let write =
                    api.create_subresource::<_, IgnoredAny>("eviction", &pod.name, &params, &eviction);
                let result = call(format!("evict pod {pod}"), write).await;
                (pod, result)
            })
            .buffer_unordered(EVICTIONS_AT_ONCE);
        let (mut refused, mut failed) = (BTreeMap::new(), None);
        while let Some((pod, result)) = results.next().await {
            let Err(error) = result else { continue };
            if let Some(message) = error.disruption_budget() {
                let obstacle = Obstacle::PodDisruptionBudget;
                refused.insert(pod.clone(), Blockage { obstacle, pod, message });
            } else if is_past(&error) || error.is_in_leaving_namespace() {
                // The pod leaves by itself.
            } else if error.is_final() {
                let (obstacle, message) = (Obstacle::EvictionRefused, error.server_message());
                refused.insert(pod.clone(), Blockage { obstacle, pod, message });
            } else {
                failed = Some(error);
            }
        }
        drop(results);
        let has_refused = !refused.is_empty();
        let more = self.note_batch(observed, batch, refused);
        // A refusal is reported rather than a failure that the next reconciliation may heal.
        match failed {
            Some(error) if !has_refused => Err(error.into()),
            _ => Ok(more),
        }
    }

    /// Deletes pods for a while, regardless of disruption budgets. `grace` is the grace period in seconds; None: the pod's
    /// own. Returns true if some are left.
    pub(super) async fn delete_pods(
        &self,
        observed: &Observed,
        pods: &[PodId],
        grace: Option<u32>,
    ) -> Result<bool> {
        let mut batch = self.batch(observed, pods);
        let mut results = stream::iter(&mut batch)
            .map(|pod| async move {
                let api: Api<PartialObjectMeta<Pod>> =
                    Api::namespaced(self.context.client.clone(), &pod.namespace);
                let params = DeleteParams { grace_period_seconds: grace, ..this(&pod) };
                let result = call(format!("delete pod {pod}"), api.delete(&pod.name, &params)).await;
                (pod, result)
            })
            .buffer_unordered(EVICTIONS_AT_ONCE);
        // Whichever is answered first, the error of the first pod is reported: each other message would be a write.
        let mut failed: Option<(PodId, ApiError)> = None;
        while let Some((pod, result)) = results.next().await {
            if let Err(error) = result
                && !is_past(&error)
                && failed.as_ref().is_none_or(|(first, _)| pod < *first)
            {
                failed = Some((pod, error));
            }
        }
        drop(results);
        let more = self.note_batch(observed, batch, BTreeMap::new());
        failed.map_or(Ok(more), |(_, error)| Err(error.into()))
    }

    /// The pods, beginning where the reconciliation before ended: those that are answered late, and refused, hold up no
    /// others.
    fn batch(&self, observed: &Observed, pods: &[PodId]) -> Batch<IntoIter<PodId>> {
        let drains = self.drains.lock();
        let next = drains.get(&observed.node.uid).and_then(|drain| drain.next.as_ref());
        let (mut pods, first) =
            (pods.to_vec(), next.map_or(0, |next| pods.partition_point(|pod| pod < next)));
        pods.rotate_left(first);
        Batch::new(Instant::now(), pods)
    }

    /// Notes the refusals of a batch; those of the pods that are left stay. Returns true if pods are left.
    fn note_batch(
        &self,
        observed: &Observed,
        batch: Batch<IntoIter<PodId>>,
        refused: BTreeMap<PodId, Blockage>,
    ) -> bool {
        let left: Vec<PodId> = batch.left().collect();
        let more = !left.is_empty();
        let mut drains = self.drains.lock();
        let drain = drains.entry(Arc::clone(&observed.node.uid)).or_default();
        drain.refused.retain(|pod, _| left.contains(pod));
        drain.refused.extend(refused);
        drain.next = left.into_iter().next();
        more
    }
}

/// Returns true if the pod is gone, or another one has its name.
fn is_past(error: &ApiError) -> bool {
    error.is_not_found() || error.is_conflict()
}

/// Limits a deletion to this pod: a `StatefulSet` may have created another one of its name.
fn this(pod: &PodId) -> DeleteParams {
    DeleteParams::default()
        .preconditions(Preconditions { uid: Some(pod.uid.to_string()), resource_version: None })
}

/// A pod as the drain planner needs it.
fn drained(pod: &PodView) -> drain::Pod {
    drain::Pod {
        id: PodId {
            namespace: Arc::clone(&pod.namespace),
            name: Arc::clone(&pod.name),
            uid: Arc::clone(&pod.uid),
        },
        fate: match pod.controller {
            _ if pod.stays() => Fate::Stays,
            PodOwner::Nobody => Fate::Ends,
            _ => Fate::Moves,
        },
        finished: pod.is_finished(),
        opted_out: pod.opted_out,
        empty_dir: pod.has_empty_dir,
        priority: pod.priority,
        gone_by: pod.deleted_at,
    }
}

/// Start of the drain: the time noted with the cordon, but not before the deletion. The note is older if
/// somebody had cordoned the Node before, or copied it from a leaving one.
fn drain_began(node: &NodeView) -> Timestamp {
    let noted = node.annotations.get(names::ANNOTATION_DRAIN_STARTED).and_then(|text| text.parse().ok());
    noted.max(node.deleted_at).unwrap_or(Timestamp::MAX)
}
