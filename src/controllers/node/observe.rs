//! Observed state of a Node: its provider, its machine as the provider reports it, and the settings of its class.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube_ext::{call::call, environment, error::chain};
use kube_node_api::{NodeClass, machine_files::MachineSettings, names};
use kube_node_cache::NodeView;
use kube_node_planner::{
    machine_backoff::MachineBackoff,
    node::{self, Kubelet, MachineState, Pods},
    revision::ResolvedMachine,
    template::{DesiredTemplate, NodeChange},
};
use tracing::warn;

use super::{NodeController, Result, slots::Slot};
use crate::{
    RevisionsError, current_template, machine_spec,
    provider::{
        Existing, Known, MachineId, OUT_OF_RESOURCES, Provider, ProviderError, Renewed, Stage, Trouble,
    },
};

/// Namespace of Node Leases.
const LEASES: &str = "kube-node-lease";

/// What a reconciliation finds out with the slot that it has; else the slot that it needs.
pub(super) type Found<T> = std::result::Result<T, Slot>;

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
    /// Fields that the Node lacks.
    pub(super) adoption: Option<Adoption>,
    /// Machine spec and settings; None on a leaving Node, unless a restart lost its machine.
    pub(super) request: Option<(Arc<ResolvedMachine>, MachineSettings)>,
    /// Secret with the credentials of the cluster that hosts the machine.
    pub(super) credentials: Option<String>,
}

/// Fields that a Node created by hand lacks, or one that has lost its finalizer.
pub(super) struct Adoption {
    /// Revision of the machine; None if the machine exists and nobody knows.
    pub(super) revision: Option<String>,
    pub(super) machine: Option<Arc<ResolvedMachine>>,
    pub(super) template: NodeChange,
}

impl Observed {
    /// Obstacle that the machine reports.
    pub(super) fn trouble(&self) -> Option<&Trouble> {
        self.existing.as_ref()?.trouble.as_ref()
    }

    /// Fields of the Node's revision that this release does not know; none on a leaving Node.
    pub(super) fn unknown_fields(&self) -> &[String] {
        let request = self.request.as_ref().filter(|_| self.node.deleted_at.is_none());
        request.map_or(&[], |(machine, _)| &machine.unknown)
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
    /// Finds None for a Node that is not ours, and for one that has to wait for a change of something else.
    pub(super) async fn observe(
        &self,
        node: Arc<NodeView>,
        slot: Option<Slot>,
    ) -> Result<Found<Option<Observed>>> {
        let id = MachineId::of(&node);
        let class = node.class().and_then(|name| self.context.class(name));
        let class = class.as_ref().and_then(|own| own.object.as_ref().ok());
        let provider = match self.provider(&node, &id, class.map(|class| &**class), slot).await? {
            Ok(Some(provider)) => provider,
            Ok(None) => {
                self.warn_of_missing_class(&node);
                return Ok(Ok(None));
            }
            Err(needed) => return Ok(Err(needed)),
        };
        let existing = match self.machine(&*provider, &id, slot).await? {
            Ok(existing) => existing,
            Err(needed) => return Ok(Err(needed)),
        };
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
            credentials: class.and_then(|own| Some(own.spec.credentials_secret_ref.as_ref()?.name.clone())),
            provider,
            id,
            node,
        };
        let is_ours = observed.node.has_finalizer(names::FINALIZER_MACHINE);
        let machine = if observed.node.deleted_at.is_some() {
            observed.pods = self.pods(&observed).await?;
            let is_lost = observed.machine == MachineState::Absent && observed.provider.is_volatile();
            if is_lost { self.readable_machine(&observed.node).await? } else { None }
        } else {
            observed.back_off = self.back_off(&observed);
            observed.lease_renewed = self.lease(&observed).await?;
            match (observed.node.label(names::LABEL_REVISION), class) {
                (Some(revision), _) if is_ours => self.machine_of(&observed, revision).await?,
                (None, _) if is_ours && observed.machine == MachineState::Exists => {
                    let label = names::LABEL_REVISION;
                    let text = format!(
                        "its label {label} is gone, so nobody knows of which revision its machine is: put the label back, or delete the Node"
                    );
                    self.warn(&observed.node, "RevisionNotFound", text);
                    None
                }
                (_, Some(class)) => {
                    let adoption = self.adoption(&observed, class).await?;
                    observed.adoption.insert(adoption).machine.clone()
                }
                (_, None) => return Ok(Ok(None)),
            }
        };
        observed.request = machine.map(|machine| {
            let spec = class.map(|class| &class.spec);
            let settings = machine_spec::settings(&observed.node, &machine, spec, &self.context.sets);
            (machine, settings)
        });
        Ok(Ok(Some(observed)))
    }

