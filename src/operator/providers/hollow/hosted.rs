//! Machines on hosts. A host finds its machines by itself, among the Nodes that name its group, and carries each for as
//! long as there is its Node; so the operator has nothing to send it, and nothing of a host's is lost with the operator.
//!
//! A machine that was deleted is one whose Node may go: its host stops when it does.

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

/// Machines on hosts.
pub(super) struct Hosted {
    nodes: Arc<Cache<NodeView>>,
    members: Arc<MembershipWatch>,
    /// UIDs of Nodes that are there still, whose machine was deleted.
    deleted: Mutex<HashSet<Arc<str>>>,
}

impl Hosted {
    pub(super) fn new(nodes: Arc<Cache<NodeView>>, members: Arc<MembershipWatch>) -> Arc<Self> {
        let hosted = Arc::new(Self { nodes, members, deleted: Mutex::default() });
        hosted.nodes.observe(Arc::clone(&hosted) as Arc<dyn EventHandler<NodeView>>);
        hosted
    }

    /// The hosts of the group that the Node names see it by themselves.
    pub(super) fn create(&self, request: &MachineRequest) {
        self.deleted().remove(&request.id.uid);
    }

    /// None where it is not on a host, or was deleted.
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

    /// What its host has written on the Node: it alone knows that it has no room.
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

    /// The machines of each group that has hosts, or has them no more.
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

    /// The group of hosts that a Node names, while there is that Node.
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
    fn changed(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            self.deleted().remove(&old.uid);
        }
    }
}
