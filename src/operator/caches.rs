//! Shared watches and the caches that they fill. They run whether or not this process leads.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, runtime::watcher};
use kube_ext::admin::Readiness;
use kube_node_api::names;
use kube_node_cache::{Cache, CachedNodeClass, CachedNodeSet, NodeView, PodView, run, run_protobuf};
use kube_node_controllers::hosts::HostView;

use super::TaskGroup;

/// Caches of all shared watches.
#[derive(Clone, Default)]
pub struct Caches {
    /// Nodes; of a worker those of its group.
    pub nodes: Arc<Cache<NodeView>>,
    /// Pods that are bound to a Node.
    pub pods: Arc<Cache<PodView>>,
    /// Classes.
    pub classes: Arc<Cache<CachedNodeClass>>,
    /// Sets.
    pub sets: Arc<Cache<CachedNodeSet>>,
    /// Leases of workers.
    pub hosts: Arc<Cache<HostView>>,
}

impl Caches {
    /// Names the caches that are not filled yet.
    pub(super) fn readiness(&self) -> Readiness {
        let caches = self.clone();
        Arc::new(move || {
            let all = [
                ("nodes", caches.nodes.in_sync()),
                ("pods", caches.pods.in_sync()),
                ("nodeclasses", caches.classes.in_sync()),
                ("nodesets", caches.sets.in_sync()),
                ("leases of hosts", caches.hosts.in_sync()),
            ];
            let missing = all.into_iter().filter(|(_, in_sync)| !in_sync);
            missing.map(|(name, _)| format!("no list of {name} yet")).collect()
        })
    }

    /// Fills all caches; those of a worker only with Nodes and Leases of its `group`. Starts the watches of
    /// classes and sets first: a Node is reconciled as soon as the watch shows it, and its class should be in
    /// the cache by then.
    pub(super) fn fill(&self, group: Option<&str>, client: &Client, namespace: &str, tasks: &mut TaskGroup) {
        let all = watcher::Config::default();
        let label = names::LABEL_HOLLOW_HOSTS;
        let hosts = group.map_or_else(|| label.to_owned(), |group| format!("{label}={group}"));
        let nodes = if group.is_some() { all.clone().labels(&hosts) } else { all.clone() };
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        tasks.spawn(run(leases, all.clone().labels(&hosts), Arc::clone(&self.hosts)));
        tasks.spawn(run(Api::<CachedNodeClass>::all(client.clone()), all.clone(), Arc::clone(&self.classes)));
        tasks.spawn(run(Api::<CachedNodeSet>::all(client.clone()), all.clone(), Arc::clone(&self.sets)));
        tasks.spawn(run_protobuf(client.clone(), nodes, Arc::clone(&self.nodes)));
        // Pods without a Node are of no interest.
        tasks.spawn(run_protobuf(client.clone(), all.fields("spec.nodeName!="), Arc::clone(&self.pods)));
    }

    /// Requests a new list for each cache.
    pub(super) fn relist(&self) {
        self.nodes.relist();
        self.pods.relist();
        self.classes.relist();
        self.sets.relist();
        self.hosts.relist();
    }
}