    /// State of a machine: from memory, else by a call of its provider. Any slot will do for the call: it is rare.
    pub(super) async fn machine(
        &self,
        provider: &dyn Provider,
        id: &MachineId,
        slot: Option<Slot>,
    ) -> Result<Found<Option<Existing>>, ProviderError> {
        match (provider.known(id)?, Slot::of(provider)) {
            (Known::Machine(existing), _) => Ok(Ok(Some(existing))),
            (Known::Absent, _) => Ok(Ok(None)),
            (Known::Unseen, Some(needed)) if slot.is_none() => Ok(Err(needed)),
            (Known::Unseen, _) => provider.exists(id).await.map(Ok),
        }
    }

    /// Delay before the Node gets another machine, after the previous ones ended repeatedly.
    fn back_off(&self, observed: &Observed) -> Option<MachineBackoff> {
        let (uid, now) = (&observed.node.uid, environment::now());
        let mut all = self.back_offs.lock();
        if observed.machine == MachineState::Dead {
            let how = observed.trouble().map(|Trouble { reason, message }| format!("{reason}: {message}"));
            all.ended(uid, how.as_deref().unwrap_or("its provider says no more"), now);
        }
        all.wait(uid, now)
    }

    /// The provider that serves a Node; None if a third party does.
    async fn provider(
        &self,
        node: &NodeView,
        id: &MachineId,
        class: Option<&NodeClass>,
        slot: Option<Slot>,
    ) -> Result<Found<Option<Arc<dyn Provider>>>> {
        let of_class = class.map(|class| class.spec.node_controller.as_str());
        if let Some(name) = node.label(names::LABEL_NODE_CONTROLLER).or(of_class) {
            return Ok(Ok(self.context.providers.get(name).cloned()));
        }
        if !node.has_finalizer(names::FINALIZER_MACHINE) {
            return Ok(Ok(None));
        }
        // The labels were removed: the machine itself identifies its provider.
        let mut unknown = None;
        for provider in self.context.providers.values() {
            match self.machine(&**provider, id, slot).await {
                Ok(Ok(Some(_))) => return Ok(Ok(Some(Arc::clone(provider)))),
                Ok(Ok(None)) => {}
                Ok(Err(needed)) => return Ok(Err(needed)),
                Err(error) => unknown = Some(error),
            }
        }
        unknown.map_or(Ok(()), Err)?;
        if node.deleted_at.is_none() {
            return Ok(Ok(None));
        }
        // The machine is gone, and only this operator would remove the finalizer. The providerID excludes a
        // third party's Node.
        let made_by = |provider: &Arc<dyn Provider>| {
            let id = self.context.provider_id(provider.name(), &node.name);
            id.is_some() && node.provider_id == id
        };
        let maker = self.context.providers.values().find(|provider| made_by(provider)).cloned();
        if maker.is_none() {
            let text = format!(
                "its finalizer {} stays, since neither labels nor spec.providerID say whose machine it had: put the label {} back, or take the finalizer off",
                names::FINALIZER_MACHINE,
                names::LABEL_NODE_CONTROLLER
            );
            self.warn(node, "ProviderUnknown", text);
        }
        Ok(Ok(maker))
    }

