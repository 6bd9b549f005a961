//! The controllers, and the parts of the operator beside them that need no hollow kubelet: the interface of providers,
//! the provider kubemark, the server for cluster-autoscaler, the membership of workers, access and preflight. Each
//! reconciliation concerns one object: observe → plan → apply → status.
//!
//! Invariant: nothing here depends on the hollow kubelet, so an edit of the hollow kubelet rebuilds no controller.

mod access;
mod api;
pub mod autoscaler;
mod batch;
pub mod csr;
mod drain_permits;
mod events;
pub mod hosts;
pub mod inventory;
pub mod kubemark;
pub mod kubernetes_version;
pub mod machine_spec;
mod metrics;
pub mod node;
pub mod nodeclass;
pub mod nodeset;
mod pod_cidrs;
mod policy_parameters;
pub mod preflight;
pub mod provider;
mod reconcile;
mod released_classes;
mod revisions;
mod secrets;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_ext::environment;
use kube_node_api::{NodeSetSpec, NodeTemplate};
use kube_node_cache::{Cache, CachedNodeClass, CachedNodeSet, NodeView, PodView, View as _};
use kube_node_planner::{
    expectations::Expectations,
    foreign_times::ForeignTimes,
    startup_taints::StartupTaints,
    template::{self, CurrentTemplate},
};
use parking_lot::Mutex;

pub use access::Access;
pub use drain_permits::DrainPermits;
pub use events::Events;
pub use metrics::Metrics;
pub use pod_cidrs::PodCidrs;
pub use policy_parameters::PolicyParameters;
pub use reconcile::ReconcileError;
pub use released_classes::ReleasedClasses;
pub use revisions::{Revisions, RevisionsError};
pub use secrets::Secrets;

use crate::provider::Provider;

/// State that the controllers share.
pub struct Context {
    /// Client of the operator's own identity.
    pub client: Client,
    /// All Nodes.
    pub nodes: Arc<Cache<NodeView>>,
    /// All pods that are bound to a Node.
    pub pods: Arc<Cache<PodView>>,
    /// All NodeClasses.
    pub classes: Arc<Cache<CachedNodeClass>>,
    /// All NodeSets.
    pub sets: Arc<Cache<CachedNodeSet>>,
    /// Revisions, from which machines are made.
    pub revisions: Revisions,
    /// Creations and deletions that were sent and that the watch has not shown yet, by set. The autoscaler
    /// server reads them, too.
    pub expectations: Mutex<HashMap<String, Expectations>>,
    /// Classes that this operator releases; the watch may still show them.
    pub released_classes: ReleasedClasses,
    /// Times on Nodes that are later than now.
    pub foreign_times: Mutex<ForeignTimes>,
    /// Permits to start a drain.
    pub drain_permits: DrainPermits,
    /// Event recorder.
    pub events: Events,
    /// Metrics.
    pub metrics: Metrics,
    /// Providers by their name in `NodeClass.spec.nodeController`.
    pub providers: BTreeMap<&'static str, Arc<dyn Provider>>,
    /// Allocator of `spec.podCIDR` for new Nodes; None: another component assigns it.
    pub pod_cidrs: Option<Arc<PodCidrs>>,
    /// Prefix of `spec.providerID` of new Nodes.
    pub provider_id_prefix: ProviderIdPrefix,
}

/// Prefix of `spec.providerID` of new Nodes, before `://<node name>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProviderIdPrefix {
    /// The provider's name.
    #[default]
    Provider,
    /// This text.
    Text(String),
    /// No providerID is set: for machines that are instances of a cloud, whose cloud-controller-manager sets it.
    None,
}

impl Context {
    /// Counts the Nodes of a class: all that the watch shows, whoever created them and including those that
    /// leave, and those that the class's sets expect. Nodes of the set `but_for` are left out. `expectations`
    /// are by set.
    pub(crate) fn nodes_of_class(
        &self,
        class: &str,
        but_for: Option<&str>,
        expectations: &HashMap<String, Expectations>,
    ) -> usize {
        let is_of_class = |set: &str| self.sets.get(set).is_some_and(|set| set.index_key() == Some(class));
        // Mostly none of the sets expects any, and cluster-autoscaler asks for each of its Nodes.
        let others = expectations.iter().filter(|(set, expectations)| {
            expectations.pending_creations() > 0 && Some(set.as_str()) != but_for && is_of_class(set)
        });
        let creations = others.flat_map(|(_, expectations)| expectations.creations());
        let coming = creations.filter(|name| self.nodes.get(name).is_none());
        coming.count() + self.nodes.counted(class, but_for)
    }

