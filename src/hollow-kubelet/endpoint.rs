//! Endpoints of machines: the address of each, and the port of its kubelet if endpoints are served.
//!
//! If endpoints are served, all machines have the address of the process and a port each; a machine for which
//! no port is free, and every machine otherwise, has an address of its own and port 0.

use std::{net::Ipv4Addr, sync::Arc};

use kube_node_cache::{Cache, NodeView};

use super::{
    addresses::{Addresses, MACHINES, parse},
    server::ListenerPool,
};

/// Endpoint of a machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Endpoint {
    /// Address, given by the machine spec or assigned here.
    pub ip: Option<Ipv4Addr>,
    /// Port of the kubelet's listener in this process; 0 for none.
    pub port: u16,
}

impl Endpoint {
    /// Address and port; None without an address.
    pub fn get(self) -> Option<(Ipv4Addr, u16)> {
        Some((self.ip?, self.port))
    }

    /// Returns true if the machine has an address of its own.
    pub fn is_unserved(self) -> bool {
        self.ip.is_some() && self.port == 0
    }
}

/// Addresses and listeners of all machines, and the addresses of their pods.
#[derive(Default)]
pub struct Endpoints {
    /// Addresses in use, by machines and by pods.
    pub addresses: Addresses,
    /// Listeners of the kubelets' endpoints; None if no endpoints are served.
    pub listeners: Option<Arc<ListenerPool>>,
}

impl Endpoints {
    /// Marks address and port that a Node shows as used.
    pub fn claim(&mut self, node: &NodeView) {
        if let Some(ip) = machine_ip(node) {
            self.addresses.claim(ip);
        }
        if let Some((listeners, port)) = self.listener_of(node) {
            listeners.claim(port);
        }
    }

    /// Releases address and port that a Node no longer shows, except the address that its machine still has.
    pub fn unclaim(&mut self, node: &NodeView, machine: Option<Endpoint>) {
        if let Some((listeners, port)) = self.listener_of(node) {
            listeners.release(port);
        }
        let current = machine.and_then(|endpoint| endpoint.ip);
        if let Some(ip) = machine_ip(node).filter(|ip| current != Some(*ip)) {
            self.addresses.release(ip);
        }
    }

    /// Gives a machine the endpoint that its Node shows. With its old port the machine needs no status write;
    /// if the port is taken by now, another one is assigned later.
    pub fn restore(&self, uid: &Arc<str>, endpoint: &mut Endpoint, node: &NodeView) {
        if self.listeners.is_none() {
            endpoint.ip = endpoint.ip.or(machine_ip(node));
        } else if let Some((listeners, port)) = self.listener_of(node)
            && let Some(port) = listeners.open(uid, Some(port))
        {
            *endpoint = Endpoint { ip: Some(listeners.address), port };
        }
    }

    /// Address and port of a machine. A machine without them gets them once all addresses in use are known:
    /// when `nodes` is in sync.
    pub fn assign(
        &mut self,
        uid: &Arc<str>,
        endpoint: &mut Endpoint,
        nodes: &Cache<NodeView>,
    ) -> Option<(Ipv4Addr, u16)> {
        if endpoint.ip.is_none() && nodes.in_sync() && !self.open(uid, endpoint) {
            endpoint.ip = self.addresses.for_machine();
        }
        endpoint.get()
    }

    /// Opens a listener for a machine at the process's address. Returns false if no endpoints are served or
    /// no port is free.
    pub fn open(&self, uid: &Arc<str>, endpoint: &mut Endpoint) -> bool {
        let opened = self.listeners.as_ref().and_then(|listeners| {
            Some(Endpoint { ip: Some(listeners.address), port: listeners.open(uid, None)? })
        });
        *endpoint = opened.unwrap_or(*endpoint);
        opened.is_some()
    }

    /// Closes the endpoint of a machine. Its own address stays claimed while `node`, its Node, shows it.
    pub fn close(&mut self, endpoint: &mut Endpoint, node: Option<&NodeView>) {
        let Endpoint { ip, port } = std::mem::take(endpoint);
        let shown = node.and_then(|node| parse(node.internal_ip.as_deref()));
        match (&self.listeners, ip) {
            (Some(listeners), _) if port != 0 => listeners.close(port),
            // An address that was given from outside may be one of a pod as well.
            (_, Some(ip)) if port == 0 && shown != Some(ip) && MACHINES.contains(ip) => {
                self.addresses.release(ip);
            }
            _ => {}
        }
    }

    /// Changes the number of open files reserved for dedicated clients of machines.
    pub fn reserve_files(&self, change: i64) {
        if let Some(listeners) = &self.listeners {
            listeners.reserve_files(change);
        }
    }

    /// Listeners of this process and the port that a Node shows at their address, open or not.
    fn listener_of(&self, node: &NodeView) -> Option<(&ListenerPool, u16)> {
        let listeners = self.listeners.as_deref()?;
        let is_here = parse(node.internal_ip.as_deref()) == Some(listeners.address);
        Some((listeners, node.kubelet_port)).filter(|(_, port)| *port != 0 && is_here)
    }
}

/// Address that a Node shows, if it is one that machines get here.
fn machine_ip(node: &NodeView) -> Option<Ipv4Addr> {
    parse(node.internal_ip.as_deref()).filter(|ip| MACHINES.contains(*ip))
}
