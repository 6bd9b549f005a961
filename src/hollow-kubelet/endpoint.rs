//! Where machines are reached: the address of each, and the port at which its kubelet is served, where that is.

use std::{net::Ipv4Addr, sync::Arc};

use kube_node_cache::NodeView;

use super::state::State;

impl State {
    /// Address and port of a machine; new ones only when all that are in use are known. Where the kubelets' endpoints are
    /// served, that is the address of the process, with a port of the machine's own; else an address of its own, without.
    pub(super) fn address_of(&mut self, uid: &Arc<str>) -> Option<(Ipv4Addr, u16)> {
        let machine = self.machines.get_mut(uid)?;
        if machine.ip.is_none() && self.node_cache.in_sync() {
            self.open_door(uid);
            let machine = self.machines.get_mut(uid)?;
            machine.ip = machine.ip.or_else(|| self.addresses.for_machine());
        }
        let machine = self.machines.get(uid)?;
        Some((machine.ip?, machine.port))
    }

    /// Gives a machine the address of the process and a port, where kubelets are served and one is left; whether it has.
    pub(super) fn open_door(&mut self, uid: &Arc<str>) -> bool {
        let (Some(doors), Some(machine)) = (&self.doors, self.machines.get_mut(uid)) else { return false };
        let Some(port) = doors.open(uid, None) else { return false };
        (machine.ip, machine.port) = (Some(doors.address()), port);
        true
    }

    /// Address and port that a Node showed are no longer its, unless its machine has that address still.
    pub(super) fn left_endpoint(&mut self, view: &NodeView) {
        if let (Some(doors), Some(port)) = (&self.doors, self.port_of(view)) {
            doors.release(port);
        }
        let machine = self.machine_of(&view.name).and_then(|uid| self.machines.get(uid));
        let kept = machine.and_then(|machine| machine.ip);
        if let Some(ip) = address(view.internal_ip.as_deref()).filter(|ip| kept != Some(*ip)) {
            self.addresses.release(ip);
        }
    }

    /// The port at which a Node shows its kubelet, where that is one of the doors of this process, or would be.
    pub(super) fn port_of(&self, view: &NodeView) -> Option<u16> {
        let here = self.doors.as_ref()?.address();
        let shown = address(view.internal_ip.as_deref())?;
        Some(view.kubelet_port).filter(|port| *port != 0 && shown == here)
    }

    pub(super) fn close_door(&self, port: u16) {
        if let Some(doors) = self.doors.as_ref().filter(|_| port != 0) {
            doors.close(port);
        }
    }
}

/// An address as an object shows it.
pub(super) fn address(text: Option<&str>) -> Option<Ipv4Addr> {
    text?.parse().ok()
}
