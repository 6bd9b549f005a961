//! Takes the steps that were decided on, in their order; the first that fails ends the look.

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tracing::{debug, info};

use super::{Error, NodeController, observe::Observed};
use crate::{
    api::names,
    cache::NodeView,
    controllers::{
        ApiError,
        api::{self, Seen, call},
        chain, reference_to_node,
    },
    core::node::{Machine, Plan, Step},
    providers::Order,
    wire::{self, AnyObject, Body, WireError},
};

impl NodeController {
    pub(super) async fn apply(&self, observed: &Observed, plan: &Plan) -> Result<(), Error> {
        if let Some((_, settings)) = &observed.order
            && observed.machine == Machine::Exists
        {
            observed.provider.update(&observed.id, settings).await?;
        }
        for step in &plan.steps {
            match step {
                Step::AddFinalizer => {
                    if let Some(adoption) = &observed.adoption {
                        self.adopt(observed, adoption).await?;
                    }
                }
                Step::CreateMachine => self.create_machine(observed).await?,
                Step::SetTaints(taints) => self.set_taints(&observed.node, taints).await?,
                Step::Cordon => self.cordon(&observed.node).await?,
                Step::Evict => self.evict(&observed.node).await?,
                Step::DeleteMachine => {
                    info!("drained, deleting the machine");
                    observed.provider.delete(&observed.id).await?;
                }
                Step::RemoveFinalizer => self.remove_finalizer(&observed.node).await?,
            }
        }
        Ok(())
    }

    async fn create_machine(&self, observed: &Observed) -> Result<(), Error> {
        let Some((machine, settings)) = observed.order.clone() else { return Ok(()) };
        let order = Order { id: observed.id.clone(), machine, settings };
        let troubled =
            observed.node.condition(names::CONDITION_MACHINE).is_some_and(|c| &*c.status == "False");
        match observed.provider.create(&order).await {
            Ok(()) => {
                debug!("machine created");
                if troubled {
                    self.say(
                        &observed.node,
                        names::CONDITION_MACHINE,
                        true,
                        "Created",
                        "the machine was made",
                    )
                    .await?;
                }
                Ok(())
            }
            Err(error) => {
                let message = chain(&error);
                self.warn(&observed.node, error.reason(), message.clone()).await;
                self.say(&observed.node, names::CONDITION_MACHINE, false, error.reason(), &message).await?;
                Err(error.into())
            }
        }
    }

    /// Writes the list of taints where it still is the one that was seen. The whole version would be too strict: the
    /// controller-manager writes annotations onto young Nodes all the time.
    async fn set_taints(&self, node: &NodeView, taints: &[Taint]) -> Result<(), Error> {
        // Whoever creates a Node has its fields tracked, which doubles the price of every later write; nobody has
        // applied anything to a Node this young, so the tracking ends here.
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": &*node.uid },
            { "op": "test", "path": "/spec/taints", "value": node.taints },
            { "op": "replace", "path": "/spec/taints", "value": taints },
            { "op": "add", "path": "/metadata/managedFields", "value": [{}] },
        ]);
        let body = Body::JsonPatch(serde_json::to_vec(&patch).unwrap_or_default());
        let url = format!("/api/v1/nodes/{}?fieldManager={}", node.name, api::FIELD_MANAGER);
        match wire::send::<AnyObject>(&self.context.client, Method::PATCH, &url, body).await {
            // Somebody changed the list meanwhile; the watch is about to show it.
            Ok(_) | Err(WireError::Refused { code: 422, .. }) => Ok(()),
            Err(source) => {
                Err(ApiError::Wire { action: format!("change the taints of Node {}", node.name), source }
                    .into())
            }
        }
    }

    async fn cordon(&self, node: &NodeView) -> Result<(), Error> {
        let change = json!({ "spec": { "unschedulable": true } });
        Ok(api::patch::<Node>(&self.context.client, seen(node), change, "close it to the scheduler").await?)
    }

    async fn remove_finalizer(&self, node: &NodeView) -> Result<(), Error> {
        let mut finalizers = node.finalizers.clone();
        finalizers.retain(|finalizer| finalizer != names::FINALIZER_MACHINE);
        let change = json!({ "metadata": { "finalizers": finalizers } });
        Ok(api::patch::<Node>(&self.context.client, seen(node), change, "drop the finalizer").await?)
    }

    /// Writes a condition of ours onto the Node, where it says something new.
    pub(super) async fn say(
        &self,
        node: &NodeView,
        r#type: &'static str,
        status: bool,
        reason: &str,
        message: &str,
    ) -> Result<(), Error> {
        let status = if status { "True" } else { "False" };
        let old = node.condition(r#type);
        if old.is_some_and(|old| {
            &*old.status == status && &*old.reason == reason && old.message.as_deref() == Some(message)
        }) {
            return Ok(());
        }
        let now = Timestamp::now();
        let since = old.filter(|old| &*old.status == status).and_then(|old| old.since).unwrap_or(now);
        let condition = NodeCondition {
            type_: r#type.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: Some(Time(since)),
        };
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let params =
            PatchParams { field_manager: Some(api::FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        // Strategic: conditions are merged by type, so a kubelet's are not touched.
        let patch = Patch::Strategic(
            json!({ "metadata": { "uid": &*node.uid }, "status": { "conditions": [condition] } }),
        );
        call(
            || format!("write a condition of Node {}", node.name),
            nodes.patch_status(&node.name, &params, &patch),
        )
        .await?;
        Ok(())
    }

    pub(super) async fn warn(&self, node: &NodeView, reason: &'static str, text: String) {
        self.context.events.warn(&reference_to_node(node), reason, "Reconcile", text).await;
    }
}

pub(super) fn seen(node: &NodeView) -> Seen<'_> {
    Seen { name: &node.name, uid: &node.uid, resource_version: &node.resource_version }
}
