//! Observed state of a Node: its provider, its machine as the provider reports it, and the settings of its class.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube_ext::call::call;
use kube_node_api::{NodeClass, NodeClassSpec, names};
use kube_node_cache::NodeView;
use kube_node_planner::{
    machine_backoff::MachineBackoff,
    node::{self, Kubelet, MachineState, Pods},
    revision,
    template::{CurrentTemplate, DesiredTemplate, NodeChange},
};

use super::{NodeController, ReconcileError};
use crate::{
    controllers::machine_spec,
    providers::{
        Existing, MachineId, OUT_OF_RESOURCES, Provider, ProviderError, Renewed, Settings, Stage, Trouble,
    },
};

/// Namespace of Node Leases.
const LEASES: &str = "kube-node-lease";

/// Observed state of one of our Nodes.
pub(super) struct Observed {
    pub(super) node: Arc<NodeView>,
    pub(super) id: MachineId,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) machine: MachineState,
    /// The machine as its provider reports it.
    pub(super) existing: Option<Existing>,
    pub(super) lease_renewed: Option<Timestamp>,
    pub(super) drain_permit: bool,
    pub(super) pods: Pods,
    pub(super) deletion_timeout: Duration,
    /// Delay before the Node gets another machine.
    pub(super) back_off: Option<MachineBackoff>,
    /// Fields that a Node created by hand lacks.
    pub(super) adoption: Option<Adoption>,
    /// Machine spec and settings; None on a leaving Node, unless a restart lost its machine.
    pub(super) request: Option<(revision::ResolvedMachine, Settings)>,
    /// Secret with the credentials of the cluster that hosts the machine.
    pub(super) credentials: Option<String>,
}

/// Fields that a Node created by hand lacks.
pub(super) struct Adoption {
    pub(super) revision: String,
    pub(super) machine: revision::ResolvedMachine,
    pub(super) template: NodeChange,
}

impl Observed {
    /// Obstacle that the machine reports.
    pub(super) fn trouble(&self) -> Option<&Trouble> {
        self.existing.as_ref()?.trouble.as_ref()
    }

    /// Returns true if the process that should run the machine has reported that it has no room.
    pub(super) fn waits_for_room(&self) -> bool {
        let is_full = self.trouble().is_some_and(|trouble| trouble.reason == OUT_OF_RESOURCES);
        is_full && self.node.deleted_at.is_none()
    }

    /// The Node as the planner needs it.
    pub(super) fn node_state(&self) -> node::Node {
        let NodeView { deleted_at, unschedulable, taints, kubelet_version, .. } = &*self.node;
        node::Node {
            deleted_at: *deleted_at,
            finalizer: self.node.has_finalizer(names::FINALIZER_MACHINE) && self.adoption.is_none(),
            cordoned: *unschedulable,
            drain_permit: self.drain_permit,
            volatile: self.provider.is_volatile() && (deleted_at.is_none() || self.request.is_some()),
            back_off: self.back_off.as_ref().map(|backoff| backoff.left),
            taints: taints.clone(),
            kubelet: match kubelet_version {
                None => Kubelet::Silent,
                Some(_) if self.node.is_ready() => Kubelet::Ready,
                Some(_) => Kubelet::NotReady,
            },
            lease_renewed: self.lease_renewed,
        }
    }
}

