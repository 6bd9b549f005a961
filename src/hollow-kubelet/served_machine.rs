//! Read-only view of the machines: everything that the HTTPS server of the kubelets' endpoints knows of them.

use std::sync::Arc;

use jiff::Timestamp;
use kube_node_api::machine_files::MachineSettings;
use kube_node_cache::{Cache, PodView};

use super::shape::Shape;

/// Machines of this process, as the HTTPS server sees them.
pub trait ServedMachines: Send + Sync {
    /// A machine, by UID; None for one without a Node, and for a silent one, which answers nobody.
    fn get(&self, uid: &str) -> Option<ServedMachine>;

    /// CPU time of `machine` at `now`, in nanoseconds of one core, counted up with its current usage.
    fn cpu_time(&self, machine: &ServedMachine, nano_cores: u64, now: Timestamp) -> u64;
}

/// A machine as its kubelet's endpoints show it.
pub struct ServedMachine {
    /// UID of the Node.
    pub uid: Arc<str>,
    /// Name of the Node.
    pub node: Arc<str>,
    /// Properties shared with other machines.
    pub shape: Arc<Shape>,
    /// Settings of the machine.
    pub settings: Arc<MachineSettings>,
    /// Time of the last boot.
    pub booted: Timestamp,
    /// Pods of all machines.
    pub pods: Arc<Cache<PodView>>,
}

impl ServedMachine {
    /// A pod of the machine, by `namespace/name`.
    pub fn pod(&self, key: &str) -> Option<Arc<PodView>> {
        self.pods.get(key).filter(|pod| pod.node == self.node)
    }
}
