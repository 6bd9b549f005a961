//! The identity of a machine that is a pod of its own: from the token to the certificate, what is refused on the way, and
//! what a stolen one may not do. The Nodes' provider is the test's own; the rest is real.

mod flow;
mod forgeries;
mod hollow_node;
mod stolen;
mod stolen_hollow;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    core::v1::{Node, ServiceAccount},
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use kube_node_api::{
    machine_files::{self, MachineSettings},
    machine_identity::Account,
    names::MACHINE_NAMESPACE,
};
use kube_node_cache::NodeView;
use kube_node_controllers::{
    Context, DrainPermits, Events, Metrics, ProviderIdPrefix, ReleasedClasses, Revisions,
    csr::Approver,
    provider::{self, Existing, MachineId, MachineRequest, Provider, ProviderError, Renewed},
};
use kube_node_planner::foreign_times::ForeignTimes;
use machine_identity::{
    Identity, IdentityOptions,
    token::{self, Token},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::CLUSTER;
use kube_node_testing::{LONG, create, eventually};

/// Machines that are wherever the test says.
struct Somewhere {
    name: &'static str,
    machines: Mutex<HashSet<MachineId>>,
}

#[async_trait]
impl Provider for Somewhere {
    fn name(&self) -> &'static str {
        self.name
    }

    fn account(&self, _: &NodeView) -> Option<Account> {
        Some(Account::Kubemark)
    }

    async fn create(&self, _: &MachineRequest) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn update(&self, _: &MachineId, _: &MachineSettings) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn exists(&self, id: &MachineId) -> Result<Option<Existing>, ProviderError> {
        let known = self.machines.lock().unwrap().contains(id);
        Ok(known.then_some(Existing {
            stage: provider::Stage::Up,
            lease: Renewed::Unknown,
            trouble: None,
            last_end: None,
        }))
    }

    async fn delete(&self, _: &MachineId) -> Result<(), ProviderError> {
        Ok(())
    }

    fn count(&self) -> usize {
        self.machines.lock().unwrap().len()
    }

    async fn list(&self) -> Vec<MachineId> {
        self.machines.lock().unwrap().iter().cloned().collect()
    }

    fn watch(&self) -> BoxStream<'static, MachineId> {
        stream::pending().boxed()
    }
}

/// One test's Nodes and folders. The operator's client has the operator's own rights.
pub struct Stage {
    provider: Arc<Somewhere>,
    admin: Client,
    operator: Client,
    pub nodes: Api<Node>,
    csrs: Api<CertificateSigningRequest>,
    pub dir: PathBuf,
}

impl Stage {
    /// `name` is a domain: that of the provider.
    pub async fn new(name: &'static str) -> Self {
        let admin = CLUSTER.client().await;
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self {
            provider: Arc::new(Somewhere { name, machines: Mutex::default() }),
            operator: client_of(&CLUSTER.dir.join("operator.kubeconfig")).await,
            nodes: Api::all(admin.clone()),
            csrs: Api::all(admin.clone()),
            admin,
            dir,
        }
    }

    /// Starts the approver, with the rights of the operator.
    pub fn approve(&self) {
        let client = self.operator.clone();
        let provider: Arc<dyn Provider> = self.provider.clone();
        let registry = prometheus::Registry::new();
        let context = Arc::new(Context {
            nodes: Arc::default(),
            pods: Arc::default(),
            classes: Arc::default(),
            sets: Arc::default(),
            revisions: Revisions::new(client.clone(), "kube-node-system"),
            expectations: HashMap::new().into(),
            released_classes: ReleasedClasses::default(),
            foreign_times: ForeignTimes::default().into(),
            drain_permits: DrainPermits::default(),
            events: Events::register(client.clone(), self.provider.name, &registry).unwrap(),
            metrics: Metrics::register(&registry).unwrap(),
            providers: BTreeMap::from([(self.provider.name, provider)]),
            pod_cidrs: None,
            provider_id_prefix: ProviderIdPrefix::default(),
            client,
        });
        let (approver, queue) = Approver::new(context, MACHINE_NAMESPACE.to_owned());
        tokio::spawn(Arc::clone(&approver).watch());
        tokio::spawn(approver.run(queue, CancellationToken::new()));
    }

