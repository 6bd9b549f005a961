//! A host: a process that carries the hollow machines of Nodes whose class names its group, in the operator's place.
//!
//! It is present by a Lease of its own, held as a leader holds the operators' one: nothing is written without it, and who
//! loses it ends. What it carries follows from who is present ([`crate::hosts`]), and what a machine is from Node, revision,
//! class and set: so hosts need nobody to tell them anything, and work on while no operator does.

mod reconciler;

use std::{net::SocketAddr, sync::Arc};

use hollow_kubelet::{Hollow, kubelet_watches::Meter, server};
use kube_ext::{
    admin::Admin,
    leader::{self, Election, Leadership},
    metrics::{self, gauge},
};
use prometheus::Registry;
use tokio_util::sync::CancellationToken;
use tracing::info;

use self::reconciler::HostReconciler;
use super::{
    Access, Caches, OperatorError,
    leader_tasks::in_sync,
    task_group::{TaskGroup, hold, leave},
};
use crate::{
    controllers::Revisions,
    hosts::MembershipWatch,
    preflight,
    providers::{Dependencies, InProcess, Room},
};

/// What a host needs.
pub struct Options {
    /// Its identity.
    pub client: Access,
    /// Where its kubelets are reached; None: nowhere.
    pub endpoints: Option<server::Options>,
    /// Most machines of this process.
    pub max_machines: usize,
    /// Namespace of the operator: of revisions, and of the Leases of hosts.
    pub namespace: String,
    /// The group that it belongs to.
    pub group: String,
    /// Its name in that group: no other process has it, but one before may have had it.
    pub name: String,
    /// Where health and metrics are served.
    pub admin_address: SocketAddr,
    /// By which Lease it is present.
    pub presence: leader::Options,
}

/// Carries machines until `shutdown`.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), OperatorError> {
    let Options { client: access, endpoints, max_machines, namespace, group, name, admin_address, presence } =
        options;
    let registry = Registry::new();
    let standing = Leadership::register(&leader::MEMBER, Some(presence.identity.clone()), &registry)?;
    metrics::build(&registry)?;
    let present = gauge(
        &registry,
        (
            "kube_node_host_peers",
            "Hosts of the group that are present, as this one sees them, itself included",
        ),
    )?;
    let caches = Caches::default();
    let members = MembershipWatch::seen_by(&group, &name);
    caches.hosts.observe(Arc::clone(&members) as _);
    let mut parts = TaskGroup::new(&shutdown);
    let admin = Admin::bind(admin_address, "--admin-address").await?;
    let (ready, roll) = (caches.readiness(), Arc::clone(&members));
    let unready = move || {
        let mut missing = ready();
        missing.extend(roll.echoed().is_none().then(|| "not present yet".to_owned()));
        missing
    };
    parts.serve(admin, registry.clone(), Arc::new(unready));

    let client = access.client()?;
    let checked = async {
        let leader::Options { name, .. } = &presence;
        preflight::reach(&client, &access.url).await?;
        for rights in [preflight::HOST, preflight::HOLLOW] {
            preflight::rights(&client, &access.identity, &namespace, &access.url, rights).await?;
        }
        preflight::election(&client, &access.identity, &access.url, &namespace, name).await?;
        preflight::endpoints(&client, &access.identity, &namespace, &access.url, endpoints).await
    };
    let Some(endpoints) = shutdown.run_until_cancelled(checked).await.transpose()? else { return Ok(()) };
    info!(url = access.url, group, host = name, "connected");
    let vacancy = presence.timing.lease();
    let mut election = Election::new(client, presence, Arc::clone(&standing));
    let fenced = access.fenced(standing.fence())?;
    caches.fill_for(&group, &fenced, &namespace, &mut parts);
    tokio::select! {
        // One before it of this name may not be over yet.
        won = election.win() => won?,
        error = parts.one_ends() => return Err(error),
        () = shutdown.cancelled() => return leave(Some(election)).await,
    }
    let work = Box::pin(async {
        let (nodes, pods) = (Arc::clone(&caches.nodes), Arc::clone(&caches.pods));
        let (hollow, kubelets) = Hollow::new(fenced.clone(), nodes, pods, vacancy, &registry)?;
        hollow.choose_addresses_by(&name);
        parts.serve_kubelets(&hollow, endpoints, &registry)?;
        let stop = parts.shutdown().clone();
        parts.spawn_until_done(kubelets.run(stop.clone()));
        let ground = Dependencies {
            requester: fenced.clone(),
            server: access.anonymous(),
            fence: standing.fence().clone(),
            meter: Meter::new(&registry)?,
        };
        let room = Room::register(max_machines, &caches.nodes, &registry)?;
        let machines = InProcess::new(hollow.clone(), ground, room);
        let revisions = Revisions::new(fenced.clone(), &namespace);
        let ready = caches.readiness();
        let (carrier, queue) =
            HostReconciler::new((&group, &name), fenced, caches, revisions, members, machines);
        parts.spawn_until_done(async move {
            let begun = async {
                in_sync(&hollow, &ready).await;
                carrier.settle().await;
            };
            if stop.run_until_cancelled(begun).await.is_some() {
                info!("carries machines");
                carrier.run(queue, present, stop).await;
            }
        });
        parts.supervise().await
    });
    hold(Some(election), work).await
}
