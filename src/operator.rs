//! The operator as a whole: clients, preflight, caches, providers and controllers, wired together and run until told
//! to stop.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
    core::DeserializeGuard,
    runtime::watcher,
};
use prometheus::Registry;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    api::{NodeClass, NodeSet},
    autoscaler::{self, Autoscaler},
    cache::{self, Cache, NodeView, Own, PodView, ReflectError, WireNode, WirePod},
    controllers::{
        Census, Context, Events, Metrics, Outstanding, ProviderIdPrefix, Revisions, Secrets, Turns,
        csr::Approver, node::NodeController, nodeclass::NodeClassController, nodeset::NodeSetController,
    },
    hollow::Hollow,
    providers::{HollowProvider, KubemarkProvider, Provider, kubemark},
    runtime::{
        admin::{Admin, AdminError, Readiness},
        connection::limited,
        metrics,
        preflight::{self, PreflightError},
    },
};

/// How long the work that is under way may take to end.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// A client, and where it leads to.
#[derive(Clone)]
pub struct Access {
    client: Client,
    /// Of the API server, for messages.
    url: String,
    /// Where the client's identity comes from, for messages.
    identity: String,
    /// The certificates that the API server is known by (DER); none where those of this machine are used.
    ca: Vec<Vec<u8>>,
}

impl Access {
    /// The client, once the API server has answered.
    pub async fn reached(self) -> Result<Client, PreflightError> {
        preflight::reach(&self.client, &self.url).await?;
        Ok(self.client)
    }
}

/// What the operator needs.
pub struct Options {
    /// The operator's own identity.
    pub client: Access,
    /// The hollow kubelets'; the operator's when None.
    pub hollow: Option<Access>,
    /// Namespace of revisions.
    pub namespace: String,
    /// Where health and metrics are served.
    pub admin_address: SocketAddr,
    /// How providerIDs begin.
    pub provider_id_prefix: ProviderIdPrefix,
    /// Our own image, for machines that are pods.
    pub machine_image: String,
    /// URL of the API server as machines reach it; as the operator does when None.
    pub machine_api_server: Option<String>,
    /// The server for cluster-autoscaler, where there is to be one.
    pub autoscaler: Option<autoscaler::Options>,
}

