//! The watches that everybody shares. They run whether this process leads or not.

use std::sync::Arc;

use kube::{Api, Client, core::DeserializeGuard, runtime::watcher};
use tokio_util::sync::CancellationToken;

use super::{Parts, spawn};
use crate::{
    api::{NodeClass, NodeSet},
    cache::{self, Cache, NodeView, Own, PodView, WireNode, WirePod},
    runtime::admin::Readiness,
};

/// What they fill.
#[derive(Clone, Default)]
pub(super) struct Caches {
    pub(super) nodes: Arc<Cache<NodeView>>,
    pub(super) pods: Arc<Cache<PodView>>,
    pub(super) classes: Arc<Cache<Own<NodeClass>>>,
    pub(super) sets: Arc<Cache<Own<NodeSet>>>,
}

impl Caches {
    /// Says which are not filled yet.
    pub(super) fn readiness(&self) -> Readiness {
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
    pub(super) fn fill(&self, client: &Client, shutdown: &CancellationToken, parts: &mut Parts) {
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

    /// Has all of them filled by new lists.
    pub(super) fn list_anew(&self) {
        self.nodes.list_anew();
        self.pods.list_anew();
        self.classes.list_anew();
        self.sets.list_anew();
    }
}
