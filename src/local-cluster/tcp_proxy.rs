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

use anyhow::{anyhow, ensure};
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
pub(super) fn check(addresses: &[IpAddr]) -> anyhow::Result<()> {
    for &address in addresses {
        ensure!(
            !address.is_unspecified() && !address.is_multicast(),
            "{address} is no single address of this machine: give --listen-address one of those that `ip address` shows"
        );
        ensure!(
            address != Ipv4Addr::LOCALHOST,
            "kube-apiserver listens on {address} by itself: leave --listen-address {address} out"
        );
        Probe::bind((address, 0)).map_err(|error| refused(SocketAddr::new(address, 0), error))?;
    }
    Ok(())
}

/// Opens a TCP proxy at each address; each stays open until its handle is dropped.
pub(super) fn open_all(addresses: &[IpAddr], port: u16) -> anyhow::Result<Vec<AbortOnDropHandle<()>>> {
    let open = |&address: &IpAddr| {
        let address = SocketAddr::new(address, port);
        let proxy = TcpProxy::open(address, None).map_err(|error| refused(address, error))?;
        Ok(AbortOnDropHandle::new(tokio::spawn(async move { proxy.serve().await })))
    };
    addresses.iter().map(open).collect()
}

/// Maps a bind error to the reason why an address cannot be listened at.
pub(super) fn refused(address: SocketAddr, error: io::Error) -> anyhow::Error {
    let (ip, port) = (address.ip(), address.port());
    match error.kind() {
        ErrorKind::AddrNotAvailable => anyhow!(
            "{ip} is no address of this machine: give --listen-address one of those that `ip address` shows"
        ),
        ErrorKind::AddrInUse => {
            anyhow!("port {port} is taken at {ip}: choose another --port, or none to get a free one")
        }
        _ => anyhow!(error).context(format!("cannot listen at {address}")),
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
        for (address, message) in [
            ("0.0.0.0", "0.0.0.0 is no single address"),
            ("224.0.0.1", "224.0.0.1 is no single address"),
            ("127.0.0.1", "leave --listen-address 127.0.0.1 out"),
            // Documentation range (TEST-NET-1): no machine has it.
            ("192.0.2.7", "192.0.2.7 is no address of this machine"),
        ] {
            let error = check(&[ip(address)]).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[tokio::test]
    async fn what_goes_in_comes_out_until_the_proxy_is_dropped() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let proxies = open_all(&[ip("127.0.0.2")], port).unwrap();
        let taken = open_all(&[ip("127.0.0.2")], port).unwrap_err().to_string();
        assert!(taken.starts_with(&format!("port {port} is taken at 127.0.0.2")), "{taken}");
        let mut client = TcpStream::connect(("127.0.0.2", port)).await.unwrap();
        client.write_all(b"ask").await.unwrap();
        let (mut inside, _) = server.accept().await.unwrap();
        let mut word = [0; 3];
        inside.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"ask");
        drop(proxies);
        assert_eq!(client.read(&mut word).await.unwrap_or_default(), 0, "it ends");
        assert!(TcpStream::connect(("127.0.0.2", port)).await.is_err(), "nobody listens there any more");
    }
}
