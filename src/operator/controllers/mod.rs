//! The controllers: each reconciles one object at a time: observe → plan → apply → status.

mod api;
pub mod csr;
mod drain_permits;
mod events;
mod expectations;
mod inventory;
pub mod machine_spec;
mod metrics;
pub mod node;
pub mod nodeclass;
pub mod nodeset;
mod pod_cidrs;
mod policy_parameters;
mod revisions;
mod secrets;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Instant,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_ext::work_queue::Action;
use kube_node_api::{NodeClass, NodeSet};
use kube_node_cache::{Cache, CustomObject, NodeView, PodView};
use kube_node_planner::expectations::Expectations;
use tracing::{Instrument, field::Empty, info_span};

pub use api::ApiError;
pub use drain_permits::DrainPermits;
pub use events::Events;
pub use expectations::ExpectationStore;
pub use inventory::{InventoryCollector, Machines};
pub use metrics::Metrics;
pub use pod_cidrs::PodCidrs;
pub use policy_parameters::PolicyParameters;
pub use revisions::{Revisions, RevisionsError};
pub use secrets::Secrets;

use crate::providers::Provider;

/// What the controllers share.
pub struct Context {
    /// Client of the operator's own identity.
    pub client: Client,
    /// All Nodes.
    pub nodes: Arc<Cache<NodeView>>,
    /// All pods that are bound to a Node.
    pub pods: Arc<Cache<PodView>>,
    /// All NodeClasses.
    pub classes: Arc<Cache<CustomObject<NodeClass>>>,
    /// All NodeSets.
    pub sets: Arc<Cache<CustomObject<NodeSet>>>,
    /// What machines are made from.
    pub revisions: Revisions,
    /// What was asked for and is not shown yet.
    pub expectations: ExpectationStore,
    /// Whose drain may begin.
    pub drain_permits: DrainPermits,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub metrics: Metrics,
    /// Providers by the name that a class calls them.
    pub providers: BTreeMap<&'static str, Arc<dyn Provider>>,
    /// Who gives new Nodes their `spec.podCIDR`; None where others do.
    pub pod_cidrs: Option<Arc<PodCidrs>>,
    /// How `spec.providerID` of a new Node begins.
    pub provider_id_prefix: ProviderIdPrefix,
}

/// How `spec.providerID` of a new Node begins, before `://<node name>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProviderIdPrefix {
    /// The provider's name.
    #[default]
    Provider,
    /// This text.
    Text(String),
    /// It is left to somebody else: beside a cloud-controller-manager, which deletes Nodes whose providerID it does
    /// not know.
    None,
}

impl Context {
    /// One reconciliation of an object by a controller: timed and counted. Each line that it logs names the object, and an id that
    /// no other reconciliation has: what belongs together is found by it among the lines of all that goes on at once.
    async fn reconcile(
        &self,
        controller: &'static str,
        object: &str,
        reconcile: impl Future<Output = Action>,
    ) -> Action {
        let id = format!("{:016x}", rand::random::<u64>());
        let span = info_span!("reconcile", controller, object, id, otel.status_code = Empty);
        let start = Instant::now();
        let outcome = reconcile.instrument(span.clone()).await;
        if outcome == Action::Failed {
            span.record("otel.status_code", "ERROR");
        }
        self.metrics.reconciled(controller, outcome, start.elapsed());
        outcome
    }

    /// Counts the Nodes of a class: those that are shown, whoever made them and whether they leave or not, and those that
    /// its sets have asked for. Nodes of the set `but_for` do not count. `expectations` is what was asked for by set.
    #[must_use]
    pub fn nodes_of_class(
        &self,
        class: &str,
        but_for: Option<&str>,
        expectations: &HashMap<String, Expectations>,
    ) -> usize {
        let is_counted = |set: &CustomObject<NodeSet>| Some(set.name()) != but_for;
        let sets = self.sets.group(class);
        let sets = sets.iter().filter(|set| is_counted(set)).filter_map(|set| expectations.get(set.name()));
        let coming = sets.flat_map(Expectations::creations).filter(|name| self.nodes.get(name).is_none());
        let shown =
            |node: &NodeView| node.class() == Some(class) && (but_for.is_none() || node.set() != but_for);
        coming.count() + self.nodes.count(shown)
    }

    /// The providerID of a Node; None where nobody here knows it.
    #[must_use]
    pub fn provider_id(&self, provider: &str, node: &str) -> Option<String> {
        let provider = self.providers.get(provider)?;
        match &self.provider_id_prefix {
            ProviderIdPrefix::Provider => Some(format!("{}://{node}", provider.name())),
            ProviderIdPrefix::Text(prefix) => Some(format!("{prefix}://{node}")),
            ProviderIdPrefix::None => None,
        }
    }
}

/// A Node, as events name it.
#[must_use]
pub fn reference_to_node(node: &NodeView) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.name.to_string()),
        // kubectl describe node looks for events by the name in the place of the UID, as kubelets write them.
        uid: Some(node.name.to_string()),
        ..ObjectReference::default()
    }
}

/// An object of ours, as events name it.
#[must_use]
pub fn reference_to<K: kube::Resource<DynamicType = ()>>(own: &CustomObject<K>) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: own.metadata.name.clone(),
        uid: own.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}
