//! A limit on connections of clients that have not authenticated.
//!
//! A new connection is always accepted. Beyond the limit an open one is evicted: one without a client
//! certificate before one with, then the oldest of the address that has most. So a client that fills the
//! limit from one address evicts its own connections, and a client that authenticates quickly gets in.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Connection limiter. Clones share one limit.
#[derive(Clone, Debug)]
pub struct ConnectionLimiter {
    limit: usize,
    connections: Arc<Mutex<Connections>>,
}

#[derive(Debug, Default)]
struct Connections {
    /// Open connections by number, the oldest first.
    open: BTreeMap<u64, Connection>,
    next: u64,
}

#[derive(Debug)]
struct Connection {
    source: Option<IpAddr>,
    is_authenticated: bool,
    evicted: CancellationToken,
}

/// A connection within the limit, for as long as this permit lives.
#[derive(Debug)]
pub struct ConnectionPermit {
    id: u64,
    evicted: CancellationToken,
    connections: Arc<Mutex<Connections>>,
}

impl ConnectionLimiter {
    /// A limiter of `limit` connections at once.
    pub fn new(limit: usize) -> Self {
        Self { limit, connections: Arc::default() }
    }

    /// Admits a connection from an address; None for a peer without one, such as of a unix socket.
    pub fn admit(&self, address: Option<IpAddr>) -> ConnectionPermit {
        let mut connections = self.connections.lock();
        while connections.open.len() >= self.limit.max(1)
            && let Some(id) = connections.victim()
            && let Some(victim) = connections.open.remove(&id)
        {
            victim.evicted.cancel();
        }
        let id = connections.next;
        connections.next += 1;
        let evicted = CancellationToken::new();
        let connection =
            Connection { source: address.map(source), is_authenticated: false, evicted: evicted.clone() };
        connections.open.insert(id, connection);
        ConnectionPermit { id, evicted, connections: Arc::clone(&self.connections) }
    }
}

impl ConnectionPermit {
    /// Marks the client as authenticated by a verified certificate: other connections are evicted first.
    pub fn authenticate(&self) {
        if let Some(connection) = self.connections.lock().open.get_mut(&self.id) {
            connection.is_authenticated = true;
        }
    }

    /// Token that is cancelled when the connection is evicted and has to be closed.
    pub const fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connections.lock().open.remove(&self.id);
    }
}

impl Connections {
    /// The connection to evict for the next one.
    fn victim(&self) -> Option<u64> {
        let all_authenticated = self.open.values().all(|connection| connection.is_authenticated);
        let candidates = || self.open.iter().filter(|(_, open)| all_authenticated || !open.is_authenticated);
        let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for (_, connection) in candidates() {
            *counts.entry(connection.source).or_default() += 1;
        }
        candidates().min_by_key(|(id, open)| (Reverse(counts.get(&open.source)), **id)).map(|(id, _)| *id)
    }
}

/// The address that counts: for IPv6 its /64 network, since one host may use all of its addresses.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection from 10.0.0.`last`.
    fn admit(limiter: &ConnectionLimiter, last: u8) -> ConnectionPermit {
        limiter.admit(Some(IpAddr::from([10, 0, 0, last])))
    }

    fn is_open(permit: &ConnectionPermit) -> bool {
        !permit.evicted().is_cancelled()
    }

    #[test]
    fn an_address_that_fills_the_limit_displaces_itself() {
        let limiter = ConnectionLimiter::new(8);
        let modest = admit(&limiter, 1);
        let mut attack: Vec<_> = (0..1_000).map(|_| admit(&limiter, 2)).collect();
        assert!(is_open(&modest));
        let open: Vec<bool> = attack.iter().map(is_open).collect();
        assert_eq!(open.iter().filter(|open| **open).count(), 7);
        assert!(open[993..].iter().all(|open| *open), "the oldest made way");
        let late: Vec<_> = (3..6).map(|last| admit(&limiter, last)).collect();
        assert!(is_open(&modest) && late.iter().all(is_open));
        assert_eq!(attack.iter().filter(|permit| is_open(permit)).count(), 4);
        attack.clear();
        // An ended connection frees its place; an evicted one has none.
        let more: Vec<_> = (6..10).map(|last| admit(&limiter, last)).collect();
        assert!(is_open(&modest) && late.iter().chain(&more).all(is_open));
    }

    #[test]
    fn whoever_has_shown_a_certificate_makes_way_last() {
        let limiter = ConnectionLimiter::new(4);
        let known: Vec<_> = (0..3).map(|_| admit(&limiter, 1)).collect();
        known.iter().for_each(ConnectionPermit::authenticate);
        // Each from its own address, as of an attacker with many.
        let unknown: Vec<_> = (2..100).map(|last| admit(&limiter, last)).collect();
        assert!(known.iter().all(is_open));
        assert_eq!(unknown.iter().filter(|permit| is_open(permit)).count(), 1);
        unknown.last().unwrap().authenticate();
        let next = admit(&limiter, 100);
        assert!(
            is_open(&next) && !is_open(&known[0]) && is_open(&known[1]),
            "the oldest of the address with most"
        );
    }

    #[test]
    fn one_host_has_one_network_of_ipv6() {
        let read = |text: &str| source(text.parse().unwrap());
        assert_eq!(read("2001:db8::1"), read("2001:db8::ffff:1"));
        assert_ne!(read("2001:db8::1"), read("2001:db8:0:1::1"));
        assert_eq!(read("::ffff:10.0.0.1"), read("10.0.0.1"));
        assert_ne!(read("10.0.0.1"), read("10.0.0.2"));
    }
}
