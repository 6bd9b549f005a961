//! Approver: compares each certificate signing request of a machine with its Node and its machine, and
//! approves or denies it. [`kube_node_planner::approval`] decides; requests of others are ignored.

mod view;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{Api, api::Patch, runtime::watcher};
use kube_ext::{
    call::{call, read},
    work_queue::{Action, Config, Consumer, WorkQueue, work_queue},
};
use kube_node_api::{machine_identity, names};
use kube_node_cache::{Cache, EventHandler, NodeView, Protobuf, ProtobufNode, ReflectError};
use kube_node_planner::approval::{self, CsrDecision, Denial, NodeServer};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::view::CsrView;
use super::{Context, api::patch_params, reconcile::Result, reference_to_node};
use crate::provider::{MachineId, Stage};

/// Concurrent reconciliations; nothing repeats a request.
const CONFIG: Config = Config { concurrency: 8, min_interval: Duration::ZERO };
/// Condition reason of an approved request.
const APPROVED: &str = "MachineApproved";

/// The controller.
pub struct Approver {
    context: Arc<Context>,
    /// Namespace of the machines' accounts.
    namespace: String,
    csrs: Arc<Cache<CsrView>>,
    requests: WorkQueue<String>,
}

impl Approver {
    /// Returns an approver of machines with accounts in `namespace`, and the queue for [`Self::run`].
    /// [`Self::watch`] fills the queue.
    pub fn new(context: Arc<Context>, namespace: String) -> (Arc<Self>, Consumer<String>) {
        let (requests, queue) = work_queue();
        let approver = Arc::new(Self { context, namespace, csrs: Arc::default(), requests });
        approver.csrs.add_event_handler(approver.clone());
        (approver, queue)
    }

    /// Watches the requests to the signer of node certificates. Returns only if that can never work.
    pub async fn watch(self: Arc<Self>) -> Result<(), ReflectError> {
        let api: Api<CertificateSigningRequest> = Api::all(self.context.client.clone());
        let of_signer =
            watcher::Config::default().fields(&format!("spec.signerName={}", machine_identity::SIGNER));
        kube_node_cache::run(api, of_signer, Arc::clone(&self.csrs)).await
    }

    /// Reconciles until `stop`, then finishes reconciliations in flight. The caches of the context must be in sync.
    pub async fn run(self: Arc<Self>, queue: Consumer<String>, stop: CancellationToken) {
        let this = &*self;
        let reconcile =
            |name: String| async move { this.reconcile(&name).await.map(|()| Action::AwaitChange) };
        self.context.run("csr", (queue, CONFIG), &stop, reconcile).await;
    }

    async fn reconcile(&self, name: &str) -> Result<()> {
        let Some(csr) = self.csrs.get(name) else { return Ok(()) };
        let Some(request) = &csr.pending else { return Ok(()) };
        let node = match approval::node_of(request, &self.namespace) {
            Some(node) => self.observe(node).await?,
            None => None,
        };
        let facts = node.as_ref().map(|(_, facts)| facts);
        let (r#type, reason, message) = match approval::decide(request, &self.namespace, facts) {
            CsrDecision::Ignore => return Ok(()),
            CsrDecision::Approve => {
                info!(user = request.username, "approved");
                ("Approved", APPROVED, "it is asked for by the machine of this Node".to_owned())
            }
            CsrDecision::Deny(Denial { reason, message }) => {
                warn!(user = request.username, reason, message, "denied");
                if let Some((view, _)) = &node {
                    let on = reference_to_node(view);
                    self.context.events.warn(&on, "CertificateDenied", "Approve", message.clone());
                }
                ("Denied", reason, message)
            }
        };
        // Unless the request has changed since it was read.
        let change = Patch::Merge(json!({
            "metadata": { "uid": csr.uid, "resourceVersion": csr.resource_version },
            "status": { "conditions": [
                { "type": r#type, "status": "True", "reason": reason, "message": message },
            ] },
        }));
        let api: Api<CertificateSigningRequest> = Api::all(self.context.client.clone());
        let params = patch_params();
        let decided = api.patch_approval(&csr.name, &params, &change);
        call(format!("decide on request {}", csr.name), decided).await?;
        Ok(())
    }

    /// The Node of this name, and its facts for the decision. Read from the API server: with a lagging watch
    /// the machine of a deleted Node would be approved, or that of a new Node denied.
    async fn observe(&self, name: &str) -> Result<Option<(Arc<NodeView>, approval::Node)>> {
        let (action, path) = (format!("read Node {name}"), NodeView::path(name));
        let found = read::<ProtobufNode>(&self.context.client, action, &path).await;
        let view = match found {
            Ok(node) => Arc::new(NodeView::from(node)),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let provider =
            view.label(names::LABEL_NODE_CONTROLLER).and_then(|name| self.context.providers.get(name));
        let (server, has_machine) = match provider.map(|provider| (provider, provider.account(&view))) {
            None => (NodeServer::Elsewhere, false),
            Some((_, None)) => (NodeServer::Shared, false),
            Some((provider, Some(account))) => {
                let machine = provider.exists(&MachineId::of(&view)).await?;
                let works = |stage| matches!(stage, Stage::Starting | Stage::Up);
                (NodeServer::Dedicated(account), machine.is_some_and(|machine| works(machine.stage)))
            }
        };
        let facts = approval::Node { uid: view.uid.to_string(), server, has_machine };
        Ok(Some((view, facts)))
    }
}

impl EventHandler<CsrView> for Approver {
    fn on_change(&self, _: Option<&Arc<CsrView>>, new: Option<&Arc<CsrView>>) {
        if let Some(csr) = new.filter(|csr| csr.pending.is_some()) {
            self.requests.add(csr.name.clone());
        }
    }
}