    /// A Node as the NodeSetController makes it, with a machine; its UID.
    pub async fn node(&self, name: &str) -> String {
        let uid = self.bare_node(name).await;
        let id = MachineId { uid: uid.as_str().into(), node: name.into() };
        self.provider.machines.lock().unwrap().insert(id);
        uid
    }

    /// The same without a machine.
    async fn bare_node(&self, name: &str) -> String {
        let labels = json!({
            "kube-node.io/nodeclass": "identity", "kube-node.io/node-controller": self.provider.name, "tier": "gold",
        });
        let metadata = json!({
            "name": name, "labels": labels, "finalizers": ["example.com/machine"],
            "annotations": {"kube-node.io/applied-template": "{}"},
        });
        let taints = json!([{"key": "kube-node.io/uninitialized", "effect": "NoSchedule"}]);
        let node = json!({"metadata": metadata, "spec": {"taints": taints}});
        create(&self.nodes, node).await.unwrap().metadata.uid.unwrap()
    }

    /// Takes a Node away, its finalizer too.
    pub async fn remove(&self, name: &str) {
        let dropped = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
        let dropped = kube::api::Patch::Json::<()>(serde_json::from_value(dropped).unwrap());
        let _ = self.nodes.patch(name, &PatchParams::default(), &dropped).await;
        let _ = self.nodes.delete(name, &DeleteParams::default()).await;
        eventually("the Node is gone", LONG, async || {
            self.nodes.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }

    /// A token for the machine of a Node.
    async fn token(&self, node: &str, uid: &str) -> Token {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.operator.clone(), MACHINE_NAMESPACE);
        token::request(&accounts, Account::Kubemark, node, uid, token::LIFETIME_MIN).await.unwrap()
    }

    /// The kubeconfig that the machine of a Node begins with.
    async fn bootstrap(&self, node: &str, uid: &str) -> String {
        let token = self.token(node, uid).await;
        let (server, ca) = server_and_ca();
        token::bootstrap_kubeconfig(&server, &ca, &token)
    }

    /// The folders of a machine, and what it needs to come by its identity.
    pub async fn options(&self, node: &str, uid: &str) -> IdentityOptions {
        let dir = self.dir.join(node);
        std::fs::create_dir_all(dir.join("state")).unwrap();
        let bootstrap = dir.join(machine_files::BOOTSTRAP);
        std::fs::write(&bootstrap, self.bootstrap(node, uid).await).unwrap();
        let mut options = IdentityOptions::new(node, bootstrap, dir.join("state"));
        options.patience = Duration::from_secs(20);
        options
    }

    /// The requests for certificates of a Node, the oldest first.
    async fn requests(&self, node: &str) -> Vec<CertificateSigningRequest> {
        let all = self.csrs.list(&ListParams::default()).await.unwrap();
        let begins = format!("{node}-");
        let mut own: Vec<_> = all
            .items
            .into_iter()
            .filter(|csr| csr.metadata.name.as_ref().unwrap().starts_with(&begins))
            .collect();
        own.sort_by_key(|csr| csr.metadata.creation_timestamp.as_ref().unwrap().0);
        own
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A client that a kubeconfig makes.
async fn client_of(path: &Path) -> Client {
    config_client(Kubeconfig::read_from(path).unwrap()).await
}

async fn config_client(kubeconfig: Kubeconfig) -> Client {
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// Where the API server is, and what it is known by.
fn server_and_ca() -> (String, String) {
    let kubeconfig = Kubeconfig::read_from(CLUSTER.dir.join("kubeconfig")).unwrap();
    let cluster = kubeconfig.clusters[0].cluster.clone().unwrap();
    let ca = std::fs::read_to_string(CLUSTER.dir.join("pki/ca.crt")).unwrap();
    (cluster.server.unwrap(), ca)
}

/// Comes by an identity.
async fn obtain(options: &IdentityOptions) -> Identity {
    Identity::obtain(options.clone()).await.unwrap()
}

/// Who the API server takes a client for.
async fn whoami(client: &Client) -> Value {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&review).unwrap())
        .unwrap();
    client.request::<Value>(request).await.unwrap()["status"]["userInfo"].clone()
}
