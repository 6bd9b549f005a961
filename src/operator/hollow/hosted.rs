//! Machines on workers. A worker finds its machines among the Nodes that name its group, and runs each as
//! long as its Node exists. So the operator sends nothing to workers, and workers lose nothing with the operator.
//!
//! Deleting a machine only records that its Node may go: the worker stops the machine when the Node is gone.

use std::{collections::HashSet, sync::Arc};

use futures::{StreamExt, stream};
use kube_node_api::names;
use kube_node_cache::{Cache, EventHandler, NodeView};
use kube_node_controllers::{
    hosts::MembershipWatch,
    provider::{Existing, MachineId, MachineRequest, OUT_OF_RESOURCES, Renewed, Stage, Trouble},
};
use parking_lot::Mutex;

/// Machines on workers.
pub(super) struct Hosted {
    nodes: Arc<Cache<NodeView>>,
    membership: Arc<MembershipWatch>,
    /// UIDs of existing Nodes whose machine was deleted.
    deleted: Mutex<HashSet<Arc<str>>>,
}

impl Hosted {
    pub(super) fn new(nodes: Arc<Cache<NodeView>>, membership: Arc<MembershipWatch>) -> Arc<Self> {
        let hosted = Arc::new(Self { nodes, membership, deleted: Mutex::default() });
        hosted.nodes.add_event_handler(hosted.clone());
        hosted
    }

    /// Sends nothing: the workers of the group that the Node names see the Node themselves.
    pub(super) fn create(&self, request: &MachineRequest) {
        self.deleted.lock().remove(&request.id.uid);
    }

    /// State of a machine; None if it is not on a worker, or was deleted.
    pub(super) fn get(&self, id: &MachineId) -> Option<Existing> {
        let group = self.group_of(id)?;
        if self.deleted.lock().contains(&id.uid) {
            return None;
        }
        let trouble = if self.membership.count(&group) == 0 {
            let message = format!(
                "no host of the group {group} is present: start one with kube-node hollow-host --hosts {group}, or give its StatefulSet replicas"
            );
            Some(Trouble { reason: "NoHost".to_owned(), message })
        } else {
            self.reported_by_worker(id)
        };
        let stage = if trouble.is_some() { Stage::Starting } else { Stage::Up };
        Some(Existing { stage, lease: Renewed::Unknown, trouble, last_end: None })
    }

    /// Obstacle that the worker wrote on the Node: only the worker knows that it has no room.
    fn reported_by_worker(&self, id: &MachineId) -> Option<Trouble> {
        let node = self.nodes.get(&id.node)?;
        let condition = node.condition(names::CONDITION_MACHINE)?;
        let is_full = &*condition.status == "False" && &*condition.reason == OUT_OF_RESOURCES;
        let message = condition.message.as_deref().unwrap_or_default().to_owned();
        is_full.then(|| Trouble { reason: OUT_OF_RESOURCES.to_owned(), message })
    }

    pub(super) fn delete(&self, id: &MachineId) {
        if self.group_of(id).is_some() {
            self.deleted.lock().insert(Arc::clone(&id.uid));
        }
    }

    /// The machines of each group that gets its first worker, or loses its last.
    pub(super) fn watch(self: &Arc<Self>) -> stream::BoxStream<'static, MachineId> {
        let start = (Arc::clone(self), self.membership.present());
        stream::unfold(start, async |(hosted, before)| {
            let after = hosted.membership.wait_for_change(&before).await;
            let is_affected = |node: &NodeView| {
                group(node).is_some_and(|group| before.contains_key(group) != after.contains_key(group))
            };
            let nodes = hosted.nodes.all();
            let affected = nodes.iter().filter(|node| is_affected(node)).map(|node| MachineId::of(node));
            Some((stream::iter(affected.collect::<Vec<_>>()), (hosted, after)))
        })
        .flatten()
        .boxed()
    }

    /// The worker group that a Node names, as long as the Node exists.
    fn group_of(&self, id: &MachineId) -> Option<String> {
        let node = self.nodes.get(&id.node).filter(|node| node.uid == id.uid)?;
        group(&node).map(str::to_owned)
    }
}

fn group(node: &NodeView) -> Option<&str> {
    node.label(names::LABEL_HOLLOW_HOSTS)
}

impl EventHandler<NodeView> for Hosted {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            self.deleted.lock().remove(&old.uid);
        }
    }
}
