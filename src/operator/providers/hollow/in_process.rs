//! Machines in this process, each an entry of its hollow kubelet. Some have a [dedicated
//! identity](super::dedicated_identity).
//!
//! Machines live as long as the process. The next process creates them again from the same Nodes; state that
//! must survive (boot, addresses) is stored on the Node.

use std::{collections::BTreeSet, sync::Arc};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
    stream::{self, BoxStream},
};
use hollow_kubelet::{Hollow, MachineSpec, capacity};
use machine_agent::machine_dir::Machine;
use tokio::sync::mpsc::unbounded_channel;

use super::{
    Room,
    dedicated_identity::{DedicatedIdentities, Dependencies},
};
use crate::providers::{
    Existing, MachineId, MachineRequest, Provider, ProviderError, Renewed, Settings, Stage,
};

/// Machines in this process.
#[derive(Clone)]
pub struct InProcess {
    hollow: Hollow,
    alone: Arc<DedicatedIdentities>,
    room: Arc<Room>,
}

impl InProcess {
    /// Machines run by `hollow`, as many as fit into `room`. `ground` serves those with a dedicated identity.
    #[must_use]
    pub fn new(hollow: Hollow, ground: Dependencies, room: Arc<Room>) -> Self {
        Self { alone: DedicatedIdentities::new(hollow.clone(), ground), hollow, room }
    }

    /// UID of the machine of a Node, by the Node's name.
    #[must_use]
    pub fn machine_of(&self, node: &str) -> Option<Arc<str>> {
        self.hollow.machine_of(node).or_else(|| self.alone.machine_of(node))
    }

    /// State of a machine.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Existing> {
        let alone = self.alone.exists(uid);
        let carried = self.hollow.get(uid).map(|machine| Existing {
            stage: Stage::Up,
            lease: machine.lease_renewed.map_or(Renewed::Never, Renewed::At),
            trouble: None,
            last_end: None,
        });
        carried.or(alone)
    }

    /// Deletes a machine at once.
    pub fn remove(&self, uid: &str) {
        // First the part that would create it again.
        self.alone.delete(uid);
        self.hollow.delete(uid);
        self.room.give_back(uid);
    }

    /// Forgets a machine that waited for room and is created elsewhere now.
    pub fn forget(&self, uid: &str) {
        self.room.forget(uid);
    }

    fn make(&self, request: &MachineRequest) -> Result<(), ProviderError> {
        let spec = spec(request)?;
        if request.machine.load().is_some() {
            self.room.take(&request.id, capacity::DEDICATED)?;
            self.alone.create(spec);
        } else {
            self.room.take(&request.id, 1)?;
            self.hollow.create(spec, None);
        }
        Ok(())
    }
}

/// Machine spec for the hollow kubelet.
fn spec(request: &MachineRequest) -> Result<MachineSpec, ProviderError> {
    let Machine { capacity, allocatable, kubelet_version, container_runtime, .. } = request.shape()?;
    Ok(MachineSpec {
        node: request.id.node.clone(),
        uid: request.id.uid.clone(),
        capacity,
        allocatable,
        kubelet_version,
        container_runtime,
        ip: None,
        settings: settings(&request.settings),
    })
}

fn settings(settings: &Settings) -> hollow_kubelet::Settings {
    hollow_kubelet::Settings { failures: settings.failures.clone(), containers: settings.containers.clone() }
}

impl Provider for InProcess {
    fn name(&self) -> &'static str {
        super::NAME
    }

    fn is_volatile(&self) -> bool {
        true
    }

    fn create<'a>(&'a self, request: &'a MachineRequest) -> BoxFuture<'a, Result<(), ProviderError>> {
        ready(self.make(request)).boxed()
    }

    fn update<'a>(
        &'a self,
        id: &'a MachineId,
        new: &'a Settings,
    ) -> BoxFuture<'a, Result<(), ProviderError>> {
        let new = settings(new);
        self.alone.update(&id.uid, &new);
        self.hollow.update(&id.uid, new);
        ready(Ok(())).boxed()
    }

    fn exists<'a>(&'a self, id: &'a MachineId) -> BoxFuture<'a, Result<Option<Existing>, ProviderError>> {
        ready(Ok(self.get(&id.uid))).boxed()
    }

    fn delete<'a>(&'a self, id: &'a MachineId) -> BoxFuture<'a, Result<(), ProviderError>> {
        self.remove(&id.uid);
        ready(Ok(())).boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<MachineId>, ProviderError>> {
        let carried = self.hollow.list().into_iter();
        let carried = carried.map(|machine| MachineId { uid: machine.uid, node: machine.node });
        let mut machines: BTreeSet<MachineId> = carried.collect();
        machines.extend(self.alone.list());
        ready(Ok(machines.into_iter().collect())).boxed()
    }

    fn count(&self) -> usize {
        self.room.count()
    }

    fn watch(&self) -> BoxStream<'static, MachineId> {
        let carried = stream::unfold(self.hollow.watch(), async |mut changes| {
            let machine = changes.recv().await?;
            Some((MachineId { uid: machine.uid, node: machine.node }, changes))
        });
        let (sender, changes) = unbounded_channel();
        self.alone.watch(sender.clone());
        self.room.watch(sender);
        let others =
            stream::unfold(changes, async |mut changes| changes.recv().await.map(|id| (id, changes)));
        stream::select(carried, others).boxed()
    }
}