    /// The fields that a Node lacks, by its class and set. A machine that exists stays of the revision that its Node names,
    /// which may be outdated: the newest one is for a machine that has yet to be made.
    async fn adoption(&self, observed: &Observed, class: &NodeClass) -> Result<Adoption> {
        let node = &observed.node;
        let set = node.set().and_then(|set| self.context.sets.get(set)?.object.clone().ok());
        let set = set.as_ref().map(|set| &set.spec);
        let machine = ResolvedMachine::resolve(&class.spec, set.and_then(|set| set.class_overrides.as_ref()));
        let template = set.and_then(|set| set.template.as_ref());
        let template = DesiredTemplate::merge(class.spec.template.as_ref(), template);
        let template = template.change(current_template(node)).unwrap_or_default();
        let stored = self.readable_machine(node).await?;
        if stored.is_some() || observed.machine == MachineState::Exists {
            let revision = node.label(names::LABEL_REVISION).map(str::to_owned);
            return Ok(Adoption { revision, machine: stored, template });
        }
        let revision = Some(self.context.revisions.ensure(class, &machine).await?);
        Ok(Adoption { revision, machine: Some(machine.into()), template })
    }

    fn warn_of_missing_class(&self, node: &NodeView) {
        let Some(class) = node.class() else { return };
        if node.deleted_at.is_none() && self.context.class(class).is_none() {
            let label = names::LABEL_NODECLASS;
            let text = format!("there is no NodeClass {class}: create it, or correct the label {label}");
            self.warn(node, "ClassNotFound", text);
        }
    }

    /// Machine spec of the Node's revision, if this release can read it: one that it cannot read keeps no Node from leaving.
    async fn readable_machine(&self, node: &NodeView) -> Result<Option<Arc<ResolvedMachine>>> {
        match machine_spec::stored(&self.context.revisions, node).await {
            Err(RevisionsError::Unusable(error)) => {
                warn!(error = chain(&*error), "its revision cannot be read");
                Ok(None)
            }
            other => Ok(other?),
        }
    }

    /// Machine spec of a Node. Without one, an error unless the machine exists, which goes on.
    async fn machine_of(&self, observed: &Observed, revision: &str) -> Result<Option<Arc<ResolvedMachine>>> {
        let node = &observed.node;
        let (reason, text) = match machine_spec::stored(&self.context.revisions, node).await {
            Ok(Some(machine)) => return Ok(Some(machine)),
            Ok(None) => (
                "RevisionNotFound",
                format!(
                    "its revision {revision} is not stored any more: delete the Node to have another made"
                ),
            ),
            Err(RevisionsError::Unusable(error)) => ("RevisionNotRead", chain(&*error)),
            Err(error) => return Err(error.into()),
        };
        if observed.machine == MachineState::Exists {
            self.warn(node, reason, text);
            return Ok(None);
        }
        self.report_obstacle(node, reason, &text).await?;
        // The set may store the revision again; no event reports that, so the error requeues the Node.
        Err(ProviderError::NotFound(text).into())
    }

    /// Time of the last renewal of the Node's Lease, by this process's clock.
    async fn lease(&self, observed: &Observed) -> Result<Option<Timestamp>> {
        let node = &observed.node;
        match observed.existing.as_ref().map(|existing| existing.lease) {
            Some(Renewed::At(time)) => return Ok(Some(time)),
            // Read only for a Node whose initialization waits for the Lease.
            Some(Renewed::Unknown)
                if node.is_ready() && node.taints.iter().any(|t| t.key == names::TAINT_UNINITIALIZED) => {}
            _ => {
                self.lease_renewals.forget(&node.uid);
                return Ok(None);
            }
        }
        let leases: Api<Lease> = Api::namespaced(self.context.client.clone(), LEASES);
        let lease = call(format!("read Lease {}", node.name), leases.get_opt(&node.name)).await?;
        let renewed = lease.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time);
        Ok(renewed.map(|time| self.lease_renewals.seen(&node.uid, time.0, environment::now())))
    }
}
