//! The door: a port or a unix socket, and what comes through it once it has shown who it is.

use std::{
    fmt, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    pin::Pin,
    str::FromStr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;
use tracing::debug;

use crate::runtime::tls::Certificates;

/// How long a client may take to show its certificate.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Handshakes at once: there is one cluster-autoscaler, perhaps two; whoever else knocks waits.
const HANDSHAKES: usize = 64;
/// After an error of the system, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Whether only this machine reaches it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            let path = Path::new(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path.to_owned()))
            } else {
                Err("write a unix socket with its whole path: unix:///run/kube-node/autoscaler.sock"
                    .to_owned())
            };
        }
        let wanted =
            |_| "write an address and a port, such as 0.0.0.0:8086, or unix:///path/of/socket".to_owned();
        text.parse().map(Self::Tcp).map_err(wanted)
    }
}

/// A listener of either kind.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Held until the listener goes.
        _file: SocketFile,
    },
}

/// The file of a unix socket goes with its listener.
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    pub(super) async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Address::Unix(path) => {
                forget_dead_socket(path).await?;
                let listener = UnixListener::bind(path)?;
                let file = SocketFile(path.clone());
                // Whoever may open it may resize the cluster.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                Ok(Self::Unix { listener, _file: file })
            }
        }
    }

    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix { listener, .. } => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }

    /// Lets connections in until nobody takes them any more.
    pub(super) async fn run(
        self,
        certificates: Option<Arc<Certificates>>,
        to: mpsc::Sender<io::Result<Connection>>,
    ) {
        let room = Arc::new(Semaphore::new(HANDSHAKES));
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                () = to.closed() => return,
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    debug!(%error, "a connection was lost at the door");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
            let acceptor = certificates.as_ref().map(|now| TlsAcceptor::from(now.config()));
            let to = to.clone();
            tokio::spawn(async move {
                let _place = place;
                match timeout(HANDSHAKE_LIMIT, shake_hands(stream, acceptor)).await {
                    Ok(Ok(connection)) => drop(to.send(Ok(connection)).await),
                    Ok(Err(error)) => debug!(%error, "a client was not let in"),
                    Err(_) => debug!("a client did not say who it is"),
                }
            });
        }
    }
}

/// Takes away the file of a socket that nobody listens at.
async fn forget_dead_socket(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket
        && let Err(error) = UnixStream::connect(path).await
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

async fn shake_hands(stream: Stream, acceptor: Option<TlsAcceptor>) -> io::Result<Connection> {
    let Some(acceptor) = acceptor else {
        return Ok(match stream {
            Stream::Tcp(stream) => Connection(Box::new(stream)),
            Stream::Unix(stream) => Connection(Box::new(stream)),
        });
    };
    Ok(match stream {
        Stream::Tcp(stream) => Connection(Box::new(acceptor.accept(stream).await?)),
        Stream::Unix(stream) => Connection(Box::new(acceptor.accept(stream).await?)),
    })
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for T {}

/// A client that is let in.
pub(super) struct Connection(Box<dyn ReadWrite>);

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, local) in [
            ("127.0.0.1:8086", true),
            ("[::1]:8086", true),
            ("0.0.0.0:8086", false),
            ("10.0.0.1:8086", false),
            ("unix:///run/a.sock", true),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.to_string(), address.is_local()), (text.to_owned(), local));
        }
        for text in ["8086", "localhost:8086", "unix://run/a.sock", ""] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
