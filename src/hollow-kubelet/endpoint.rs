//! Endpoints: address of each machine, and port of its kubelet if endpoints are served.

use std::{net::Ipv4Addr, sync::Arc};

use kube_node_cache::NodeView;

use super::state::State;

impl State {
    /// Address and port of a machine; a new address is assigned only once all addresses in use are known. If
    /// endpoints are served, the address is the process's and the port the machine's own; otherwise the
    /// address is the machine's own and the port 0.
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

    /// Opens a listener for a machine at the process's address. Returns false if no endpoints are served or
    /// no port is free.
    pub(super) fn open_door(&mut self, uid: &Arc<str>) -> bool {
        let (Some(listeners), Some(machine)) = (&self.listeners, self.machines.get_mut(uid)) else {
            return false;
        };
        let Some(port) = listeners.open(uid, None) else { return false };
        (machine.ip, machine.port) = (Some(listeners.address()), port);
        true
    }

    /// Releases address and port that a Node no longer shows, except an address that its machine still has.
    pub(super) fn left_endpoint(&mut self, view: &NodeView) {
        if let (Some(listeners), Some(port)) = (&self.listeners, self.port_of(view)) {
            listeners.release(port);
        }
        let machine = self.machine_of(&view.name).and_then(|uid| self.machines.get(uid));
        let kept = machine.and_then(|machine| machine.ip);
        if let Some(ip) = address(view.internal_ip.as_deref()).filter(|ip| kept != Some(*ip)) {
            self.addresses.release(ip);
        }
    }

    /// Kubelet port that a Node shows at the address of this process, open or not.
    pub(super) fn port_of(&self, view: &NodeView) -> Option<u16> {
        let here = self.listeners.as_ref()?.address();
        let shown = address(view.internal_ip.as_deref())?;
        Some(view.kubelet_port).filter(|port| *port != 0 && shown == here)
    }

    pub(super) fn close_door(&self, port: u16) {
        if let Some(listeners) = self.listeners.as_ref().filter(|_| port != 0) {
            listeners.close(port);
        }
    }
}

/// Parses the address shown by an object.
pub(super) fn address(text: Option<&str>) -> Option<Ipv4Addr> {
    text?.parse().ok()
}