impl NodeController {
    /// Returns None for a Node that is not ours, and for one that has to wait for a change of something else.
    pub(super) async fn observe(&self, node: Arc<NodeView>) -> Result<Option<Observed>, ReconcileError> {
        let id = MachineId::of(&node);
        let class = node.class().and_then(|name| self.context.classes.get(name));
        let class = class.as_ref().and_then(|own| own.object.as_ref().ok());
        let Some(provider) = self.provider(&node, &id, class.map(|class| &**class)).await? else {
            self.warn_of_missing_class(&node);
            return Ok(None);
        };
        let existing = provider.exists(&id).await?;
        let mut observed = Observed {
            machine: match existing.as_ref().map(|existing| existing.stage) {
                None => MachineState::Absent,
                Some(Stage::Starting | Stage::Up) => MachineState::Exists,
                Some(Stage::Dead) => MachineState::Dead,
                Some(Stage::Leaving) => MachineState::Leaving,
            },
            existing,
            lease_renewed: None,
            drain_permit: node.deleted_at.is_some() && self.has_drain_permit(&node),
            pods: Pods::Unknown,
            deletion_timeout: class
                .and_then(|class| class.spec.deletion_timeout)
                .map_or(Duration::ZERO, |timeout| timeout.0),
            back_off: None,
            adoption: None,
            request: None,
            credentials: class
                .and_then(|class| class.spec.credentials_secret_ref.as_ref())
                .map(|secret| secret.name.clone()),
            provider,
            id,
            node,
        };
        let spec = class.map(|class| &class.spec);
        if observed.node.deleted_at.is_some() {
            observed.pods = self.pods(&observed).await?;
            if observed.machine == MachineState::Absent && observed.provider.is_volatile() {
                let stored = self.stored(&observed.node).await?;
                observed.request = stored.map(|machine| self.request(&observed.node, machine, spec));
            }
            return Ok(Some(observed));
        }
        observed.back_off = self.back_off(&observed);
        observed.lease_renewed = self.lease(&observed.node, observed.existing.as_ref()).await?;
        let revision = observed.node.label(names::LABEL_REVISION).map(str::to_owned);
        let machine = match (revision, class) {
            (Some(revision), _) if observed.node.has_finalizer(names::FINALIZER_MACHINE) => {
                match self.stored(&observed.node).await? {
                    Some(machine) => machine,
                    None => return self.revision_is_gone(observed, &revision).await,
                }
            }
            (_, Some(class)) => {
                let adoption = self.adoption(&observed.node, class).await?;
                observed.adoption.insert(adoption).machine.clone()
            }
            (_, None) => return Ok(None),
        };
        observed.request = Some(self.request(&observed.node, machine, spec));
        Ok(Some(observed))
    }

    /// Delay before the Node gets another machine, after the previous ones ended repeatedly.
    fn back_off(&self, observed: &Observed) -> Option<MachineBackoff> {
        let (uid, now) = (&observed.node.uid, Timestamp::now());
        let mut all = self.back_offs.lock();
        if observed.machine == MachineState::Dead {
            let how = observed.trouble().map(|Trouble { reason, message }| format!("{reason}: {message}"));
            all.ended(uid, how.as_deref().unwrap_or("its provider says no more"), now);
        }
        all.wait(uid, now)
    }

    async fn stored(&self, node: &NodeView) -> Result<Option<revision::ResolvedMachine>, ReconcileError> {
        let stored = machine_spec::stored(&self.context.revisions, node).await?;
        Ok(stored.map(|machine| (*machine).clone()))
    }

    fn request(
        &self,
        node: &NodeView,
        machine: revision::ResolvedMachine,
        class: Option<&NodeClassSpec>,
    ) -> (revision::ResolvedMachine, Settings) {
        let settings = machine_spec::settings(node, &machine, class, &self.context.sets);
        (machine, settings)
    }

