//! Executes the steps of a plan in order. A failed step ends the reconciliation, unless it is an eviction.

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube_ext::{call::send, environment, error::chain, transport::Body};
use kube_node_api::{names, taints::is_initialized};
use kube_node_cache::NodeView;
use kube_node_planner::{
    drain::{Blockage, LAST_GRACE},
    node::{MachineState, NodePlan, NodeStep},
};
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::{NodeController, ReconcileError, Result, observe::Observed, slots::Slot};
use crate::{api, provider::MachineRequest};

/// Result of applying a plan.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Pods whose eviction was refused.
    pub(super) blocked: Vec<Blockage>,
    /// Slots that the rest of the plan needs.
    pub(super) slots: Vec<Slot>,
    /// True if pods are left to evict or delete at once.
    pub(super) more: bool,
}

impl NodeController {
    /// Executes a plan, as far as it goes with this slot.
    pub(super) async fn apply(
        &self,
        observed: &Observed,
        plan: &NodePlan,
        slot: Option<Slot>,
    ) -> Result<Applied> {
        let (mut applied, mut failed, mut has_written) = (Applied::default(), None, false);
        let calls = Slot::of(&*observed.provider);
        let may_call = calls.is_none() || slot == calls;
        if let Some((_, settings)) = &observed.request
            && observed.machine == MachineState::Exists
        {
            // Settings that do not reach the machine delay neither its taints nor its drain.
            if may_call {
                let updated = observed.provider.update(&observed.id, settings).await;
                failed = updated.err().map(ReconcileError::from);
            } else if slot.is_none() && !observed.provider.is_up_to_date(&observed.id, settings) {
                applied.slots.extend(calls);
            }
        }
        for step in &plan.steps {
            let needs = match step {
                NodeStep::CreateMachine | NodeStep::DeleteMachine => calls,
                NodeStep::Evict(_) | NodeStep::Force(_) | NodeStep::DeletePods(_) => Some(Slot::Drain),
                _ => None,
            };
            if let Some(needed) = needs.filter(|needed| slot != Some(*needed)) {
                if let NodeStep::Evict(pods) = step {
                    applied.blocked = self.refused(observed, pods);
                }
                // After a write, the event of the Node brings the next reconciliation, which asks.
                if !has_written && !applied.slots.contains(&needed) {
                    applied.slots.push(needed);
                }
                continue;
            }
            has_written = true;
            match step {
                NodeStep::AddFinalizer => {
                    if let Some(adoption) = &observed.adoption {
                        self.adopt(observed, adoption).await?;
                    }
                }
                NodeStep::CreateMachine => self.create_machine(observed).await?,
                NodeStep::SetTaints(taints) => self.set_taints(&observed.node, taints).await?,
                NodeStep::Cordon { at } => self.cordon(&observed.node, *at).await?,
                // A failed eviction does not delay the deletion of pods whose time is over.
                NodeStep::Evict(pods) => match self.evict(observed, pods).await {
                    Ok(more) => {
                        applied.more |= more;
                        applied.blocked = self.refused(observed, pods);
                    }
                    Err(error) => failed = Some(error),
                },
                NodeStep::Force(pods) => {
                    let text = "drain.timeout of its set is over: the pods that are left are deleted";
                    self.warn(&observed.node, "DrainTimedOut", text.to_owned());
                    let grace = u32::try_from(LAST_GRACE.as_secs()).unwrap_or(u32::MAX);
                    applied.more |= self.delete_pods(observed, pods, Some(grace)).await?;
                }
                NodeStep::SetOutOfService(taints) => {
                    info!("its machine is gone and pods are left: out of service");
                    let change = json!({ "spec": { "taints": taints } });
                    self.patch(&observed.node, change, "say that it is out of service").await?;
                }
                NodeStep::DeletePods(pods) => applied.more |= self.delete_pods(observed, pods, None).await?,
                NodeStep::DeleteMachine => {
                    info!("drained, deleting the machine");
                    observed.provider.delete(&observed.id).await?;
                }
                NodeStep::RemoveFinalizer => {
                    let metadata = api::metadata(&observed.node);
                    api::set_finalizer(&self.api, &metadata, names::FINALIZER_MACHINE, false).await?;
                }
            }
        }
        failed.map_or(Ok(applied), Err)
    }

