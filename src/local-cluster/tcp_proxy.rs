//! TCP proxy to kube-apiserver, which listens on 127.0.0.1 only. A listener at another address of this
//! machine forwards bytes; TLS passes through end to end.
//!
//! The proxy of a real node is bound to the node's link, so that neither the machine's neighbours nor other
//! clusters get in, and lives as long as the link. The proxies of `up --listen-address` ([`open_all`]) are
//! open to every client that reaches the address. They live as long as the supervisor and survive an address
//! that disappears and comes back.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as Probe},
    time::Duration,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

/// Backlog of connections that wait to be accepted.
const BACKLOG: u32 = 1_024;
/// Pause after a failed accept, as when too many connections are open.
const PAUSE: Duration = Duration::from_millis(100);

/// Reason why kube-apiserver cannot be served at an address.
#[derive(Debug, thiserror::Error)]
pub enum TcpProxyError {
    /// The address is a wildcard or multicast address.
    #[error(
        "{0} is no single address of this machine: give --listen-address one of those that `ip address` shows"
    )]
    NotOne(IpAddr),
    /// kube-apiserver itself listens at this address.
    #[error("kube-apiserver listens on {0} by itself: leave --listen-address {0} out")]
    Server(IpAddr),
    /// The address does not belong to this machine.
    #[error("{0} is no address of this machine: give --listen-address one of those that `ip address` shows")]
    NotOurs(IpAddr),
    /// Another process listens at this address and port.
    #[error("port {} is taken at {}: choose another --port, or none to get a free one", .0.port(), .0.ip())]
    Taken(SocketAddr),
    /// The operating system refuses for another reason.
    #[error("cannot listen at {address}")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// An open listener and the address that it forwards to.
#[derive(Debug)]
pub(super) struct TcpProxy {
    listener: TcpListener,
    target: SocketAddr,
}

impl TcpProxy {
    /// Listens at `address`, only on the interface `link` if one is named. The target is the same port of 127.0.0.1.
    pub fn open(address: SocketAddr, link: Option<&str>) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        // Keepalive detects clients that vanish without closing the connection.
        socket.set_keepalive(true)?;
        socket.bind_device(link.map(str::as_bytes))?;
        socket.bind(address)?;
        let target = (Ipv4Addr::LOCALHOST, address.port()).into();
        Ok(Self { listener: socket.listen(BACKLOG)?, target })
    }

    /// Forwards connections until dropped; dropping also closes the open connections.
    pub async fn serve(&self) -> ! {
        let mut passing = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((inside, _)) => drop(passing.spawn(pass_on(inside, self.target))),
                    Err(_) => sleep(PAUSE).await,
                },
                Some(_) = passing.join_next() => {}
            }
        }
    }
}

/// Forwards until one side closes. The client must reconnect after an error.
async fn pass_on(mut inside: TcpStream, target: SocketAddr) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let _ = inside.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let _ = copy_bidirectional(&mut inside, &mut server).await;
}

/// Checks that each address belongs to this machine and that kube-apiserver does not already listen there.
pub(super) fn check(addresses: &[IpAddr]) -> Result<(), TcpProxyError> {
    for &address in addresses {
        if address.is_unspecified() || address.is_multicast() {
            return Err(TcpProxyError::NotOne(address));
        }
        if address == Ipv4Addr::LOCALHOST {
            return Err(TcpProxyError::Server(address));
        }
        Probe::bind((address, 0)).map_err(|source| refused(SocketAddr::new(address, 0), source))?;
    }
    Ok(())
}

/// Opens a TCP proxy at each address; each stays open until its handle is dropped.
pub(super) fn open_all(addresses: &[IpAddr], port: u16) -> Result<Vec<AbortOnDropHandle<()>>, TcpProxyError> {
    let open = |&address: &IpAddr| {
        let address = SocketAddr::new(address, port);
        let door = TcpProxy::open(address, None).map_err(|source| refused(address, source))?;
        let serve = async move {
            door.serve().await;
        };
        Ok(AbortOnDropHandle::new(tokio::spawn(serve)))
    };
    addresses.iter().map(open).collect()
}

/// Maps a bind error to the reason why an address cannot be listened at.
pub(super) fn refused(address: SocketAddr, source: io::Error) -> TcpProxyError {
    match source.kind() {
        ErrorKind::AddrNotAvailable => TcpProxyError::NotOurs(address.ip()),
        ErrorKind::AddrInUse => TcpProxyError::Taken(address),
        _ => TcpProxyError::Refused { address, source },
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_that_do_not_serve_are_named() {
        check(&[ip("127.0.0.2")]).unwrap();
        for (address, says) in [
            ("0.0.0.0", "0.0.0.0 is no single address"),
            ("224.0.0.1", "224.0.0.1 is no single address"),
            ("127.0.0.1", "leave --listen-address 127.0.0.1 out"),
            // Documentation range (TEST-NET-1): no machine has it.
            ("192.0.2.7", "192.0.2.7 is no address of this machine"),
        ] {
            let error = check(&[ip(address)]).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[tokio::test]
    async fn what_goes_in_comes_out_until_the_door_is_dropped() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let doors = open_all(&[ip("127.0.0.2")], port).unwrap();
        let taken = open_all(&[ip("127.0.0.2")], port).unwrap_err();
        assert!(matches!(taken, TcpProxyError::Taken(address) if address.port() == port), "{taken}");
        let mut client = TcpStream::connect(("127.0.0.2", port)).await.unwrap();
        client.write_all(b"ask").await.unwrap();
        let (mut inside, _) = server.accept().await.unwrap();
        let mut word = [0; 3];
        inside.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"ask");
        drop(doors);
        assert_eq!(client.read(&mut word).await.unwrap_or_default(), 0, "it ends");
        assert!(TcpStream::connect(("127.0.0.2", port)).await.is_err(), "nobody listens there any more");
    }
}
