//! Deletes machines without a Node: a Node may vanish by force, and a provider may know machines that we do not.

use kube_ext::{call::call, work_queue::Action};
use tracing::info;

use super::{Key, NodeController, Result, slots::Slot};
use crate::provider::{MachineId, Provider};

impl NodeController {
    /// Enqueues every machine whose Node is not in the cache.
    pub(super) async fn sweep(&self) {
        for provider in self.context.providers.values() {
            for id in provider.list().await.into_iter().filter(|id| !self.has_node(id)) {
                self.requests.add(Key::Machine(id));
            }
        }
    }

    fn has_node(&self, id: &MachineId) -> bool {
        self.context.nodes.get(&id.node).is_some_and(|node| node.uid == id.uid)
    }

    /// Enqueues the Node of the machine. Deletes a machine without a Node once the API server confirms that.
    pub(super) async fn reconcile_machine(&self, id: &MachineId, slot: Option<Slot>) -> Result<Action> {
        if self.has_node(id) {
            self.requests.add(Key::Node(id.node.clone()));
            return Ok(Action::AwaitChange);
        }
        let mut failed = None;
        for provider in self.context.providers.values() {
            // An unreachable provider must not protect the machines of another.
            failed = self.delete_if_without_node(&**provider, id, slot).await.err().or(failed);
        }
        failed.map_or(Ok(Action::AwaitChange), Err)
    }

    async fn delete_if_without_node(
        &self,
        provider: &dyn Provider,
        id: &MachineId,
        slot: Option<Slot>,
    ) -> Result<()> {
        let calls = Slot::of(provider);
        let needed = match self.machine(provider, id, slot).await? {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => calls.filter(|_| slot != calls),
            Err(needed) => Some(needed),
        };
        if let Some(needed) = needed {
            self.requests.ask(&Key::Machine(id.clone()), needed);
            return Ok(());
        }
        let found = call(format!("read Node {}", id.node), self.api.get_metadata_opt(&id.node)).await?;
        if found.is_none_or(|node| node.metadata.uid.as_deref() != Some(&*id.uid)) {
            info!(uid = &*id.uid, provider = provider.name(), "machine without a Node: deleting it");
            provider.delete(id).await?;
        }
        Ok(())
    }
}
