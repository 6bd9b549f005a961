//! Machines in this process, each an entry of its hollow kubelet.
//!
//! They live as long as the process. The next one makes them again from the same Nodes; what must survive (the boot,
//! addresses) is written on the Node.

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
    stream::{self, BoxStream},
};

use crate::{
    hollow::{self, Hollow, MachineSpec},
    machine_dir::Machine,
    providers::{Existing, MachineId, Order, Provider, ProviderError, Settings, Stage},
};

/// Machines in this process.
#[derive(Clone)]
pub struct InProcess {
    hollow: Hollow,
}

impl InProcess {
    /// Those that `hollow` carries.
    #[must_use]
    pub fn new(hollow: Hollow) -> Self {
        Self { hollow }
    }
}

/// What the hollow kubelet needs to know of a machine.
fn spec(order: &Order) -> Result<MachineSpec, ProviderError> {
    let Machine { capacity, allocatable, kubelet_version, container_runtime, .. } = order.shape()?;
    Ok(MachineSpec {
        node: order.id.node.clone(),
        uid: order.id.uid.clone(),
        capacity,
        allocatable,
        kubelet_version,
        container_runtime,
        ip: None,
        settings: settings(&order.settings),
    })
}

fn settings(settings: &Settings) -> hollow::Settings {
    hollow::Settings { failures: settings.failures.clone(), containers: settings.containers.clone() }
}

impl Provider for InProcess {
    fn name(&self) -> &'static str {
        super::NAME
    }

    fn is_volatile(&self) -> bool {
        true
    }

    fn create<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<(), ProviderError>> {
        ready(spec(order).map(|spec| self.hollow.create(spec))).boxed()
    }

    fn update<'a>(
        &'a self,
        id: &'a MachineId,
        new: &'a Settings,
    ) -> BoxFuture<'a, Result<(), ProviderError>> {
        self.hollow.update(&id.uid, settings(new));
        ready(Ok(())).boxed()
    }

    fn exists<'a>(&'a self, id: &'a MachineId) -> BoxFuture<'a, Result<Option<Existing>, ProviderError>> {
        let machine = self.hollow.get(&id.uid);
        ready(Ok(machine.map(|machine| Existing {
            stage: Stage::Up,
            lease_renewed: machine.lease_renewed,
            trouble: None,
            last_end: None,
        })))
        .boxed()
    }

    fn delete<'a>(&'a self, id: &'a MachineId) -> BoxFuture<'a, Result<(), ProviderError>> {
        self.hollow.delete(&id.uid);
        ready(Ok(())).boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<MachineId>, ProviderError>> {
        let machines = self.hollow.list();
        ready(Ok(machines
            .into_iter()
            .map(|machine| MachineId { uid: machine.uid, node: machine.node })
            .collect()))
        .boxed()
    }

    fn watch(&self) -> BoxStream<'static, MachineId> {
        stream::unfold(self.hollow.watch(), async |mut changes| {
            let machine = changes.recv().await?;
            Some((MachineId { uid: machine.uid, node: machine.node }, changes))
        })
        .boxed()
    }
}
