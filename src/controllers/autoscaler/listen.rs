//! Listener: a port or a unix socket, and the connections of clients that have authenticated. A caller of the same
//! process, such as a simulation, needs neither.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use kube_ext::{
    connection_limiter::ConnectionLimiter,
    environment,
    tls::{self, Certificates},
};
use parking_lot::Mutex;
use scopeguard::ScopeGuard;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener, UnixStream},
    sync::mpsc,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tonic::{service::Routes, transport::server::Connected};
use tracing::{debug, warn};

/// Time limit of a TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Concurrent handshakes. There are one or two cluster-autoscalers; beyond the limit the oldest handshakes
/// are evicted.
const HANDSHAKES: usize = 64;
/// Pause after a failed accept, for example because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listen address.
#[derive(Clone, Debug)]
pub enum Address {
    /// A port.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
    /// Calls inside this process, without a connection.
    InProcess(InProcess),
}

/// The services of a server for callers of the same process.
#[derive(Clone, Debug, Default)]
pub struct InProcess(Arc<Mutex<Option<Routes>>>);

impl InProcess {
    /// The services; None while the server does not run.
    pub fn routes(&self) -> Option<Routes> {
        self.0.lock().clone()
    }

    pub(super) async fn serve(&self, routes: Routes, shutdown: &CancellationToken) {
        let _served = scopeguard::guard(&self.0, |served| *served.lock() = None);
        *self.0.lock() = Some(routes);
        shutdown.cancelled().await;
    }
}

impl Address {
    /// Returns true if only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) | Self::InProcess(_) => true,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::InProcess(_) => f.write_str("this process"),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            let path = Path::new(path);
            let relative = "write a unix socket with its whole path: unix:///run/kube-node/autoscaler.sock";
            return path.is_absolute().then(|| Self::Unix(path.to_owned())).ok_or(relative.to_owned());
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            "write an address and a port, such as 0.0.0.0:8086, or unix:///path/of/socket".to_owned()
        })
    }
}

/// Clients that TLS lets in.
pub(super) struct Clients {
    /// Certificate of the server, and CA of its clients.
    pub(super) certificates: Arc<Certificates>,
    /// Allowed names: a client's certificate must have one of them, since the CA may have signed others.
    pub(super) names: Vec<String>,
}

/// A listener of either kind.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Path of the socket. Removes its file with the listener.
        file: ScopeGuard<PathBuf, fn(PathBuf)>,
    },
}

impl Listener {
    pub(super) async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Address::Unix(path) => {
                remove_stale_socket(path).await?;
                let listener = bind_private(path)?;
                Ok(Self::Unix { listener, file: scopeguard::guard(path.clone(), remove as fn(PathBuf)) })
            }
            Address::InProcess(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The address in use: with port 0, the port that the system chose.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |address| address.to_string())
            }
            Self::Unix { file, .. } => file.display().to_string(),
        }
    }

    async fn accept(&self) -> io::Result<(Connection, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Box::new(stream), Some(address.ip())))
            }
            Self::Unix { listener, .. } => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }

    /// Accepts connections until the receiver is closed. Without `clients` there is no TLS.
    pub(super) async fn run(self, clients: Option<Clients>, to: mpsc::Sender<io::Result<Connection>>) {
        let clients = clients.map(Arc::new);
        let limiter = ConnectionLimiter::new(HANDSHAKES);
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                () = to.closed() => return,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    debug!(%error, "a connection was lost before it was accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let permit = limiter.admit(address);
            let (clients, to) = (clients.clone(), to.clone());
            environment::spawn(async move {
                let handshake = handshake(stream, clients.as_deref());
                let Some(accepted) = permit.evicted().run_until_cancelled(handshake).await else {
                    return debug!("a client made way for others before it said who it is");
                };
                drop(permit);
                match accepted {
                    Ok(connection) => drop(to.send(Ok(connection)).await),
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        warn!(%error, ?address, "a client was not let in");
                    }
                    Err(error) => debug!(%error, "a client was not let in"),
                }
            });
        }
    }
}

fn remove(socket: PathBuf) {
    let _ = std::fs::remove_file(socket);
}

/// A socket that only its owner may open: whoever opens it may resize the cluster. A new socket has the mode of the umask, and may
/// be opened as soon as it is there. So it is made in a private folder, and gets its path with its final mode.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let folder = path.with_file_name(format!(".{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let folder = scopeguard::guard(folder, |folder| drop(std::fs::remove_dir_all(folder)));
    let hidden = folder.join("s");
    let listener = UnixListener::bind(&hidden)?;
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))?;
    // Unlike a rename, fails if another server has the path.
    std::fs::hard_link(&hidden, path)?;
    Ok(listener)
}

/// Removes the file of a socket that has no listener.
async fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket
        && let Err(error) = UnixStream::connect(path).await
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

