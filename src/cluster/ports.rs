//! Ports on 127.0.0.1, chosen by themselves, so that clusters run side by side.

use std::net::{Ipv4Addr, TcpListener};

use serde::{Deserialize, Serialize};

/// Below the ports that Linux gives to outgoing connections (32768 and up): such a connection could sit on a port
/// between our choice and the component's start.
const RANGE: std::ops::Range<u16> = 20_000..32_000;
/// Attempts before we believe that no port is free.
const ATTEMPTS: usize = 1_000;

/// One port for each listener of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// kube-apiserver, HTTPS.
    pub apiserver: u16,
    /// etcd for its clients, HTTPS.
    pub etcd: u16,
    /// etcd for its peers, of which there are none.
    pub etcd_peer: u16,
    /// etcd's health and metrics, HTTP.
    pub etcd_metrics: u16,
    /// kube-controller-manager, HTTPS.
    pub controller_manager: u16,
    /// kube-scheduler, HTTPS.
    pub scheduler: u16,
    /// The operator's health and metrics, HTTP.
    pub operator: u16,
}

/// Why ports could not be chosen.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The port that was asked for is in use.
    #[error("port {0} is taken: choose another --port, or none to get a free one")]
    Taken(u16),
    /// Nothing was free.
    #[error("no free port between {} and {} on 127.0.0.1", RANGE.start, RANGE.end)]
    NoneFree,
}

impl Ports {
    /// Chooses ports: `wanted` for kube-apiserver, else those of the last start where still free, else free ones.
    pub fn choose(wanted: Option<u16>, last: Option<Self>) -> Result<Self, PortError> {
        // Held until all are chosen, so that none is given twice.
        let mut held = Vec::new();
        let last = last.unwrap_or_default();
        let apiserver = match wanted {
            Some(port) => {
                held.push(hold(port).ok_or(PortError::Taken(port))?);
                port
            }
            None => keep_or_choose(last.apiserver, &mut held)?,
        };
        Ok(Self {
            apiserver,
            etcd: keep_or_choose(last.etcd, &mut held)?,
            etcd_peer: keep_or_choose(last.etcd_peer, &mut held)?,
            etcd_metrics: keep_or_choose(last.etcd_metrics, &mut held)?,
            controller_manager: keep_or_choose(last.controller_manager, &mut held)?,
            scheduler: keep_or_choose(last.scheduler, &mut held)?,
            operator: keep_or_choose(last.operator, &mut held)?,
        })
    }
}

fn hold(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}

fn keep_or_choose(last: u16, held: &mut Vec<TcpListener>) -> Result<u16, PortError> {
    let random = || rand::random_range(RANGE);
    // 0 is «none yet»: the system would take it for «any».
    let candidates = std::iter::once(last).filter(|&port| port != 0);
    for port in candidates.chain(std::iter::repeat_with(random).take(ATTEMPTS)) {
        if let Some(listener) = hold(port) {
            held.push(listener);
            return Ok(port);
        }
    }
    Err(PortError::NoneFree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_where_free_and_all_different() {
        let first = Ports::choose(None, None).unwrap();
        assert_eq!(Ports::choose(None, Some(first)).unwrap(), first);
        let taken = hold(first.etcd).unwrap();
        let second = Ports::choose(None, Some(first)).unwrap();
        assert_ne!(second.etcd, first.etcd);
        assert_eq!(second.apiserver, first.apiserver);
        assert!(
            matches!(Ports::choose(Some(first.etcd), None), Err(PortError::Taken(port)) if port == first.etcd)
        );
        drop(taken);
    }
}
