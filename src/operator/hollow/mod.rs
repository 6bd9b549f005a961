//! Provider `hollow`: a machine is an entry of a hollow kubelet, in the operator's process or in a worker.

mod dedicated_identity;
mod hosted;
mod in_process;
mod priority_semaphore;
mod slots;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use http::Method;
use kube::Client;
use kube_ext::{call, transport::Body};
use kube_node_api::{machine_files::MachineSettings, machine_identity::Account, names};
use kube_node_cache::{Cache, NodeView};
use kube_node_controllers::{
    hosts::MembershipWatch,
    provider::{Existing, Known, MachineId, MachineRequest, Provider, ProviderError},
};
use serde_json::json;

use self::hosted::Hosted;
pub use self::in_process::InProcess;

/// Name in `NodeClass.spec.nodeController`.
const NAME: &str = "hollow";

/// Machines in this process and on workers.
pub struct HollowProvider {
    client: Client,
    nodes: Arc<Cache<NodeView>>,
    here: InProcess,
    hosted: Arc<Hosted>,
}

impl HollowProvider {
    /// Machines of `here`, and of the workers in `membership`. `nodes` must be filled by a watch.
    pub fn new(
        here: InProcess,
        client: Client,
        nodes: Arc<Cache<NodeView>>,
        membership: Arc<MembershipWatch>,
    ) -> Self {
        Self { here, hosted: Hosted::new(Arc::clone(&nodes), membership), client, nodes }
    }

    /// Labels the Node with the worker group that runs its machine and with the API load of the machine. A
    /// NodeSet's Node is created with both.
    async fn mark(&self, request: &MachineRequest) -> Result<(), ProviderError> {
        let MachineId { node, uid } = &request.id;
        let marks = [
            (names::LABEL_HOLLOW_HOSTS, request.machine.hosts()),
            (names::LABEL_HOLLOW_LOAD, request.machine.load()),
        ];
        let shown = self.nodes.get(node).filter(|shown| shown.uid == *uid);
        let is_shown = |label, value| shown.as_ref().and_then(|shown| shown.label(label)) == Some(value);
        let marks = marks.into_iter().filter_map(|(label, value)| Some((label, value?)));
        let missing: BTreeMap<_, _> = marks.filter(|(label, value)| !is_shown(label, value)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let change = json!({ "metadata": { "uid": &**uid, "labels": missing } });
        let path = format!("/api/v1/nodes/{node}?fieldManager={}", names::FIELD_MANAGER);
        let body = Body::MergePatch(change.to_string().into_bytes());
        let action = format!("label Node {node}");
        let answer = call::send(&self.client, action, Method::PATCH, &path, body).await;
        answer.map(drop).map_err(ProviderError::retryable)
    }
}

#[async_trait]
impl Provider for HollowProvider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_volatile(&self) -> bool {
        true
    }

    fn account(&self, node: &NodeView) -> Option<Account> {
        node.label(names::LABEL_HOLLOW_LOAD).map(|_| Account::Hollow)
    }

    async fn create(&self, request: &MachineRequest) -> Result<(), ProviderError> {
        self.mark(request).await?;
        match request.machine.hosts() {
            Some(_) => self.hosted.create(request),
            None => self.here.create(request)?,
        }
        Ok(())
    }

    /// Workers see changed settings themselves.
    async fn update(&self, id: &MachineId, settings: &MachineSettings) -> Result<(), ProviderError> {
        self.here.update(&id.uid, settings);
        Ok(())
    }

    fn known(&self, id: &MachineId) -> Result<Known, ProviderError> {
        let known = self.hosted.get(id).or_else(|| self.here.get(id));
        Ok(known.map_or(Known::Absent, Known::Machine))
    }

    async fn exists(&self, id: &MachineId) -> Result<Option<Existing>, ProviderError> {
        Ok(self.known(id)?.machine())
    }

    async fn delete(&self, id: &MachineId) -> Result<(), ProviderError> {
        self.hosted.delete(id);
        self.here.delete(&id.uid);
        Ok(())
    }

    /// Machines on workers do not exist without their Nodes.
    async fn list(&self) -> Vec<MachineId> {
        self.here.list()
    }

    fn count(&self) -> usize {
        self.here.count()
    }

    fn watch(&self) -> stream::BoxStream<'static, MachineId> {
        stream::select(self.here.watch(), self.hosted.watch()).boxed()
    }
}
