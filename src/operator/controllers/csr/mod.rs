//! Approver: compares each certificate signing request of a machine with its Node and its machine, and
//! approves or denies it. [`kube_node_planner::approval`] decides; requests of others are ignored.

mod view;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::watcher,
};
use kube_ext::{
    error::chain,
    work_queue::{Action, Config, Consumer, WorkQueue, run, work_queue},
};
use kube_node_api::names;
use kube_node_cache::{Cache, EventHandler, NodeView, Protobuf, ReflectError, WireNode};
use kube_node_planner::approval::{self, CsrDecision, Denial, NodeServer};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use view::View;

use super::{
    ApiError, Context,
    api::{FIELD_MANAGER, call, read},
    reference_to_node,
};
use crate::providers::{MachineId, ProviderError, Stage};

/// Concurrent reconciliations.
const CONCURRENCY: usize = 8;
/// Condition reason of an approved request.
const APPROVED: &str = "MachineApproved";

/// Reason why a reconciliation failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

/// The controller.
pub struct Approver {
    context: Arc<Context>,
    csrs: Arc<Cache<View>>,
    requests: WorkQueue<String>,
}

impl Approver {
    /// Returns an approver and the queue for [`Self::run`]. [`Self::watch`] fills the queue.
    #[must_use]
    pub fn new(context: Arc<Context>) -> (Arc<Self>, Consumer<String>) {
        let (requests, queue) = work_queue();
        let approver = Arc::new(Self { context, csrs: Arc::default(), requests });
        approver.csrs.add_event_handler(approver.clone());
        (approver, queue)
    }

    /// Watches the requests to the signer of node certificates. Returns only if that can never work.
    pub async fn watch(self: Arc<Self>) -> Result<(), ReflectError> {
        let api: Api<CertificateSigningRequest> = Api::all(self.context.client.clone());
        let of_signer = watcher::Config::default().fields(&format!("spec.signerName={}", approval::SIGNER));
        kube_node_cache::run(api, of_signer, Arc::clone(&self.csrs)).await
    }

    /// Reconciles until `stop`, then finishes reconciliations in flight. The caches of the context must be in sync.
    pub async fn run(self: Arc<Self>, queue: Consumer<String>, stop: CancellationToken) {
        let config = Config { concurrency: CONCURRENCY, min_interval: Duration::ZERO };
        run(queue, config, &stop, |name| {
            let approver = Arc::clone(&self);
            async move {
                let reconcile = async {
                    match approver.reconcile(&name).await {
                        Ok(()) => Action::AwaitChange,
                        // The request is gone or decided: the watch shows it.
                        Err(Error::Api(error)) if error.is_not_found() || error.is_conflict() => {
                            Action::AwaitChange
                        }
                        Err(error) => {
                            warn!(error = chain(&error), "reconciliation failed");
                            Action::Failed
                        }
                    }
                };
                approver.context.reconcile("csr", &name, reconcile).await
            }
        })
        .await;
    }

    async fn reconcile(&self, name: &str) -> Result<(), Error> {
        let Some(csr) = self.csrs.get(name) else { return Ok(()) };
        let Some(request) = &csr.pending else { return Ok(()) };
        let node = match approval::node_of(request) {
            Some(node) => self.observe(node).await?,
            None => None,
        };
        let verdict = approval::decide(request, node.as_ref().map(|(_, facts)| facts));
        match &verdict {
            CsrDecision::Ignore => return Ok(()),
            CsrDecision::Approve => info!(user = request.username, "approved"),
            CsrDecision::Deny(Denial { reason, message }) => {
                warn!(user = request.username, reason, message, "denied");
                if let Some((view, _)) = &node {
                    let on = reference_to_node(view);
                    self.context.events.warn(&on, "CertificateDenied", "Approve", message.clone());
                }
            }
        }
        Ok(self.say(&csr, &verdict).await?)
    }

    /// The Node of this name, and its facts for the decision. Read from the API server: with a lagging watch
    /// the machine of a deleted Node would be approved, or that of a new Node denied.
    async fn observe(&self, name: &str) -> Result<Option<(Arc<NodeView>, approval::Node)>, Error> {
        let action = || format!("read Node {name}");
        let found = read::<WireNode>(&self.context.client, action, &NodeView::path(name)).await;
        let view = match found {
            Ok(node) => Arc::new(NodeView::from(node)),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let provider =
            view.label(names::LABEL_NODE_CONTROLLER).and_then(|name| self.context.providers.get(name));
        let (server, has_machine) = match provider {
            None => (NodeServer::Elsewhere, false),
            Some(provider) => match provider.account(&view) {
                None => (NodeServer::Shared, false),
                Some(account) => {
                    let machine = provider.exists(&MachineId::of(&view)).await?;
                    (
                        NodeServer::Own(account),
                        machine.is_some_and(|machine| matches!(machine.stage, Stage::Starting | Stage::Up)),
                    )
                }
            },
        };
        let facts = approval::Node { uid: view.uid.to_string(), server, has_machine };
        Ok(Some((view, facts)))
    }

    /// Writes the decision, unless the request has changed since it was read.
    async fn say(&self, csr: &View, verdict: &CsrDecision) -> Result<(), ApiError> {
        let (kind, reason, message) = match verdict {
            CsrDecision::Ignore => return Ok(()),
            CsrDecision::Approve => ("Approved", APPROVED, "it is asked for by the machine of this Node"),
            CsrDecision::Deny(Denial { reason, message }) => ("Denied", *reason, message.as_str()),
        };
        let change = json!({
            "metadata": { "uid": csr.uid, "resourceVersion": csr.resource_version },
            "status": { "conditions": [
                { "type": kind, "status": "True", "reason": reason, "message": message },
            ] },
        });
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let api: Api<CertificateSigningRequest> = Api::all(self.context.client.clone());
        let action = || format!("decide on request {}", csr.name);
        call(action, api.patch_approval(&csr.name, &params, &Patch::Merge(&change))).await.map(drop)
    }
}

impl EventHandler<View> for Approver {
    fn on_change(&self, _: Option<&Arc<View>>, new: Option<&Arc<View>>) {
        if let Some(csr) = new.filter(|csr| csr.pending.is_some()) {
            self.requests.add(csr.name.clone());
        }
    }
}
