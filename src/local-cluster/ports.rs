//! Chooses ports on 127.0.0.1 automatically, so that clusters run side by side.
//!
//! A component listens some seconds after the choice of its port. Until then a reservation, which ends with the process,
//! keeps the port from clusters that start at the same time.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{self, UnixListener},
    },
};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::tcp_proxy;

/// Below Linux's ephemeral ports (32768 and up): an outgoing connection could take an ephemeral port between
/// the choice and the component's start. Above the ports of hollow kubelets, which are served at 127.0.0.1 where this machine has
/// no other address, and could take the port of a component that starts again.
pub const RANGE: std::ops::Range<u16> = 30_000..32_768;
/// Attempts to find a free port.
const ATTEMPTS: usize = 1_000;

/// One port for each listener of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// kube-apiserver, HTTPS; the same port at its further addresses.
    pub apiserver: u16,
    /// etcd clients, HTTPS.
    pub etcd: u16,
    /// etcd peers, HTTPS; the cluster has one member.
    pub etcd_peer: u16,
    /// etcd's health and metrics endpoint, HTTP.
    pub etcd_metrics: u16,
    /// kube-controller-manager, HTTPS.
    pub controller_manager: u16,
    /// kube-scheduler, HTTPS.
    pub scheduler: u16,
    /// The operator's health and metrics endpoint, HTTP.
    pub operator: u16,
    /// The operator's server for cluster-autoscaler if enabled, gRPC over TLS.
    #[serde(default)]
    pub autoscaler: u16,
}

/// Reservations of a cluster's ports, in the abstract namespace of Unix sockets, which lies in the same network namespace.
#[derive(Debug, Default)]
pub struct PortReservations(Vec<UnixListener>);

impl PortReservations {
    /// Returns false if another cluster has reserved the port.
    fn reserve(&mut self, port: u16) -> bool {
        let name = net::SocketAddr::from_abstract_name(format!("kube-node-port-{port}"));
        let reserved = name.and_then(|name| UnixListener::bind_addr(&name));
        reserved.map(|listener| self.0.push(listener)).is_ok()
    }
}

impl Ports {
    /// Chooses ports: `wanted` for kube-apiserver, otherwise the ports of the last start if still free,
    /// otherwise free ones. kube-apiserver's port is also free at the `further` addresses.
    pub fn choose(
        wanted: Option<u16>,
        last: Option<Self>,
        further: &[IpAddr],
    ) -> anyhow::Result<(Self, PortReservations)> {
        let mut reserved = PortReservations::default();
        let last = last.unwrap_or_default();
        let apiserver = match wanted {
            Some(port) => {
                hold(port, further).map_err(|(address, error)| tcp_proxy::refused(address, error))?;
                ensure!(
                    reserved.reserve(port),
                    "another cluster is starting with port {port}: give another --port"
                );
                port
            }
            None => keep_or_choose(last.apiserver, further, &mut reserved)?,
        };
        let mut choose = |last| keep_or_choose(last, &[], &mut reserved);
        let ports = Self {
            apiserver,
            etcd: choose(last.etcd)?,
            etcd_peer: choose(last.etcd_peer)?,
            etcd_metrics: choose(last.etcd_metrics)?,
            controller_manager: choose(last.controller_manager)?,
            scheduler: choose(last.scheduler)?,
            operator: choose(last.operator)?,
            autoscaler: choose(last.autoscaler)?,
        };
        Ok((ports, reserved))
    }
}

/// Binds the port on 127.0.0.1 and at the `further` addresses. The error names the address that failed.
fn hold(port: u16, further: &[IpAddr]) -> Result<Vec<TcpListener>, (SocketAddr, io::Error)> {
    let addresses = std::iter::once(Ipv4Addr::LOCALHOST.into()).chain(further.iter().copied());
    let listen = |address| TcpListener::bind(address).map_err(|error| (address, error));
    addresses.map(|address| listen(SocketAddr::new(address, port))).collect()
}

fn keep_or_choose(last: u16, further: &[IpAddr], reserved: &mut PortReservations) -> anyhow::Result<u16> {
    let random = || rand::random_range(RANGE);
    // 0 means that no port was chosen yet; bind would take it as any port.
    let last = std::iter::once(last).filter(|&port| port != 0);
    let mut candidates = last.chain(std::iter::repeat_with(random).take(ATTEMPTS));
    let free = candidates.find(|&port| hold(port, further).is_ok() && reserved.reserve(port));
    free.with_context(|| format!("no free port between {} and {} on 127.0.0.1", RANGE.start, RANGE.end))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Held by a test that expects free ports to stay free.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Returns true if `holds` does within a second. A process that another test starts has copies of this
    /// process's listeners until it executes its program, so that any port can be taken for an instant.
    #[expect(clippy::disallowed_methods, reason = "there is no runtime whose thread could block")]
    fn soon(holds: impl Fn() -> bool) -> bool {
        (0..100).any(|_| {
            let held = holds();
            if !held {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            held
        })
    }

    fn soon_held(port: u16, address: IpAddr) -> TcpListener {
        let listener = std::cell::OnceCell::new();
        assert!(soon(|| TcpListener::bind((address, port)).is_ok_and(|held| listener.set(held).is_ok())));
        listener.into_inner().unwrap()
    }

    fn again(last: Ports, further: &[IpAddr]) -> Ports {
        Ports::choose(None, Some(last), further).unwrap().0
    }

    fn is_refused(port: u16, further: &[IpAddr], address: &str) -> bool {
        let error = Ports::choose(Some(port), None, further).unwrap_err();
        error.to_string().starts_with(&format!("port {port} is taken at {address}: "))
    }

    #[test]
    fn kept_where_free_and_all_different() {
        let _alone = ALONE.lock();
        let (first, reserved) = Ports::choose(None, None, &[]).unwrap();
        // As another cluster that starts at the same time.
        assert_ne!(again(first, &[]).scheduler, first.scheduler);
        let wanted = Ports::choose(Some(first.apiserver), None, &[]).unwrap_err().to_string();
        assert_eq!(
            wanted,
            format!("another cluster is starting with port {}: give another --port", first.apiserver)
        );
        drop(reserved);
        assert!(soon(|| again(first, &[]) == first));
        let taken = soon_held(first.etcd, IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_ne!(again(first, &[]).etcd, first.etcd);
        assert!(soon(|| again(first, &[]).apiserver == first.apiserver));
        assert!(is_refused(first.etcd, &[], "127.0.0.1"));
        drop(taken);
    }

    #[test]
    fn free_at_every_address() {
        let _alone = ALONE.lock();
        let further = [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3))];
        let (first, _) = Ports::choose(None, None, &further).unwrap();
        let taken = soon_held(first.apiserver, further[0]);
        assert!(soon(|| again(first, &[]).apiserver == first.apiserver));
        assert_ne!(again(first, &further).apiserver, first.apiserver);
        assert!(soon(|| is_refused(first.apiserver, &further, "127.0.0.3")));
        drop(taken);
    }
}