    async fn create_machine(&self, observed: &Observed) -> Result<()> {
        let Some((machine, settings)) = &observed.request else { return Ok(()) };
        let request = MachineRequest {
            id: observed.id.clone(),
            machine: (**machine).clone(),
            settings: settings.clone(),
            credentials: observed.credentials.clone(),
        };
        let condition = observed.node.condition(names::CONDITION_MACHINE);
        let troubled = condition.is_some_and(|condition| &*condition.status == "False");
        if !troubled && observed.node.kubelet_version.is_some() && !observed.provider.is_volatile() {
            let text = "its machine is gone, without anybody asking us: another one is made";
            self.try_report_obstacle(&observed.node, "MachineLost", text).await;
        }
        if let Err(error) = observed.provider.create(&request).await {
            self.try_report_obstacle(&observed.node, error.reason(), &chain(&error)).await;
            return Err(error.into());
        }
        // The condition becomes True once the machine works: with a machine that ends at once it would flap.
        debug!("machine created");
        self.back_offs.lock().made(&observed.id.uid, environment::now());
        Ok(())
    }

    /// Reports an obstacle of the machine. A condition that cannot be written is logged and no more.
    async fn try_report_obstacle(&self, node: &NodeView, reason: &str, message: &str) {
        if let Err(error) = self.report_obstacle(node, reason, message).await {
            warn!(error = chain(&error), "the condition of its machine cannot be written");
        }
    }

    /// Replaces the taints if they are still the ones that were seen. A precondition on the resource version
    /// would be too strict: the controller-manager writes annotations onto young Nodes all the time.
    async fn set_taints(&self, node: &NodeView, taints: &[Taint]) -> Result<()> {
        let mut patch = vec![
            json!({ "op": "test", "path": "/metadata/uid", "value": &*node.uid }),
            json!({ "op": "test", "path": "/spec/taints", "value": node.taints }),
            json!({ "op": "replace", "path": "/spec/taints", "value": taints }),
        ];
        // The write that leaves a Node without its startup taints records that it is initialized.
        if node.startup_record().is_some_and(|record| is_initialized(Some(record), taints)) {
            let record = names::ANNOTATION_STARTUP_TAINTS.replace('/', "~1");
            patch.push(json!({ "op": "remove", "path": format!("/metadata/annotations/{record}") }));
        }
        // The first taint patch also clears `managedFields`: no field manager needs them, and they make every
        // later write more expensive. The API server accepts this in a write of the Node, but not in one of
        // its status.
        if node.has_unused_managed_fields {
            patch.push(json!({ "op": "add", "path": "/metadata/managedFields", "value": [{}] }));
        }
        let body = Body::JsonPatch(serde_json::to_vec(&patch).unwrap_or_default());
        let url = format!("/api/v1/nodes/{}?fieldManager={}", node.name, names::FIELD_MANAGER);
        let action = format!("change the taints of Node {}", node.name);
        match send(&self.context.client, action, Method::PATCH, &url, body).await {
            // The list changed meanwhile; the watch is about to show it.
            Err(error) if error.is_failed_test() => {}
            other => {
                let version = self.context.nodes.written(&other?);
                self.writes.wrote(&node.name, version);
            }
        }
        Ok(())
    }

    /// Starts the drain, unless its permit is being decided on anew: then the next reconciliation tries.
    async fn cordon(&self, node: &NodeView, at: Timestamp) -> Result<()> {
        let (set, permits) = (self.granting_set(node), &self.context.drain_permits);
        let permit = set.as_ref().map(|set| (set.name(), permits.start(set.name(), &node.uid)));
        if matches!(permit, Some((_, None))) {
            return Ok(());
        }
        let mut change = json!({ "spec": { "unschedulable": true } });
        // In the same write: the set's timeout counts from here, whichever process continues. An earlier
        // value stays if somebody uncordoned the Node meanwhile.
        if !node.annotations.contains_key(names::ANNOTATION_DRAIN_STARTED) {
            let annotations = json!({ names::ANNOTATION_DRAIN_STARTED: format!("{at:.3}") });
            change["metadata"] = json!({ "annotations": annotations });
        }
        let result = api::patch(&self.api, &api::metadata(node), change, "close it to the scheduler").await;
        if let (Some((set, Some(before))), Err(error)) = (permit, &result)
            && error.is_refusal()
        {
            permits.not_started(set, &node.uid, before, error.is_final());
        }
        Ok(result?)
    }

    /// Patches a Node in the state that was seen.
    pub(super) async fn patch(&self, node: &NodeView, change: Value, what: &str) -> Result<()> {
        Ok(api::patch(&self.api, &api::metadata(node), change, what).await?)
    }
}
