//! Kubelet of one machine: the machine, and the state of its writers.

use std::sync::Arc;

use jiff::Timestamp;
use kube_node_cache::{Cache, NodeView, PodView};

use super::{
    MachineState, boot, clock::Clock, csi_node::CsiNode, machine::Machine, node_lease::NodeLease,
    node_status::NodeStatus, served_machine::ServedMachine,
};

/// Kubelet of one machine.
pub struct Kubelet {
    pub machine: Machine,
    pub lease: NodeLease,
    pub status: NodeStatus,
    pub csi_node: CsiNode,
}

impl Kubelet {
    /// State of the machine.
    pub fn state(&self, uid: &Arc<str>) -> MachineState {
        let node = Arc::clone(&self.machine.node);
        MachineState { node, uid: Arc::clone(uid), lease_renewed: self.lease.renewed }
    }

    /// The machine as its endpoints show it at `now`; None without a Node, and while it is silent.
    pub fn served(&self, uid: &Arc<str>, pods: &Arc<Cache<PodView>>, now: Clock) -> Option<ServedMachine> {
        let Self { machine, .. } = self;
        let view = machine.view.as_ref().filter(|_| !machine.is_silent(now))?;
        Some(ServedMachine {
            uid: Arc::clone(uid),
            node: Arc::clone(&machine.node),
            shape: Arc::clone(&machine.shape),
            settings: Arc::clone(&machine.settings),
            booted: machine.booted(uid, now).or(view.created).unwrap_or(Timestamp::UNIX_EPOCH),
            pods: Arc::clone(pods),
        })
    }

    /// Takes over what an earlier process left on the Node and on its Lease, last renewed at `renewed`.
    pub fn take_over(&mut self, uid: &str, view: &NodeView, renewed: Option<Timestamp>, now: Clock) {
        let Self { machine, lease, status, .. } = self;
        machine.boot = machine.boot.or_else(|| boot::recorded(view.boot_id.as_deref()));
        // A machine that is silent from the start has recorded no boot ID. Its boot time is the Node's
        // creation, so that the next process to run it computes the same.
        if machine.boot.is_none() && machine.is_silent(now) {
            let booted = view.created.map_or(now.wall, |created| created.min(now.wall));
            machine.boot = Some(boot::first(uid, booted));
        }
        let was_written = view.kubelet_version.is_some();
        if was_written {
            status.take_over(now);
        }
        if was_written || renewed.is_some() {
            *lease = NodeLease::taken_over(renewed);
        }
    }
}
