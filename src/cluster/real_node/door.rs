//! The node's way to kube-apiserver: a listener at the host's address on the link that passes bytes on to 127.0.0.1.
//!
//! It listens on the link alone, so neither the machine's neighbours nor other clusters get in, and it lives as long as
//! the link. TLS goes through it from end to end: it sees nothing.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpSocket, TcpStream},
    time::sleep,
};

/// Connections that may wait for their turn.
const BACKLOG: u32 = 1_024;
/// Pause after a connection could not be taken, as when there are too many.
const PAUSE: Duration = Duration::from_millis(100);

/// An open door.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    target: SocketAddrV4,
}

impl Door {
    /// At `host` on the interface `link`, on the port that it leads to.
    pub fn open(link: &str, host: Ipv4Addr, port: u16) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind_device(Some(link.as_bytes()))?;
        socket.bind(SocketAddrV4::new(host, port).into())?;
        let target = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        Ok(Self { listener: socket.listen(BACKLOG)?, target })
    }

    /// Passes on until it is dropped.
    pub async fn serve(&self) -> ! {
        loop {
            match self.listener.accept().await {
                Ok((inside, _)) => drop(tokio::spawn(pass_on(inside, self.target))),
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

/// Until one side has enough; a connection that breaks is the client's to make again.
async fn pass_on(mut inside: TcpStream, target: SocketAddrV4) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let _ = inside.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let _ = copy_bidirectional(&mut inside, &mut server).await;
}