    /// The provider that serves a Node; None if a third party does.
    async fn provider(
        &self,
        node: &NodeView,
        id: &MachineId,
        class: Option<&NodeClass>,
    ) -> Result<Option<Arc<dyn Provider>>, ReconcileError> {
        let by_name = |name: &str| self.context.providers.get(name).cloned();
        if let Some(name) = node.label(names::LABEL_NODE_CONTROLLER) {
            return Ok(by_name(name));
        }
        if let Some(class) = class {
            return Ok(by_name(&class.spec.node_controller));
        }
        if !node.has_finalizer(names::FINALIZER_MACHINE) {
            return Ok(None);
        }
        // The labels were removed: the machine itself identifies its provider.
        let mut unknown = None;
        for provider in self.context.providers.values() {
            match provider.exists(id).await {
                Ok(Some(_)) => return Ok(Some(Arc::clone(provider))),
                Ok(None) => {}
                Err(error) => unknown = Some(error),
            }
        }
        if let Some(error) = unknown {
            return Err(error.into());
        }
        // The machine is gone, and only this operator would remove the finalizer. The providerID excludes a
        // third party's Node.
        let made_by = |provider: &Arc<dyn Provider>| {
            let id = self.context.provider_id(provider.name(), &node.name);
            id.is_some() && node.provider_id == id
        };
        let maker = self.context.providers.values().find(|provider| made_by(provider)).cloned();
        if maker.is_none() && node.deleted_at.is_some() {
            let text = format!(
                "its finalizer {} stays, since neither labels nor spec.providerID say whose machine it had: put the label {} back, or take the finalizer off",
                names::FINALIZER_MACHINE,
                names::LABEL_NODE_CONTROLLER
            );
            self.warn(node, "ProviderUnknown", text);
        }
        Ok(maker.filter(|_| node.deleted_at.is_some()))
    }

    /// The fields that a Node created by hand lacks, by its class and set.
    async fn adoption(&self, node: &NodeView, class: &NodeClass) -> Result<Adoption, ReconcileError> {
        let set = node.set().and_then(|set| self.context.sets.get(set));
        let set = set.as_ref().and_then(|set| set.object.as_ref().ok());
        let machine = revision::ResolvedMachine::resolve(
            &class.spec,
            set.and_then(|set| set.spec.class_overrides.as_ref()),
        );
        let current =
            CurrentTemplate { labels: &node.labels, annotations: &node.annotations, taints: &node.taints };
        let template = DesiredTemplate::merge(
            class.spec.template.as_ref(),
            set.and_then(|set| set.spec.template.as_ref()),
        );
        Ok(Adoption {
            revision: self.context.revisions.ensure(class, &machine).await?,
            template: template.change(current).unwrap_or_default(),
            machine,
        })
    }

    fn warn_of_missing_class(&self, node: &NodeView) {
        let Some(class) = node.class() else { return };
        if node.deleted_at.is_none() && self.context.classes.get(class).is_none() {
            let text = format!(
                "there is no NodeClass {class}: create it, or correct the label {}",
                names::LABEL_NODECLASS
            );
            self.warn(node, "ClassNotFound", text);
        }
    }

    async fn revision_is_gone(
        &self,
        observed: Observed,
        revision: &str,
    ) -> Result<Option<Observed>, ReconcileError> {
        let text =
            format!("its revision {revision} is not stored any more: delete the Node to have another made");
        // An existing machine goes on, but a new one cannot be made.
        if observed.machine == MachineState::Exists {
            self.warn(&observed.node, "RevisionNotFound", text);
            return Ok(Some(observed));
        }
        self.report_obstacle(&observed.node, "RevisionNotFound", &text).await?;
        // The set may store the revision again; no event reports that, so the error requeues the Node.
        Err(ProviderError::NotFound(text).into())
    }

    /// Time of the last renewal of the Node's Lease.
    async fn lease(
        &self,
        node: &NodeView,
        existing: Option<&Existing>,
    ) -> Result<Option<Timestamp>, ReconcileError> {
        let Some(existing) = existing else { return Ok(None) };
        match existing.lease {
            Renewed::At(time) => return Ok(Some(time)),
            Renewed::Never => return Ok(None),
            Renewed::Unknown => {}
        }
        // Read only for a Node whose initialization waits for the Lease.
        if !node.is_ready() || !node.taints.iter().any(|t| t.key == names::TAINT_UNINITIALIZED) {
            return Ok(None);
        }
        let leases: Api<Lease> = Api::namespaced(self.context.client.clone(), LEASES);
        let lease = call(format!("read Lease {}", node.name), leases.get_opt(&node.name)).await?;
        Ok(lease.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time).map(|time| time.0))
    }
}
