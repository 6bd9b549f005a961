//! Machines on workers. A worker finds its machines among the Nodes that name its group, and runs each as
//! long as its Node exists. So the operator sends nothing to workers, and workers lose nothing with the operator.
//!
//! Deleting a machine only records that its Node may go: the worker stops the machine when the Node is gone.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use kube_node_api::names;
use kube_node_cache::{Cache, EventHandler, NodeView};

use crate::{
    hosts::{MembershipWatch, Present},
    providers::{Existing, MachineId, MachineRequest, OUT_OF_RESOURCES, Renewed, Stage, Trouble},
};

/// Machines on workers.
pub(super) struct Hosted {
    nodes: Arc<Cache<NodeView>>,
    members: Arc<MembershipWatch>,
    /// UIDs of existing Nodes whose machine was deleted.
    deleted: Mutex<HashSet<Arc<str>>>,
}

impl Hosted {
    pub(super) fn new(nodes: Arc<Cache<NodeView>>, members: Arc<MembershipWatch>) -> Arc<Self> {
        let hosted = Arc::new(Self { nodes, members, deleted: Mutex::default() });
        hosted.nodes.add_event_handler(Arc::clone(&hosted) as Arc<dyn EventHandler<NodeView>>);
        hosted
    }

    /// Sends nothing: the workers of the group that the Node names see the Node themselves.
    pub(super) fn create(&self, request: &MachineRequest) {
        self.deleted().remove(&request.id.uid);
    }

    /// State of a machine; None if it is not on a worker, or was deleted.
    pub(super) fn exists(&self, id: &MachineId) -> Option<Existing> {
        let group = self.group_of(id)?;
        if self.deleted().contains(&id.uid) {
            return None;
        }
        let no_host = || Trouble {
            reason: "NoHost".to_owned(),
            message: format!(
                "no host of the group {group} is present: start one with kube-node hollow-host --hosts {group}, or give \
                 its StatefulSet replicas"
            ),
        };
        let trouble = if self.members.count(&group) == 0 { Some(no_host()) } else { self.said_by_host(id) };
        let stage = if trouble.is_some() { Stage::Starting } else { Stage::Up };
        Some(Existing { stage, lease: Renewed::Unknown, trouble, last_end: None })
    }

    /// Obstacle that the worker wrote on the Node: only the worker knows that it has no room.
    fn said_by_host(&self, id: &MachineId) -> Option<Trouble> {
        let node = self.nodes.get(&id.node)?;
        let said = node.condition(names::CONDITION_MACHINE)?;
        let is_full = &*said.status == "False" && &*said.reason == OUT_OF_RESOURCES;
        is_full.then(|| Trouble {
            reason: OUT_OF_RESOURCES.to_owned(),
            message: said.message.as_deref().unwrap_or_default().to_owned(),
        })
    }

    pub(super) fn delete(&self, id: &MachineId) {
        if self.group_of(id).is_some() {
            self.deleted().insert(Arc::clone(&id.uid));
        }
    }

    /// The machines of each group that gets its first worker, or loses its last.
    pub(super) fn watch(self: &Arc<Self>) -> BoxStream<'static, MachineId> {
        let start = (Arc::clone(self), self.members.present());
        stream::unfold(start, async |(hosted, before)| {
            let after = hosted.members.changed(&before).await;
            let turned = hosted.machines_of_turned(&before, &after);
            Some((stream::iter(turned), (hosted, after)))
        })
        .flatten()
        .boxed()
    }

    fn machines_of_turned(&self, before: &Present, after: &Present) -> Vec<MachineId> {
        let has_turned = |node: &Arc<NodeView>| {
            group(node).is_some_and(|group| before.contains_key(group) != after.contains_key(group))
        };
        self.nodes.all().iter().filter(|node| has_turned(node)).map(|node| MachineId::of(node)).collect()
    }

    /// The worker group that a Node names, as long as the Node exists.
    fn group_of(&self, id: &MachineId) -> Option<String> {
        let node = self.nodes.get(&id.node).filter(|node| node.uid == id.uid)?;
        group(&node).map(str::to_owned)
    }

    fn deleted(&self) -> MutexGuard<'_, HashSet<Arc<str>>> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn group(node: &NodeView) -> Option<&str> {
    node.label(names::LABEL_HOLLOW_HOSTS)
}

impl EventHandler<NodeView> for Hosted {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            self.deleted().remove(&old.uid);
        }
    }
}