async fn handshake(stream: Connection, clients: Option<&Clients>) -> io::Result<Connection> {
    let Some(clients) = clients else { return Ok(stream) };
    let (stream, certificate) = clients.certificates.accept(stream, HANDSHAKE_LIMIT).await?;
    let names = certificate.map(|own| tls::names_of(&own)).unwrap_or_default();
    if names.iter().any(|name| clients.names.contains(name)) {
        return Ok(Box::new(stream));
    }
    let (shown, allowed) = (names.join(", "), clients.names.join(", "));
    let why = format!(
        "its certificate is for {shown:?}, and --autoscaler-client-name allows {allowed:?}: name it there, or use the certificate of cluster-autoscaler"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// A byte stream: of a port or a unix socket, with TLS or without.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection.
pub(super) type Connection = Box<dyn Stream>;

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
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

    #[tokio::test]
    async fn nobody_else_may_open_a_socket_at_any_time() {
        let folder = std::env::temp_dir().join(format!("kube-node-socket-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let address = Address::Unix(folder.join("autoscaler.sock"));
        let (path, ended) = (folder.join("autoscaler.sock"), CancellationToken::new());
        let watching = std::thread::spawn({
            let (path, ended) = (path.clone(), ended.clone());
            move || {
                let mut modes = std::collections::BTreeSet::new();
                while !ended.is_cancelled() {
                    modes.extend(
                        std::fs::metadata(&path).ok().map(|found| found.permissions().mode() & 0o777),
                    );
                }
                modes
            }
        });
        for _ in 0..500 {
            let listener = Listener::bind(&address).await.unwrap();
            assert_eq!(listener.address(), path.display().to_string());
            UnixStream::connect(&path).await.unwrap();
        }
        let first = Listener::bind(&address).await.unwrap();
        let second = Listener::bind(&address).await.err().expect("the path is taken");
        assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
        UnixStream::connect(&path).await.unwrap();
        drop(first);
        ended.cancel();
        assert_eq!(watching.join().unwrap(), [0o600].into());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir(&folder).unwrap();
    }

    mod handshakes {
        use std::net::Ipv4Addr;

        use jiff::Timestamp;
        use rustls::{
            ClientConfig, RootCertStore,
            pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        };
        use tokio::{
            io::AsyncReadExt,
            net::{TcpSocket, TcpStream},
            time::{Instant, timeout},
        };
        use tokio_rustls::TlsConnector;

        use super::super::*;
        use kube_ext::tls::{self, Pem, TlsMaterial};
        use local_cluster::pki::AutoscalerCertificates;

        struct Served {
            port: u16,
            connector: TlsConnector,
            connections: mpsc::Receiver<io::Result<Connection>>,
        }

        /// A listener that accepts clients with these names. The connector has the certificate of cluster-autoscaler.
        async fn serve(names: &[&str]) -> Served {
            let all = AutoscalerCertificates::make(&["localhost"]).unwrap();
            let pem = |text: &str| Pem { path: "test".into(), text: text.as_bytes().to_vec() };
            let material = TlsMaterial {
                cert: pem(&all.server.certificate),
                key: pem(&all.server.key),
                clients: tls::ClientAuth::Known(pem(&all.ca)),
                protocol: b"h2",
            };
            let certificates = Arc::new(Certificates::load(material, Timestamp::now()).unwrap());
            let clients = Clients { certificates, names: names.iter().map(ToString::to_string).collect() };
            let listener = Listener::bind(&Address::Tcp((Ipv4Addr::LOCALHOST, 0).into())).await.unwrap();
            let Listener::Tcp(tcp) = &listener else { unreachable!("a port was asked for") };
            let port = tcp.local_addr().unwrap().port();
            let (to, connections) = mpsc::channel(8);
            tokio::spawn(listener.run(Some(clients), to));
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(all.ca.as_bytes()).unwrap()).unwrap();
            let chain = vec![CertificateDer::from_pem_slice(all.client.certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(all.client.key.as_bytes()).unwrap();
            let mut config =
                ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                    .with_safe_default_protocol_versions()
                    .unwrap()
                    .with_root_certificates(roots)
                    .with_client_auth_cert(chain, key)
                    .unwrap();
            config.alpn_protocols = vec![b"h2".to_vec()];
            Served { port, connector: TlsConnector::from(Arc::new(config)), connections }
        }

        async fn connect(port: u16, from: [u8; 4]) -> TcpStream {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((IpAddr::from(from), 0).into()).unwrap();
            socket.connect((Ipv4Addr::LOCALHOST, port).into()).await.unwrap()
        }

        #[tokio::test]
        async fn silent_connections_keep_nobody_out() {
            let mut served = serve(&["cluster-autoscaler"]).await;
            let mut attack = Vec::new();
            for _ in 0..4 * HANDSHAKES {
                attack.push(connect(served.port, [127, 0, 0, 2]).await);
            }
            let begin = Instant::now();
            let name = ServerName::try_from("localhost").unwrap();
            let stream = connect(served.port, [127, 0, 0, 1]).await;
            let shaken = timeout(Duration::from_secs(2), served.connector.connect(name, stream)).await;
            let _client = shaken.expect("a handshake in time").unwrap();
            let let_in = timeout(Duration::from_secs(2), served.connections.recv()).await;
            assert!(matches!(let_in, Ok(Some(Ok(_)))), "after {:?}", begin.elapsed());
        }

        #[tokio::test]
        async fn a_certificate_of_the_ca_is_not_enough_without_an_allowed_name() {
            for (names, is_let_in) in
                [(&["cluster-autoscaler", "other"][..], true), (&["other"], false), (&[], false)]
            {
                let mut served = serve(names).await;
                let stream = connect(served.port, [127, 0, 0, 1]).await;
                let name = ServerName::try_from("localhost").unwrap();
                let mut client = served.connector.connect(name, stream).await.unwrap();
                if is_let_in {
                    assert!(served.connections.recv().await.unwrap().is_ok());
                } else {
                    let ended = timeout(Duration::from_secs(5), client.read_u8()).await.expect("the end");
                    assert!(ended.is_err() && served.connections.try_recv().is_err(), "{names:?}");
                }
            }
        }
    }
}
