//! The controllers: each looks at one object at a time: observe → core decides → apply → say how it stands.

mod api;
mod census;
pub mod csr;
mod events;
mod metrics;
pub mod node;
pub mod nodeclass;
pub mod nodeset;
pub mod orders;
mod outstanding;
mod pod_cidrs;
mod policy_parameters;
mod revisions;
mod secrets;
mod turns;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Instant,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_ext::work_queue::Action;
use kube_node_api::{NodeClass, NodeSet};
use kube_node_cache::{Cache, NodeView, Own, PodView};
use kube_node_planner::expectations::Expectations;
use tracing::{Instrument, field::Empty, info_span};

pub use api::ApiError;
pub use census::{Census, Machines};
pub use events::Events;
pub use metrics::Metrics;
pub use outstanding::Outstanding;
pub use pod_cidrs::PodCidrs;
pub use policy_parameters::PolicyParameters;
pub use revisions::{Revisions, RevisionsError};
pub use secrets::Secrets;
pub use turns::Turns;

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
    pub classes: Arc<Cache<Own<NodeClass>>>,
    /// All NodeSets.
    pub sets: Arc<Cache<Own<NodeSet>>>,
    /// What machines are made from.
    pub revisions: Revisions,
    /// What was asked for and is not shown yet.
    pub outstanding: Outstanding,
    /// Whose drain may begin.
    pub turns: Turns,
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
    /// One look of a controller at an object: timed and counted. Each line that it logs names the object, and an id that
    /// no other look has: what belongs together is found by it among the lines of all that goes on at once.
    async fn look(
        &self,
        controller: &'static str,
        object: &str,
        look: impl Future<Output = Action>,
    ) -> Action {
        let id = format!("{:016x}", rand::random::<u64>());
        let span = info_span!("reconcile", controller, object, id, otel.status_code = Empty);
        let start = Instant::now();
        let outcome = look.instrument(span.clone()).await;
        if outcome == Action::Failed {
            span.record("otel.status_code", "ERROR");
        }
        self.metrics.looked(controller, outcome, start.elapsed());
        outcome
    }

    /// Counts the Nodes of a class: those that are shown, whoever made them and whether they leave or not, and those that
    /// its sets have asked for. Nodes of the set `but_for` do not count. `outstanding` is what was asked for by set.
    #[must_use]
    pub fn nodes_of_class(
        &self,
        class: &str,
        but_for: Option<&str>,
        outstanding: &HashMap<String, Expectations>,
    ) -> usize {
        let is_counted = |set: &Own<NodeSet>| Some(set.name()) != but_for;
        let sets = self.sets.group(class);
        let sets = sets.iter().filter(|set| is_counted(set)).filter_map(|set| outstanding.get(set.name()));
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
pub fn reference_to<K: kube::Resource<DynamicType = ()>>(own: &Own<K>) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: own.metadata.name.clone(),
        uid: own.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}
