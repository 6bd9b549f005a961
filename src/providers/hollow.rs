//! Provider `hollow`: a machine is an entry of the hollow kubelet in this process.
//!
//! Machines live as long as the process. The next one makes them again from the same Nodes; what must survive (the
//! boot, addresses) is written on the Node.

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
    stream::{self, BoxStream},
};

use super::{Existing, MachineId, Order, Provider, ProviderError, Settings};
use crate::{
    core::{quantity, revision},
    hollow::{self, Hollow, MachineSpec},
};

/// What a hollow machine's kubelet says it is, unless its class says otherwise.
const KUBELET_VERSION: &str = "v1.36.3";
/// What it says its container runtime is, unless its class says otherwise.
const CONTAINER_RUNTIME: (&str, &str) = ("containerd", "2.1.0");

/// Machines in this process.
#[derive(Clone)]
pub struct HollowProvider {
    hollow: Hollow,
}

impl HollowProvider {
    /// A provider whose machines `hollow` carries.
    #[must_use]
    pub fn new(hollow: Hollow) -> Self {
        Self { hollow }
    }
}

/// What the hollow kubelet needs to know of a machine.
fn spec(order: &Order) -> Result<MachineSpec, ProviderError> {
    let revision::Machine { capacity, reserved, provisioning, .. } = &order.machine;
    let invalid = |error: quantity::ParseQuantityError| ProviderError::Invalid { message: error.to_string() };
    let allocatable = quantity::allocatable(capacity, reserved).map_err(invalid)?;
    let provisioning = provisioning.as_ref();
    let runtime = provisioning.and_then(|provisioning| provisioning.container_runtime.as_ref());
    let (name, version) =
        runtime.map_or(CONTAINER_RUNTIME, |runtime| (runtime.name.as_str(), runtime.version.as_str()));
    let kubelet = provisioning.and_then(|provisioning| provisioning.kubelet.as_ref());
    Ok(MachineSpec {
        node: order.id.node.clone(),
        uid: order.id.uid.clone(),
        capacity: capacity.clone(),
        allocatable,
        kubelet_version: kubelet.map_or(KUBELET_VERSION, |kubelet| &kubelet.version).to_owned(),
        container_runtime: format!("{name}://{version}"),
        ip: None,
        settings: settings(&order.settings),
    })
}

fn settings(settings: &Settings) -> hollow::Settings {
    hollow::Settings { failures: settings.failures.clone(), containers: settings.containers.clone() }
}

impl Provider for HollowProvider {
    fn name(&self) -> &'static str {
        "hollow"
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
        ready(Ok(machine.map(|machine| Existing { leaving: false, lease_renewed: machine.lease_renewed })))
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
