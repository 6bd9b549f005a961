//! The operator: preflight checks, watches, leader election and the leader tasks (`leader_tasks`), run until
//! shutdown. A worker ([`host`]) is built from the same parts.

mod caches;
mod hollow;
pub mod host;
mod leader_tasks;
mod task_group;

use std::{net::SocketAddr, sync::Arc};

use futures::future::OptionFuture;
use hollow_kubelet::server;
use kube::Client;
use kube_ext::{
    admin::Admin,
    leader::{self, Election, Leadership},
    metrics,
};
use kube_node_controllers::{Access, ProviderIdPrefix, autoscaler, inventory, kubernetes_version, preflight};
use kube_node_planner::pod_cidrs::PodCidrRange;
use prometheus::Registry;
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use self::caches::Caches;
use self::task_group::{TaskGroup, hold, leave};

/// Options of [`run`].
pub struct Options {
    /// Identity of the operator.
    pub client: Access,
    /// Identity of the hollow kubelets; None: the operator's.
    pub hollow: Option<Access>,
    /// Listener of the kubelet endpoints; None: endpoints are not served.
    pub endpoints: Option<server::ServerOptions>,
    /// Maximum number of hollow machines in this process.
    pub max_machines: usize,
    /// The operator's namespace: revisions, credentials Secrets and worker Leases.
    pub namespace: String,
    /// Namespace of kubemark machines and of the accounts that machines start with.
    pub machine_namespace: String,
    /// Listen address of health and metrics; None: no port, as in a simulation.
    pub admin_address: Option<SocketAddr>,
    /// Range from which new Nodes get their `spec.podCIDR`; None: another component assigns it.
    pub pod_cidrs: Option<PodCidrRange>,
    /// Prefix of providerIDs.
    pub provider_id_prefix: ProviderIdPrefix,
    /// The operator's own image, for kubemark machines.
    pub machine_image: String,
    /// URL of the API server for machines; None: the operator's URL.
    pub machine_api_server: Option<String>,
    /// True if credentials of classes may name servers whose certificate is not verified.
    pub insecure_credentials: bool,
    /// Options of the server for cluster-autoscaler; None: no server.
    pub autoscaler: Option<autoscaler::Options>,
    /// Options of leader election; None: this is the only operator.
    pub election: Option<leader::ElectionOptions>,
    /// Caches to fill; a simulation compares them with the server.
    pub caches: Caches,
}

/// Runs the operator until `shutdown`.
pub async fn run(mut options: Options, shutdown: CancellationToken) -> anyhow::Result<()> {
    let registry = Registry::new();
    let identity = options.election.as_ref().map(|election| election.identity.clone());
    let leadership = Leadership::register(&leader::LEADER, identity, &registry)?;
    let caches = options.caches.clone();
    inventory::register_nodes(&registry, Arc::clone(&caches.nodes))?;
    inventory::register_sets(&registry, &caches.sets)?;
    metrics::build(&registry)?;
    let mut tasks = TaskGroup::new(&shutdown);
    if let Some(address) = options.admin_address {
        let admin = Admin::bind(address, "--admin-address").await?.with(leadership.router());
        tasks.serve(admin, registry.clone(), caches.readiness());
    }

    let access = options.client.clone();
    let client = access.client()?;
    let server = tokio::select! {
        biased;
        checked = check(&mut options, &client) => checked?,
        () = shutdown.cancelled() => return Ok(()),
    };
    info!(url = access.url, "connected");
    let mut election =
        options.election.clone().map(|options| Election::new(client.clone(), options, leadership.clone()));
    // The election starts before the watches: a process that leads at once need not list twice.
    let begun = OptionFuture::from(election.as_mut().map(Election::begin));
    let Some(begun) = shutdown.run_until_cancelled(begun).await else { return leave(election).await };
    let leads = begun.transpose()?.unwrap_or(true);
    let fenced = access.fenced(leadership.fence())?;
    let namespace = options.namespace.clone();
    tasks.spawn(async move { access.preflight(&client, &namespace, "").definitions().await });
    caches.fill(None, &fenced, &options.namespace, &mut tasks);

    if !leads && let Some(candidate) = &mut election {
        info!("waits: another operator leads");
        tokio::select! {
            biased;
            won = candidate.win() => won?,
            error = tasks.one_ends() => return Err(error),
            () = shutdown.cancelled() => return leave(election).await,
        }
        // The watch may lag behind the last writes of the previous leader.
        caches.relist();
    }
    let work = Box::pin(async {
        leader_tasks::start(&mut tasks, options, server, fenced, &caches, &registry, &leadership)?;
        tasks.supervise().await
    });
    hold(election, work).await
}

/// What the preflight checks learn of the API server.
struct ApiServer {
    /// UID of its cluster.
    cluster: String,
    /// Version of hollow kubelets whose class names none.
    kubelet_version: String,
}

/// Runs the preflight checks. Clears `options.endpoints` if the rights to serve them are missing.
async fn check(options: &mut Options, client: &Client) -> anyhow::Result<ApiServer> {
    let Options { client: own, hollow, endpoints, namespace, machine_namespace, election, .. } = options;
    let hollow = hollow.as_ref().unwrap_or(own);
    let kubelets = hollow.client()?;
    let operator = own.preflight(client, namespace, machine_namespace);
    let kubelets = hollow.preflight(&kubelets, namespace, machine_namespace);
    let kubelet_version = kubernetes_version::of_kubelets(&operator.reach().await?);
    operator.rights(preflight::OPERATOR).await?;
    kubelets.rights(preflight::HOLLOW).await?;
    *endpoints = kubelets.endpoints(endpoints.take()).await?;
    if let Some(leader::ElectionOptions { namespace, name, .. }) = election {
        preflight::Preflight { namespace, ..operator }.election(name).await?;
    }
    let election = election.as_ref().map(|election| (election.namespace.as_str(), election.name.as_str()));
    operator.no_other_leader(election).await?;
    Ok(ApiServer { cluster: operator.cluster_id().await?, kubelet_version })
}
