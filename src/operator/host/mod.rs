//! A worker: a process that runs the hollow machines of Nodes whose class names its group, in the operator's place.
//!
//! Input: the present workers decide which machines it runs ([`kube_node_controllers::hosts`]); Node, revision, class and set
//! describe each machine. So workers need no instructions, and go on while no operator runs.
//!
//! Invariant: a worker writes nothing without its own Lease, held as a leader holds the operators' Lease; a
//! worker that loses the Lease exits.

mod reconciler;

use std::{net::SocketAddr, sync::Arc};

use hollow_kubelet::{Hollow, server};
use kube::Api;
use kube_ext::{
    admin::{Admin, Readiness},
    leader::{self, Election, Leadership},
    metrics::{self, gauge},
};
use kube_node_controllers::{Access, Revisions, hosts::MembershipWatch, kubernetes_version, preflight};
use machine_identity::BootstrapClient;
use prometheus::Registry;
use tokio_util::sync::CancellationToken;
use tracing::info;

use self::reconciler::HostReconciler;
use super::{
    Caches,
    leader_tasks::{follow_csi_drivers, in_sync},
    task_group::{TaskGroup, hold, leave},
};
use crate::hollow::InProcess;

/// Options of [`run`].
pub struct Options {
    /// Identity of the worker.
    pub client: Access,
    /// Listener of the kubelet endpoints; None: endpoints are not served.
    pub endpoints: Option<server::ServerOptions>,
    /// Maximum number of machines in this process.
    pub max_machines: usize,
    /// Namespace of the operator: revisions and worker Leases.
    pub namespace: String,
    /// Namespace of the accounts that machines start with.
    pub machine_namespace: String,
    /// Group of the worker.
    pub group: String,
    /// Name in the group. No other process has it now; a previous one may have had it.
    pub name: String,
    /// Listen address of health and metrics; None: no port, as in a simulation.
    pub admin_address: Option<SocketAddr>,
    /// Lease by which the worker is present.
    pub presence: leader::ElectionOptions,
}

/// Runs machines until `shutdown`.
pub async fn run(options: Options, shutdown: CancellationToken) -> anyhow::Result<()> {
    let Options { client: access, endpoints, max_machines, namespace, machine_namespace, .. } = options;
    let Options { group, name, admin_address, presence, .. } = options;
    let registry = Registry::new();
    let leadership = Leadership::register(&leader::MEMBER, Some(presence.identity.clone()), &registry)?;
    metrics::build(&registry)?;
    let help = "Hosts of the group that are present, as this one sees them, itself included";
    let present = gauge(&registry, ("kube_node_host_peers", help))?;
    let caches = Caches::default();
    let membership = MembershipWatch::of_worker(&presence.identity);
    caches.hosts.add_event_handler(membership.clone());
    let mut tasks = TaskGroup::new(&shutdown);
    if let Some(address) = admin_address {
        let admin = Admin::bind(address, "--admin-address").await?;
        tasks.serve(admin, registry.clone(), readiness(caches.readiness(), membership.clone()));
    }

    let client = access.client()?;
    let checked = async {
        let preflight = access.preflight(&client, &namespace, &machine_namespace);
        let version = preflight.reach().await?;
        preflight.rights(preflight::HOST).await?;
        preflight.rights(preflight::HOLLOW).await?;
        preflight.election(&presence.name).await?;
        anyhow::Ok((preflight.endpoints(endpoints).await?, kubernetes_version::of_kubelets(&version)))
    };
    let Some((endpoints, kubelet_version)) = shutdown.run_until_cancelled(checked).await.transpose()? else {
        return Ok(());
    };
    info!(url = access.url, group, host = name, "connected");
    let failover_delay = presence.timing.lease();
    let mut election = Election::new(client, presence, Arc::clone(&leadership));
    let fenced = access.fenced(leadership.fence())?;
    caches.fill(Some(&group), &fenced, &namespace, &mut tasks);
    tokio::select! {
        biased;
        // A previous process of this name may not have ended yet.
        won = election.win() => won?,
        error = tasks.one_ends() => return Err(error),
        () = shutdown.cancelled() => return leave(Some(election)).await,
    }
    let work = Box::pin(async {
        let (hollow, kubelets) =
            Hollow::new(fenced.clone(), &caches.nodes, &caches.pods, failover_delay, &registry)?;
        hollow.choose_addresses_by(&name);
        tasks.serve_kubelets(&hollow, endpoints, &registry)?;
        let stop = tasks.shutdown().clone();
        tasks.spawn_until_done(kubelets.run(stop.clone()));
        tasks.spawn_until_done(follow_csi_drivers(hollow.clone(), stop.clone()));
        let bootstrap = BootstrapClient {
            accounts: Api::namespaced(fenced.clone(), &machine_namespace),
            server: access.anonymous(),
            fence: leadership.fence().clone(),
        };
        let machines = InProcess::register(
            hollow.clone(),
            bootstrap,
            (max_machines, &*kubelet_version),
            &caches.nodes,
            &registry,
        )?;
        let revisions = Revisions::new(fenced.clone(), &namespace);
        let ready = caches.readiness();
        let (reconciler, queue) =
            HostReconciler::new((&group, &name), fenced, caches, revisions, membership, machines);
        tasks.spawn_until_done(async move {
            let begun = async {
                in_sync(&hollow, &ready).await;
                reconciler.settle().await;
            };
            if stop.run_until_cancelled(begun).await.is_some() {
                info!("carries machines");
                reconciler.run(queue, present, stop).await;
            }
        });
        tasks.supervise().await
    });
    hold(Some(election), work).await
}

/// Names what the worker waits for: lists of its caches, and its own heartbeat, which the other workers see as
/// late as it does itself.
fn readiness(caches: Readiness, membership: Arc<MembershipWatch>) -> Readiness {
    Arc::new(move || {
        let mut missing = caches();
        if membership.own_heartbeat().is_none() {
            missing.push("not present yet".to_owned());
        }
        missing
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use kube_node_cache::EventHandler;
    use serde_json::json;

    use super::*;
    use kube_node_controllers::hosts::{HostView, lease_name};

    #[test]
    fn a_worker_is_ready_with_its_first_own_heartbeat() {
        let membership = MembershipWatch::of_worker("a_2");
        let missing = readiness(Arc::new(Vec::new), Arc::clone(&membership));
        let renew = |host: &str, holder: &str, version: &str| {
            let lease: Lease = serde_json::from_value(json!({
                "metadata": {
                    "name": lease_name("big", host),
                    "resourceVersion": version,
                    "labels": {"kube-node.io/hollow-hosts": "big"},
                },
                "spec": {"holderIdentity": holder, "leaseDurationSeconds": 10},
            }))
            .unwrap();
            membership.on_change(None, Some(&Arc::new(HostView::from(lease))));
        };
        assert_eq!(missing(), ["not present yet"]);
        renew("b", "b_1", "1");
        assert_eq!(missing(), ["not present yet"], "another worker's heartbeat");
        renew("a", "a_1", "2");
        assert_eq!(missing(), ["not present yet"], "an earlier process of this name");
        renew("a", "a_2", "3");
        assert_eq!(missing(), [""; 0]);
        assert_eq!(membership.count("big"), 2);
    }
}
