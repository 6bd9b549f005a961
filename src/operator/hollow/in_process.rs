//! Machines in this process, each an entry of its hollow kubelet. Some have a [dedicated
//! identity](super::dedicated_identity).
//!
//! Machines live as long as the process. The next process creates them again from the same Nodes; state that
//! must survive (boot, addresses) is stored on the Node.

use std::{collections::BTreeSet, sync::Arc};

use futures::{StreamExt, stream};
use hollow_kubelet::{Hollow, MachineSpec, capacity, kubelet_watches::Meter};
use kube_node_api::machine_files::MachineSettings;
use kube_node_cache::{Cache, NodeView};
use kube_node_controllers::provider::{Existing, MachineId, MachineRequest, ProviderError, Renewed, Stage};
use machine_identity::BootstrapClient;
use prometheus::Registry;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::{dedicated_identity::DedicatedIdentities, slots::Slots};

/// Machines in this process.
#[derive(Clone)]
pub struct InProcess {
    hollow: Hollow,
    dedicated: Arc<DedicatedIdentities>,
    slots: Arc<Slots>,
    /// Kubelet version of machines whose class names none.
    kubelet_version: Arc<str>,
}

impl InProcess {
    /// At most `max_machines` machines, run by `hollow`, with kubelets of `kubelet_version` unless their class names another.
    /// Those with a dedicated identity obtain it by `bootstrap`. `nodes` must be filled by a watch.
    pub fn register(
        hollow: Hollow,
        bootstrap: BootstrapClient,
        (max_machines, kubelet_version): (usize, &str),
        nodes: &Cache<NodeView>,
        registry: &Registry,
    ) -> Result<Self, prometheus::Error> {
        let dedicated = DedicatedIdentities::new(hollow.clone(), bootstrap, Meter::new(registry)?);
        let slots = Slots::register(max_machines, nodes, registry)?;
        Ok(Self { hollow, dedicated, slots, kubelet_version: kubelet_version.into() })
    }

    /// UID of the machine of a Node, by the Node's name.
    pub fn machine_of(&self, node: &str) -> Option<Arc<str>> {
        self.hollow.machine_of(node).or_else(|| self.dedicated.machine_of(node))
    }

    /// State of a machine; None if it does not exist. Its UID alone is not enough: whoever names another Node with it means something
    /// else.
    pub fn get(&self, id: &MachineId) -> Option<Existing> {
        let dedicated = self.dedicated.get(id);
        let running =
            self.hollow.get(&id.uid).filter(|machine| machine.node == id.node).map(|machine| Existing {
                stage: Stage::Up,
                lease: machine.lease_renewed.map_or(Renewed::Never, Renewed::At),
                trouble: None,
                last_end: None,
            });
        running.or(dedicated)
    }

    /// Creates a machine if there is room. An existing one is left as it is.
    pub fn create(&self, request: &MachineRequest) -> Result<(), ProviderError> {
        let MachineId { node, uid } = request.id.clone();
        let spec = MachineSpec::new(request.shape(&self.kubelet_version)?, None, request.settings.clone());
        let spec = MachineSpec { node, uid, ..spec };
        if request.machine.load().is_some() {
            self.slots.acquire(&request.id, capacity::DEDICATED)?;
            self.dedicated.create(spec);
        } else {
            self.slots.acquire(&request.id, 1)?;
            self.hollow.create(spec, None);
        }
        Ok(())
    }

    /// Updates the settings of a machine.
    pub fn update(&self, uid: &str, settings: &MachineSettings) {
        self.dedicated.update(uid, settings);
        self.hollow.update(uid, settings.clone());
    }

    /// Deletes a machine at once.
    pub fn delete(&self, uid: &str) {
        // First the part that would create it again.
        self.dedicated.delete(uid);
        self.hollow.delete(uid);
        self.slots.release(uid);
    }

    /// Forgets a machine that waited for room and is created elsewhere now.
    pub fn forget(&self, uid: &str) {
        self.slots.forget(uid);
    }

    /// All machines.
    pub fn list(&self) -> Vec<MachineId> {
        let running = self.hollow.list().into_iter().map(machine_id);
        running.chain(self.dedicated.list()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Number of machines.
    pub fn count(&self) -> usize {
        self.slots.count()
    }

    /// Machines that came, went, met an obstacle, or have room now.
    pub fn watch(&self) -> stream::BoxStream<'static, MachineId> {
        let running = UnboundedReceiverStream::new(self.hollow.watch()).map(machine_id).boxed();
        stream::select_all([running, self.dedicated.watchers.watch(), self.slots.watchers.watch()]).boxed()
    }
}

fn machine_id(machine: hollow_kubelet::MachineState) -> MachineId {
    MachineId { uid: machine.uid, node: machine.node }
}
