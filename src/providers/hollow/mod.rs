//! Provider `hollow`: a machine is an entry of a hollow kubelet, in the operator's process or in that of a host.

mod hosted;
mod in_process;

use std::sync::Arc;

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
    stream::{self, BoxStream},
};
use kube::Client;

use self::hosted::Hosted;
pub use self::in_process::InProcess;
use super::{Existing, MachineId, Order, Provider, ProviderError, Settings};
use crate::{
    cache::{Cache, NodeView},
    hosts::Members,
};

/// What classes call it.
const NAME: &str = "hollow";

/// Machines here and on hosts.
pub struct HollowProvider {
    here: InProcess,
    hosted: Arc<Hosted>,
}

impl HollowProvider {
    /// Machines of `here`, and of hosts, of which `members` knows who is present. `nodes` must be filled by a watch.
    #[must_use]
    pub fn new(here: InProcess, client: Client, nodes: Arc<Cache<NodeView>>, members: Arc<Members>) -> Self {
        Self { here, hosted: Hosted::new(client, nodes, members) }
    }
}

impl Provider for HollowProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_volatile(&self) -> bool {
        true
    }

    fn create<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<(), ProviderError>> {
        match order.machine.hosts() {
            Some(group) => self.hosted.create(order, group).boxed(),
            None => self.here.create(order),
        }
    }

    /// A host sees by itself what changes.
    fn update<'a>(
        &'a self,
        id: &'a MachineId,
        new: &'a Settings,
    ) -> BoxFuture<'a, Result<(), ProviderError>> {
        self.here.update(id, new)
    }

    fn exists<'a>(&'a self, id: &'a MachineId) -> BoxFuture<'a, Result<Option<Existing>, ProviderError>> {
        match self.hosted.exists(id) {
            Some(existing) => ready(Ok(Some(existing))).boxed(),
            None => self.here.exists(id),
        }
    }

    fn delete<'a>(&'a self, id: &'a MachineId) -> BoxFuture<'a, Result<(), ProviderError>> {
        self.hosted.delete(id);
        self.here.delete(id)
    }

    /// Those of hosts have no existence without their Nodes.
    fn list(&self) -> BoxFuture<'_, Result<Vec<MachineId>, ProviderError>> {
        self.here.list()
    }

    fn watch(&self) -> BoxStream<'static, MachineId> {
        stream::select(self.here.watch(), self.hosted.watch()).boxed()
    }
}
