//! A client of the cloud provider's service as cluster-autoscaler is one: with a certificate, over TLS 1.3, from the same .proto.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};

use hyper_util::rt::TokioIo;
use kube_node_controllers::autoscaler::proto::cloud_provider_client::CloudProviderClient;
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    version::TLS13,
};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Error, Uri};

/// Files of one who calls.
pub struct Credentials {
    /// The authority of the server.
    pub ca: Vec<u8>,
    /// Certificate and key, where there are any.
    pub own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Credentials {
    /// Those that `up --autoscaler-server` has made in this folder.
    pub fn of(pki: &Path) -> Self {
        let read = |file: &str| std::fs::read(pki.join(file)).expect("a file of the PKI");
        Self { ca: read("ca.crt"), own: Some((read("client.crt"), read("client.key"))) }
    }
}

/// A TLS configuration of these versions alone.
pub fn config(
    credentials: &Credentials,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&credentials.ca) {
        roots.add(authority.expect("PEM")).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots);
    let mut config = match &credentials.own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>().expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(key).expect("a key");
            builder.with_client_auth_cert(chain, key).expect("a pair")
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// A connection to a port of this machine.
pub async fn connect(port: u16, credentials: &Credentials) -> Result<CloudProviderClient<Channel>, Error> {
    connect_to((Ipv4Addr::LOCALHOST, port).into(), "127.0.0.1", credentials).await
}

/// A connection to a server whose certificate is for `name`.
pub async fn connect_to(
    address: SocketAddr,
    name: &'static str,
    credentials: &Credentials,
) -> Result<CloudProviderClient<Channel>, Error> {
    let connector = TlsConnector::from(config(credentials, &[&TLS13]));
    let tls = tower::service_fn(move |_: Uri| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let name = ServerName::try_from(name).expect("a name");
            std::io::Result::Ok(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    let channel =
        Endpoint::from_static("http://cluster-autoscaler.invalid").connect_with_connector(tls).await?;
    Ok(client(channel))
}

/// A plain connection to a port of this machine.
pub async fn connect_plainly(port: u16) -> Result<CloudProviderClient<Channel>, Error> {
    let plain = tower::service_fn(move |_: Uri| async move {
        std::io::Result::Ok(TokioIo::new(TcpStream::connect(("127.0.0.1", port)).await?))
    });
    let channel =
        Endpoint::from_static("http://cluster-autoscaler.invalid").connect_with_connector(plain).await?;
    Ok(client(channel))
}

/// A plain connection to a unix socket.
pub async fn connect_to_socket(path: &Path) -> Result<CloudProviderClient<Channel>, Error> {
    Ok(client(channel_to_socket(path).await?))
}

/// The same, for whichever service.
pub async fn channel_to_socket(path: &Path) -> Result<Channel, Error> {
    let path = path.to_owned();
    let plain = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { std::io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    Endpoint::from_static("http://cluster-autoscaler.invalid").connect_with_connector(plain).await
}

fn client(channel: Channel) -> CloudProviderClient<Channel> {
    // As much as a client in Go takes.
    CloudProviderClient::new(channel).max_decoding_message_size(4 << 20).max_encoding_message_size(64 << 20)
}
