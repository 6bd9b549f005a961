//! Leader tasks: providers, controllers, hollow kubelets and the server for cluster-autoscaler.
//!
//! Invariant: none of them exists before this process leads, so none remembers the term of another leader.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use hollow_kubelet::{Hollow, RESTART};
use kube::{Api, Client};
use kube_ext::{admin::Readiness, error::chain, leader::Leadership};
use kube_node_controllers::{
    Context, DrainPermits, Events, Metrics, PodCidrs, PolicyParameters, ReleasedClasses, Revisions, Secrets,
    autoscaler::Autoscaler,
    csr::Approver,
    hosts::MembershipWatch,
    inventory,
    kubemark::{self, KubemarkProvider},
    node::NodeController,
    nodeclass::NodeClassController,
    nodeset::NodeSetController,
    provider::Provider,
};
use machine_identity::BootstrapClient;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{ApiServer, Caches, Options, TaskGroup};
use crate::hollow::{HollowProvider, InProcess};

/// Poll interval until all watches are in sync.
const SYNC_POLL: Duration = Duration::from_millis(20);

/// Time limit for reading when the Leases of hollow nodes were renewed. Later, renewals matter more than
/// their order.
const LEASES_LIMIT: Duration = Duration::from_secs(3);

/// Starts all tasks, with a fenced `client` of the operator's own identity. They end at shutdown, once their
/// writes in flight are answered.
pub(super) fn start(
    tasks: &mut TaskGroup,
    options: Options,
    server: ApiServer,
    client: Client,
    caches: &Caches,
    registry: &Registry,
    leadership: &Leadership,
) -> anyhow::Result<()> {
    let hollow_client = match &options.hollow {
        Some(access) => access.fenced(leadership.fence())?,
        None => client.clone(),
    };
    let failover_delay = options.election.as_ref().map_or(RESTART, |election| election.timing.lease());
    let (hollow, kubelets) =
        Hollow::new(hollow_client.clone(), &caches.nodes, &caches.pods, failover_delay, registry)?;
    tasks.serve_kubelets(&hollow, options.endpoints, registry)?;
    let machines = hollow.clone();
    let membership: Arc<MembershipWatch> = Arc::default();
    caches.hosts.add_event_handler(membership.clone());
    let bootstrap = BootstrapClient {
        accounts: Api::namespaced(hollow_client, &options.machine_namespace),
        server: options.client.anonymous(),
        fence: leadership.fence().clone(),
    };
    let machine_options = (options.max_machines, server.kubelet_version.as_str());
    let in_process = InProcess::register(hollow, bootstrap, machine_options, &caches.nodes, registry)?;
    let hollow = HollowProvider::new(in_process, client.clone(), Arc::clone(&caches.nodes), membership);
    let hollow: Arc<dyn Provider> = Arc::new(hollow);
    let kubemark = kubemark::Options {
        cluster: server.cluster,
        namespace: options.namespace.clone(),
        machine_namespace: options.machine_namespace.clone(),
        image: options.machine_image,
        kubelet_version: server.kubelet_version,
        server: options.machine_api_server.unwrap_or_else(|| options.client.url.clone()),
        ca: options.client.ca(),
        fence: leadership.fence().clone(),
        insecure_credentials: options.insecure_credentials,
    };
    let (nodes, classes) = (Arc::clone(&caches.nodes), Arc::clone(&caches.classes));
    let kubemark: Arc<dyn Provider> =
        Arc::new(KubemarkProvider::new(client.clone(), nodes, classes, kubemark));
    let providers: BTreeMap<_, _> = [hollow, kubemark].map(|provider| (provider.name(), provider)).into();
    inventory::register_machines(registry, providers.clone())?;
    let pod_cidrs = options.pod_cidrs.map(|range| PodCidrs::register(range, registry)).transpose()?;
    // Registered before the controllers: a Node's CIDR must be counted before they consider its creation complete.
    if let Some(pod_cidrs) = &pod_cidrs {
        caches.nodes.add_event_handler(Arc::clone(pod_cidrs) as _);
    }
    let context = Arc::new(Context {
        nodes: Arc::clone(&caches.nodes),
        pods: Arc::clone(&caches.pods),
        classes: Arc::clone(&caches.classes),
        sets: Arc::clone(&caches.sets),
        revisions: Revisions::new(client.clone(), &options.namespace),
        expectations: Mutex::default(),
        released_classes: ReleasedClasses::default(),
        foreign_times: Mutex::default(),
        drain_permits: DrainPermits::default(),
        events: Events::register(client.clone(), "kube-node", registry)?,
        metrics: Metrics::register(registry)?,
        providers,
        pod_cidrs,
        provider_id_prefix: options.provider_id_prefix,
        client: client.clone(),
    });
    let stop = tasks.shutdown().clone();
    tasks.spawn_until_done(kubelets.run(stop.clone()));
    let csi_nodes = machines.clone();
    tasks.spawn_until_done(follow_csi_drivers(csi_nodes, stop.clone()));
    let (sets, set_queue) = NodeSetController::new(Arc::clone(&context));
    let (nodes, node_queue) = NodeController::new(Arc::clone(&context));
    let secrets = Secrets::new(client, &options.namespace);
    let parameters = PolicyParameters::new(Arc::clone(&context), &options.namespace);
    let (classes, class_queue) = NodeClassController::new(Arc::clone(&context), secrets);
    if let Some(options) = options.autoscaler {
        let server = Autoscaler::new(options, Arc::clone(&context), registry)?;
        // The server ends only at shutdown, once the calls in flight are answered.
        tasks.spawn_until_done(server.run(stop.clone()));
    }
    let (approver, csr_queue) = Approver::new(context, options.machine_namespace);
    tasks.spawn(Arc::clone(&approver).watch());
    let ready = caches.readiness();
    tasks.spawn_until_done(async move {
        if stop.run_until_cancelled(in_sync(&machines, &ready)).await.is_some() {
            info!("watches are in sync");
            tokio::join!(
                sets.run(set_queue, stop.clone()),
                nodes.run(node_queue, stop.clone()),
                classes.run(class_queue, stop.clone()),
                approver.run(csr_queue, stop.clone()),
                parameters.run(stop.clone())
            );
        }
    });
    Ok(())
}

/// Creates `CSINodes` once the cluster has a `CSIDriver`.
pub(super) async fn follow_csi_drivers(machines: Hollow, stop: CancellationToken) {
    if let Some(Err(error)) = stop.run_until_cancelled(machines.follow_csi_drivers()).await {
        warn!(error = chain(&error), "hollow nodes get no CSINodes, unless their class asks for them");
    }
    // A task that ends is an error.
    stop.cancelled().await;
}

/// Waits until the Leases are read and all watches are in sync. Controllers must not start on a partial
/// state: a set whose Nodes are not listed yet would seem to have none.
pub(super) async fn in_sync(machines: &Hollow, ready: &Readiness) {
    match timeout(LEASES_LIMIT, machines.read_leases()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(error = chain(&error), "no Lease is known: they are renewed in no order"),
        Err(_) => warn!("no Lease is known in time: they are renewed in no order"),
    }
    while !ready().is_empty() {
        sleep(SYNC_POLL).await;
    }
}
