//! A further way to kube-apiserver, which listens on 127.0.0.1 alone: a listener at an address of this machine that
//! passes bytes on. TLS goes through it from end to end: it sees nothing.
//!
//! A real node's is bound to the node's link, so that neither the machine's neighbours nor other clusters get in; it
//! lives as long as the link. Those of `up --listen-address` ([`open_all`]) are open to whoever reaches the address; they
//! live as long as the supervisor, and outlive an address that goes and comes back.

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

/// Connections that may wait for their turn.
const BACKLOG: u32 = 1_024;
/// Pause after a connection could not be taken, as when there are too many.
const PAUSE: Duration = Duration::from_millis(100);

/// Why kube-apiserver cannot be reached at an address.
#[derive(Debug, thiserror::Error)]
pub enum TcpProxyError {
    /// It stands for others.
    #[error(
        "{0} is no single address of this machine: give --listen-address one of those that `ip address` shows"
    )]
    NotOne(IpAddr),
    /// kube-apiserver itself is there.
    #[error("kube-apiserver listens on {0} by itself: leave --listen-address {0} out")]
    Server(IpAddr),
    /// Another machine has it, or nobody.
    #[error("{0} is no address of this machine: give --listen-address one of those that `ip address` shows")]
    NotOurs(IpAddr),
    /// Somebody else listens there.
    #[error("port {} is taken at {}: choose another --port, or none to get a free one", .0.port(), .0.ip())]
    Taken(SocketAddr),
    /// The system refuses for another reason.
    #[error("cannot listen at {address}")]
    Refused {
        /// Where.
        address: SocketAddr,
        /// What it says.
        source: io::Error,
    },
}

/// An open door.
#[derive(Debug)]
pub(super) struct TcpProxy {
    listener: TcpListener,
    target: SocketAddr,
}

impl TcpProxy {
    /// At `address`, on the interface `link` alone where one is named; it leads to the same port of 127.0.0.1.
    pub fn open(address: SocketAddr, link: Option<&str>) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        // Whoever goes without a word is found out.
        socket.set_keepalive(true)?;
        socket.bind_device(link.map(str::as_bytes))?;
        socket.bind(address)?;
        let target = (Ipv4Addr::LOCALHOST, address.port()).into();
        Ok(Self { listener: socket.listen(BACKLOG)?, target })
    }

    /// Passes on until it is dropped, and what goes through it with it.
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

/// Until one side has enough; a connection that breaks is the client's to make again.
async fn pass_on(mut inside: TcpStream, target: SocketAddr) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let _ = inside.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let _ = copy_bidirectional(&mut inside, &mut server).await;
}

/// Whether each of these is an address of this machine that kube-apiserver is not at already.
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

/// Doors at these addresses, open until the handles are dropped.
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

/// Why an address cannot be listened at.
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
            // For documentation: nobody's.
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
