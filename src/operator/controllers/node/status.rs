//! Status of a Node: its wait reason in a metric, obstacles in conditions, and one event when somebody has to act.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use kube_ext::error::chain;
use kube_node_api::names;
use kube_node_cache::{ConditionView, NodeView};
use kube_node_planner::{back_off::BackOff, conditions::ConditionUpdate, wait::NodeWait};
use serde_json::json;

use super::{Error, NodeController, drain::drain_began, observe::Observed};
use crate::{
    controllers::{
        ApiError, Metrics,
        api::{self, call},
        reference_to_node,
    },
    providers::{ProviderError, Trouble},
};

/// Reported state of each Node that waits.
#[derive(Debug, Default)]
pub(super) struct ReportedWaits(Mutex<HashMap<Arc<str>, Entry>>);

#[derive(Debug)]
struct Entry {
    /// UID of the Node: a name may be used again.
    uid: Arc<str>,
    /// Wait reason counted in the metric.
    waits: &'static str,
    /// Last written condition `kube-node.io/Drained`: the watch may lag behind.
    drained: Option<ConditionUpdate>,
    /// Reasons that have had their event.
    events: Vec<&'static str>,
}

impl ReportedWaits {
    /// Counts the wait reason of a Node; None: the Node does not wait.
    pub(super) fn waits(&self, node: &NodeView, reason: Option<&'static str>, metrics: &Metrics) {
        let Some(reason) = reason else { return self.forget(&node.name, metrics) };
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match told.get_mut(&node.name) {
            Some(entry) if entry.uid == node.uid => Some(std::mem::replace(&mut entry.waits, reason)),
            _ => {
                let uid = Arc::clone(&node.uid);
                let new = Entry { uid, waits: reason, drained: None, events: Vec::new() };
                told.insert(Arc::clone(&node.name), new).map(|old| old.waits)
            }
        };
        drop(told);
        metrics.waits(before, Some(reason));
    }

    /// Drops a Node that no longer waits.
    pub(super) fn forget(&self, node: &str, metrics: &Metrics) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.remove(node).map(|entry| entry.waits);
        drop(told);
        metrics.waits(before, None);
    }

    fn with<T>(&self, node: &NodeView, with: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.get_mut(&node.name).filter(|entry| entry.uid == node.uid).map(with)
    }
}

impl NodeController {
    /// Reports the wait reason of a leaving Node. Each reason has one event in the life of a Node.
    pub(super) async fn tell(&self, node: &NodeView, wait: &NodeWait) -> Result<(), Error> {
        let shown =
            node.condition(names::CONDITION_DRAINED).filter(|condition| &*condition.status == "False");
        let last = self.told.with(node, |entry| entry.drained.clone()).flatten();
        let in_the_way = last.as_ref().map_or(shown.is_some(), |last| !last.status);
        let lasts = Timestamp::now().duration_since(drain_began(node));
        let lasts = Duration::try_from(lasts).unwrap_or_default();
        let Some(says) = wait.says(in_the_way, lasts) else { return Ok(()) };
        if last.as_ref() == Some(&says) {
            return Ok(());
        }
        if wait.needs_somebody() {
            // If the Node already shows this reason, the previous process recorded the event.
            let said = shown.is_some_and(|shown| &*shown.reason == says.reason);
            let first = self.told.with(node, |entry| {
                let new = !entry.events.contains(&says.reason);
                if new {
                    entry.events.push(says.reason);
                }
                new
            });
            if first == Some(true) && !said {
                self.warn(node, "DrainBlocked", says.message.clone());
            }
        }
        self.say(node, says.r#type, says.status, says.reason, &says.message).await?;
        self.told.with(node, |entry| entry.drained = Some(says));
        Ok(())
    }

    /// Writes a condition update onto the Node, unless the Node shows it already.
    pub(super) async fn say(
        &self,
        node: &NodeView,
        r#type: &'static str,
        status: bool,
        reason: &str,
        message: &str,
    ) -> Result<(), Error> {
        Ok(say(&self.context.client, node, r#type, (status, reason, message)).await?)
    }

    /// Reports an obstacle of the machine, and its end.
    pub(super) async fn say_how_it_stands(&self, observed: &Observed) -> Result<(), Error> {
        let node = &observed.node;
        if let Some(BackOff { message, .. }) = &observed.back_off {
            let reason = NodeWait::BackOff.reason();
            self.warn(node, reason, message.clone());
            return self.say(node, names::CONDITION_MACHINE, false, reason, message).await;
        }
        match &observed.trouble {
            Some(Trouble { reason, message }) => {
                self.warn(node, reason, message.clone());
                self.say(node, names::CONDITION_MACHINE, false, reason, message).await
            }
            None if observed.works => match &observed.last_end {
                Some(Trouble { reason, message }) => {
                    let says = |c: &ConditionView| c.message.as_deref() == Some(message);
                    if !node.condition(names::CONDITION_MACHINE).is_some_and(says) {
                        self.warn(node, reason, message.clone());
                    }
                    self.say(node, names::CONDITION_MACHINE, true, "Restarted", message).await
                }
                None if node.condition(names::CONDITION_MACHINE).is_some_and(is_trouble_of_machine) => {
                    self.say(node, names::CONDITION_MACHINE, true, "Running", "nothing stands in its way")
                        .await
                }
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Reports on a Node that stays that the API server refuses a write to it, and the end of that.
    pub(super) async fn say_whether_refused(
        &self,
        node: &NodeView,
        error: Option<&Error>,
    ) -> Result<(), Error> {
        let machine = node.condition(names::CONDITION_MACHINE);
        match error {
            Some(Error::Api(error)) if error.is_final() && !error.is_not_found() => {
                self.warn(node, NodeWait::REFUSED, error.chain());
                self.say(node, names::CONDITION_MACHINE, false, NodeWait::REFUSED, &error.chain()).await
            }
            None if machine.is_some_and(|c| &*c.reason == NodeWait::REFUSED) => {
                self.say(node, names::CONDITION_MACHINE, true, "Running", "nothing stands in its way").await
            }
            _ => Ok(()),
        }
    }

    /// Reports that the state of the machine is unknown.
    pub(super) async fn say_unreachable(&self, node: &NodeView, error: &ProviderError) -> Result<(), Error> {
        let message = chain(error);
        self.warn(node, error.reason(), message.clone());
        self.say(node, names::CONDITION_MACHINE, false, error.reason(), &message).await
    }

    /// Reports a machine that disappeared without a request of ours.
    pub(super) async fn say_lost(&self, node: &NodeView) -> Result<(), Error> {
        let text = "its machine is gone, without anybody asking us: another one is made";
        self.warn(node, "MachineLost", text.to_owned());
        self.say(node, names::CONDITION_MACHINE, false, "MachineLost", text).await
    }

    pub(super) fn warn(&self, node: &NodeView, reason: &str, text: String) {
        self.context.events.warn(&reference_to_node(node), reason, "Reconcile", text);
    }
}

/// Writes a condition update onto a Node, unless the Node shows it already.
pub async fn say(
    client: &Client,
    node: &NodeView,
    r#type: &'static str,
    (status, reason, message): (bool, &str, &str),
) -> Result<(), ApiError> {
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
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PatchParams { field_manager: Some(api::FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    // A strategic merge patch merges conditions by type, so a kubelet's are not touched.
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

/// Returns true for a False condition about the machine, not about writes to its Node.
fn is_trouble_of_machine(condition: &ConditionView) -> bool {
    &*condition.status == "False" && &*condition.reason != NodeWait::REFUSED
}