    /// The class of this name, for new Nodes and machines; None if there is none, or if this operator releases it.
    fn class(&self, name: &str) -> Option<Arc<CachedNodeClass>> {
        self.classes.get(name).filter(|class| !self.released_classes.contains(&class.metadata))
    }

    /// Startup taints that hold up the Nodes of a set. A class that can be read has its own although the set names a revision
    /// that is not there, or it cannot be used for another reason.
    fn startup_taints(&self, set: &NodeSetSpec) -> StartupTaints {
        let class = self.class(&set.node_class_name);
        StartupTaints::of(class.as_ref().and_then(|own| Some(&own.object.as_ref().ok()?.spec)), set)
    }

    /// The time that counts for a time of a Node, which a clock that is ahead may have given.
    fn counted(&self, node: &NodeView, field: &str, time: Timestamp) -> Timestamp {
        self.foreign_times.lock().counted(&node.uid, field, time, environment::now())
    }

    /// The providerID of a Node; None if this operator does not set it.
    fn provider_id(&self, provider: &str, node: &str) -> Option<String> {
        let provider = self.providers.get(provider)?;
        match &self.provider_id_prefix {
            ProviderIdPrefix::Provider => Some(format!("{}://{node}", provider.name())),
            ProviderIdPrefix::Text(prefix) => Some(format!("{prefix}://{node}")),
            ProviderIdPrefix::None => None,
        }
    }
}

/// Reference to a Node, for Events.
fn reference_to_node(node: &NodeView) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.name.to_string()),
        // As kubelets do: `kubectl describe node` looks for Events with the Node's name as UID.
        uid: Some(node.name.to_string()),
        ..ObjectReference::default()
    }
}

/// Message about the reserved taints of a template; None if the template has none.
fn reserved_taints(what: &str, template: Option<&NodeTemplate>) -> Option<String> {
    let reserved = template::reserved_taints(template?);
    let all = reserved.join(", ");
    let message =
        || format!("{what} names taints that others set and remove, so no node gets them: remove {all}");
    (!reserved.is_empty()).then(message)
}

/// The fields of a Node that a template covers.
fn current_template(node: &NodeView) -> CurrentTemplate<'_> {
    CurrentTemplate { labels: &node.labels, annotations: &node.annotations, taints: &node.taints }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::pending, hint::black_box, time::Instant};

    use http::{Request, Response};
    use kube::client::Body;
    use kube_node_api::names;
    use kube_node_cache::intern;
    use tower::service_fn;

    use super::*;

    /// A class with this number of Nodes, in 100 sets.
    pub(crate) fn context(nodes: usize) -> Context {
        let silent = |_: Request<Body>| pending::<Result<Response<Body>, Infallible>>();
        let (client, registry) = (Client::new(service_fn(silent), "default"), prometheus::Registry::new());
        let node = |number: usize| {
            let labels = [
                (names::LABEL_NODECLASS, "small"),
                (names::LABEL_NODESET, &*format!("set-{}", number % 100)),
            ];
            let labels = labels.map(|(key, value)| (intern(key), intern(value))).into_iter().collect();
            NodeView { name: format!("node-{number}").into(), labels, ..NodeView::default() }
        };
        Context {
            nodes: Cache::full((0..nodes).map(node)),
            pods: Arc::default(),
            classes: Arc::default(),
            sets: Arc::default(),
            revisions: Revisions::new(client.clone(), "kube-node-system"),
            expectations: Mutex::default(),
            released_classes: ReleasedClasses::default(),
            foreign_times: Mutex::default(),
            drain_permits: DrainPermits::default(),
            events: Events::register(client.clone(), "test", &registry).unwrap(),
            metrics: Metrics::register(&registry).unwrap(),
            providers: BTreeMap::new(),
            pod_cidrs: None,
            provider_id_prefix: ProviderIdPrefix::default(),
            client,
        }
    }

    /// cluster-autoscaler's loop counts once for each Node.
    #[tokio::test]
    async fn the_nodes_of_a_class_are_counted_as_quickly_in_a_large_class() {
        let counting = |nodes: usize| {
            let (context, expectations) = (context(nodes), HashMap::new());
            let start = Instant::now();
            for _ in 0..1_000 {
                let others = context.nodes_of_class(black_box("small"), Some("set-7"), &expectations);
                assert_eq!(others, nodes - nodes / 100);
            }
            start.elapsed()
        };
        let (small, large) = (counting(100), counting(10_000));
        assert!(large < small * 20, "{small:?} for a hundred Nodes, {large:?} for ten thousand");
    }
}