/// Why the operator ended.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig {} cannot be used", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: KubeconfigError,
    },
    /// There is neither a kubeconfig nor a pod's identity.
    #[error("no way to an API server: give --kubeconfig, set KUBECONFIG, or run in a pod")]
    NoConfig(#[source] Box<kube::config::InferConfigError>),
    /// The client cannot be made.
    #[error("cannot make a client for {url}")]
    Client {
        /// Of the API server.
        url: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The work cannot begin.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// A watch cannot begin.
    #[error(transparent)]
    Reflect(#[from] ReflectError),
    /// No admin port.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The admin port failed.
    #[error("the admin port failed")]
    AdminServe(#[source] io::Error),
    /// A metric is registered twice: a mistake in the program.
    #[error("a metric cannot be registered")]
    Metrics(#[from] prometheus::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
    /// A part of the operator ended or panicked.
    #[error("a part of the operator ended by itself")]
    Part(#[source] Option<tokio::task::JoinError>),
}

/// Makes a client from a kubeconfig, or from what KUBECONFIG or the pod offers.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Access, OperatorError> {
    client_as(kubeconfig, None).await
}

/// The same, acting as a user where one is named: by impersonation, so that a second identity needs no second credential.
pub async fn client_as(kubeconfig: Option<&Path>, user: Option<String>) -> Result<Access, OperatorError> {
    let config = match kubeconfig {
        Some(path) => {
            let failed = |source| OperatorError::Kubeconfig { path: path.to_owned(), source };
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(failed)?
        }
        None => Config::infer().await.map_err(|source| OperatorError::NoConfig(Box::new(source)))?,
    };
    let mut config = limited(config);
    let url = config.cluster_url.to_string();
    let own = kubeconfig
        .map_or_else(|| "this identity".to_owned(), |path| format!("the identity of {}", path.display()));
    let identity = user.as_ref().map_or(own.clone(), |user| format!("{own} as {user}"));
    if user.is_some() {
        config.auth_info.impersonate = user;
    }
    let ca = config.root_cert.clone().unwrap_or_default();
    let client = Client::try_from(config)
        .map_err(|source| OperatorError::Client { url: url.clone(), source: Box::new(source) })?;
    Ok(Access { client, url, identity, ca })
}

/// A token that SIGINT and SIGTERM cancel.
pub fn signals() -> Result<CancellationToken, OperatorError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(OperatorError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(OperatorError::Signals)?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        info!("told to stop");
        cancelled.cancel();
    });
    Ok(token)
}

/// The watches that the controllers share.
#[derive(Clone, Default)]
struct Caches {
    nodes: Arc<Cache<NodeView>>,
    pods: Arc<Cache<PodView>>,
    classes: Arc<Cache<Own<NodeClass>>>,
    sets: Arc<Cache<Own<NodeSet>>>,
}

impl Caches {
    /// Says which are not filled yet.
    fn readiness(&self) -> Readiness {
        let caches = self.clone();
        Arc::new(move || {
            let all = [
                ("nodes", caches.nodes.in_sync()),
                ("pods", caches.pods.in_sync()),
                ("nodeclasses", caches.classes.in_sync()),
                ("nodesets", caches.sets.in_sync()),
            ];
            all.into_iter()
                .filter(|(_, in_sync)| !in_sync)
                .map(|(name, _)| format!("no list of {name} yet"))
                .collect()
        })
    }

    /// Fills all of them until `shutdown`. Classes and sets first: a Node is looked at as soon as it is known, and its
    /// class should be known by then.
    fn fill(
        &self,
        client: &Client,
        shutdown: &CancellationToken,
        parts: &mut JoinSet<Result<(), OperatorError>>,
    ) {
        let api: Api<DeserializeGuard<NodeClass>> = Api::all(client.clone());
        spawn(parts, shutdown, cache::run(api, watcher::Config::default(), Arc::clone(&self.classes)));
        let api: Api<DeserializeGuard<NodeSet>> = Api::all(client.clone());
        spawn(parts, shutdown, cache::run(api, watcher::Config::default(), Arc::clone(&self.sets)));
        let api: Api<WireNode> = Api::all(client.clone());
        spawn(parts, shutdown, cache::run(api, watcher::Config::default(), Arc::clone(&self.nodes)));
        // A pod that no Node has is nobody's business here.
        let bound = watcher::Config::default().fields("spec.nodeName!=");
        let api: Api<WirePod> = Api::all(client.clone());
        spawn(parts, shutdown, cache::run(api, bound, Arc::clone(&self.pods)));
    }
}

/// Starts a part that ends at shutdown at the latest.
fn spawn<E: Send + 'static>(
    parts: &mut JoinSet<Result<(), OperatorError>>,
    shutdown: &CancellationToken,
    part: impl Future<Output = Result<(), E>> + Send + 'static,
) where
    OperatorError: From<E>,
{
    let part = shutdown.clone().run_until_cancelled_owned(part);
    parts.spawn(part.map(|ended| ended.transpose().map(drop).map_err(OperatorError::from)));
}

/// Runs the operator until `shutdown`.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), OperatorError> {
    let Options {
        client: access,
        hollow,
        namespace,
        admin_address,
        provider_id_prefix,
        machine_image,
        machine_api_server,
        autoscaler,
    } = options;
    let registry = Registry::new();
    let caches = Caches::default();
    let mut parts: JoinSet<Result<(), OperatorError>> = JoinSet::new();
    let admin = Admin::bind(admin_address, "--admin-address").await?;
    let serving = admin.serve(registry.clone(), caches.readiness(), shutdown.clone());
    parts.spawn(serving.map(|result| result.map_err(OperatorError::AdminServe)));

    let hollow_access = hollow.unwrap_or_else(|| access.clone());
    tokio::select! {
        checked = check(&access, &hollow_access, &namespace) => checked?,
        () = shutdown.cancelled() => return Ok(()),
    }
    info!(url = access.url, "connected");

    let (hollow, kubelets) =
        Hollow::new(hollow_access.client, Arc::clone(&caches.nodes), Arc::clone(&caches.pods), &registry)?;
    let hollow: Arc<dyn Provider> = Arc::new(HollowProvider::new(hollow));
    let client = access.client;
    let kubemark = kubemark::Options {
        cluster: preflight::cluster_id(&client, &access.identity, &access.url).await?,
        namespace: namespace.clone(),
        image: machine_image,
        api_server: kubemark::ApiServer {
            url: machine_api_server.unwrap_or_else(|| access.url.clone()),
            ca: access
                .ca
                .iter()
                .map(|der| pem::encode(&pem::Pem::new("CERTIFICATE", der.as_slice())))
                .collect(),
        },
    };
    let (nodes, classes) = (Arc::clone(&caches.nodes), Arc::clone(&caches.classes));
    let kubemark: Arc<dyn Provider> =
        Arc::new(KubemarkProvider::new(client.clone(), nodes, classes, kubemark));
    let providers: BTreeMap<_, _> = [hollow, kubemark].map(|provider| (provider.name(), provider)).into();
    Census::register(&registry, Arc::clone(&caches.nodes), Arc::clone(&caches.sets))?;
    metrics::build(&registry)?;
    let context = Arc::new(Context {
        nodes: Arc::clone(&caches.nodes),
        pods: Arc::clone(&caches.pods),
        classes: Arc::clone(&caches.classes),
        sets: Arc::clone(&caches.sets),
        revisions: Revisions::new(client.clone(), &namespace),
        outstanding: Outstanding::default(),
        turns: Turns::default(),
        events: Events::new(client.clone(), "kube-node"),
        metrics: Metrics::register(&registry, providers.keys().copied())?,
        providers,
        provider_id_prefix,
        client: client.clone(),
    });
    parts.spawn(kubelets.run(shutdown.clone()).map(Ok));
    let (sets, set_queue) = NodeSetController::new(Arc::clone(&context));
    let (nodes, node_queue) = NodeController::new(Arc::clone(&context));
    let secrets = Secrets::new(client.clone(), &namespace);
    let (classes, class_queue) = NodeClassController::new(Arc::clone(&context), secrets);
    if let Some(options) = autoscaler {
        let server = Autoscaler::new(options, Arc::clone(&context), &registry)?;
        // It ends with the shutdown alone, once the calls under way are answered.
        parts.spawn(server.run(shutdown.clone()).map(Ok));
    }
    let (approver, csr_queue) = Approver::new(context);
    let ready = caches.readiness();
    spawn(&mut parts, &shutdown, preflight::definitions(client.clone(), access.url));
    caches.fill(&client, &shutdown, &mut parts);
    spawn(&mut parts, &shutdown, Arc::clone(&approver).watch());
    // Nobody acts on half a picture: a set whose Nodes are not listed yet would seem to have none.
    let work = async move {
        while !ready().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        info!("watches are in sync");
        tokio::join!(
            sets.run(set_queue),
            nodes.run(node_queue),
            classes.run(class_queue),
            approver.run(csr_queue)
        );
    };
    spawn(&mut parts, &shutdown, work.map(Ok::<(), OperatorError>));
    supervise(parts, shutdown).await
}

async fn check(access: &Access, hollow: &Access, namespace: &str) -> Result<(), PreflightError> {
    preflight::reach(&access.client, &access.url).await?;
    preflight::rights(&access.client, &access.identity, namespace, &access.url, preflight::OPERATOR).await?;
    preflight::rights(&hollow.client, &hollow.identity, namespace, &hollow.url, preflight::HOLLOW).await
}

/// Waits for the first part to end. Told to stop, every part has its time to do so.
async fn supervise(
    mut parts: JoinSet<Result<(), OperatorError>>,
    shutdown: CancellationToken,
) -> Result<(), OperatorError> {
    tokio::select! {
        ended = parts.join_next() => {
            if !shutdown.is_cancelled() {
                return match ended {
                    Some(Ok(Err(error))) => Err(error),
                    Some(Ok(Ok(()))) | None => Err(OperatorError::Part(None)),
                    Some(Err(panicked)) => Err(OperatorError::Part(Some(panicked))),
                };
            }
        }
        () = shutdown.cancelled() => {}
    }
    let rest = async { while parts.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_LIMIT, rest).await.is_err() {
        warn!("stopped with work under way");
    }
    Ok(())
}
