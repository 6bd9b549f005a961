//! Ports of programs that are told their port and cannot report one: those of others, and those that others are told of.
//! Programs of ours listen on port 0 and report it ([`crate::logs::reported_address`]).

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU16, Ordering},
};

/// First port and number of ports: below those of hollow kubelets (from 11000), of clusters (from 20000), and of client
/// connections (from 32768 on Linux), which would take a port between this function and its use.
const RANGE: (u16, u16) = (10_000, 1_000);

/// A port that nobody else in this process is given, and that nobody listens on.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let (first, count) = RANGE;
    // Test binaries that run at once begin at different places.
    let offset = u16::try_from(std::process::id() % u32::from(count)).unwrap();
    (0..count)
        .map(|_| first + (offset + NEXT.fetch_add(1, Ordering::Relaxed) % count) % count)
        .find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok())
        .expect("a port below those of hollow kubelets")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_are_those_of_no_client_connection() {
        let ports = [free_port(), free_port(), free_port()];
        assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2], "{ports:?}");
        assert!(ports.iter().all(|port| (10_000..11_000).contains(port)), "{ports:?}");
    }
}
