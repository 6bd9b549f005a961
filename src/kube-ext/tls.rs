//! Server TLS: TLS 1.3 only, with clients of a given CA. Changed certificates are loaded
//! again; unusable ones leave the current configuration in place.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
pub use tokio_rustls::server::TlsStream;
use tower::BoxError;
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, Validity, X509Certificate},
};

/// Paths of the certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Server certificate, with its intermediate certificates (PEM).
    pub cert: PathBuf,
    /// Private key of the server (PEM).
    pub key: PathBuf,
    /// CA of the clients (PEM).
    pub client_ca: PathBuf,
}

/// Unusable certificates.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct TlsError {
    reason: &'static str,
    message: String,
    source: Option<BoxError>,
}

impl TlsError {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message, source: None }
    }

    fn invalid(message: String) -> Self {
        Self::new("CertificatesInvalid", message)
    }

    fn because(self, source: impl Into<BoxError>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// Reason, as a metric label.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }
}

/// A PEM file, or its content from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pem {
    /// Name of the file in messages.
    pub path: PathBuf,
    /// Content.
    pub text: Vec<u8>,
}

impl Pem {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, TlsError> {
        let text = fs::read(path).map_err(|source| {
            TlsError::new("CertificatesUnreadable", format!("cannot read {}", path.display())).because(source)
        })?;
        Ok(Self { path: path.to_owned(), text })
    }
}

/// Client authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// Clients need a certificate of this CA.
    Known(Pem),
    /// Any client is admitted; a certificate it presents must be of this CA. None: no
    /// certificate is requested.
    Any(Option<Pem>),
}

/// Certificates, client authentication and protocol of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsMaterial {
    /// Server certificate, with its intermediate certificates.
    pub cert: Pem,
    /// Private key of the server.
    pub key: Pem,
    /// Client authentication.
    pub clients: ClientAuth,
    /// ALPN name of the protocol.
    pub protocol: &'static [u8],
}

impl TlsFiles {
    /// Reads the files.
    pub fn read(&self) -> Result<TlsMaterial, TlsError> {
        Ok(TlsMaterial {
            cert: Pem::read(&self.cert)?,
            key: Pem::read(&self.key)?,
            clients: ClientAuth::Known(Pem::read(&self.client_ca)?),
            protocol: b"h2",
        })
    }
}

/// Current TLS configuration of a server, reloadable, and the material that it was made of.
pub struct Certificates(RwLock<(TlsMaterial, Arc<ServerConfig>)>);

impl Certificates {
    /// Loads the certificates for the first time.
    pub fn load(material: TlsMaterial, now: Timestamp) -> Result<Self, TlsError> {
        let config = material.config(now)?;
        Ok(Self(RwLock::new((material, config))))
    }

    /// Configuration for the next connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().1)
    }

    /// TLS handshake with a client, within a time limit. Returns the client's certificate too, if it shows one.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        limit: Duration,
    ) -> io::Result<(TlsStream<S>, Option<CertificateDer<'static>>)> {
        let stream = timeout(limit, TlsAcceptor::from(self.config()).accept(stream)).await??;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate.map(|own| own.clone().into_owned());
        Ok((stream, certificate))
    }

    /// Loads the certificates again. Returns true if they have changed.
    pub fn reload(&self, material: TlsMaterial, now: Timestamp) -> Result<bool, TlsError> {
        if self.0.read().0 == material {
            // Certificates that have not changed may have expired.
            return material.chain(now).map(|_| false);
        }
        let config = material.config(now)?;
        *self.0.write() = (material, config);
        Ok(true)
    }
}

/// Names in a certificate (DER): common names, DNS names and URIs. Empty if the certificate cannot be read.
pub fn names_of(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|names| &names.value.general_names);
    let alternative = alternative.filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some(*name),
        _ => None,
    });
    common.chain(alternative).map(ToOwned::to_owned).collect()
}

impl TlsMaterial {
    /// The server's certificate, if it is valid, with its intermediate certificates.
    fn chain(&self, now: Timestamp) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain = certificates(&self.cert)?;
        chain.first().map_or(Ok(()), |own| check_validity(&self.cert.path, own, now))?;
        Ok(chain)
    }

    fn config(&self, now: Timestamp) -> Result<Arc<ServerConfig>, TlsError> {
        let Self { cert, key, clients, protocol } = self;
        let chain = self.chain(now)?;
        let private = PrivateKeyDer::from_pem_slice(&key.text)
            .map_err(|source| holds_no(&key.path, "private key").because(source))?;
        let (client_ca, is_optional) = match clients {
            ClientAuth::Known(ca) => (Some(ca), false),
            ClientAuth::Any(ca) => (ca.as_ref(), true),
        };
        let config = ServerConfig::builder_with_protocol_versions(&[&TLS13]);
        let config = match client_ca {
            None => config.with_no_client_auth(),
            Some(ca) => {
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots(ca, now)?));
                let verifier = if is_optional { verifier.allow_unauthenticated() } else { verifier };
                let verifier = verifier.build().map_err(|source| {
                    let message = format!("{} is no authority to know clients by", ca.path.display());
                    TlsError::invalid(message).because(source)
                })?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let mut config = config.with_single_cert(chain, private).map_err(|source| {
            let (key, cert) = (key.path.display(), cert.path.display());
            let message = format!("the key in {key} is not that of the certificate in {cert}");
            TlsError::new("CertificateMismatch", message).because(source)
        })?;
        config.alpn_protocols = vec![protocol.to_vec()];
        // No session tickets: a resumed connection would not present its client certificate again.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// Valid certificates of a CA. During a rotation the old and the new one are both present, and the old one may
/// have expired.
fn roots(ca: &Pem, now: Timestamp) -> Result<RootCertStore, TlsError> {
    let (mut roots, mut expired) = (RootCertStore::empty(), None);
    for certificate in certificates(ca)? {
        match check_validity(&ca.path, &certificate, now) {
            Ok(()) => roots
                .add(certificate)
                .map_err(|source| TlsError::invalid("TLS cannot be set up".to_owned()).because(source))?,
            Err(error) => expired = Some(error),
        }
    }
    match expired {
        Some(error) if roots.is_empty() => Err(error),
        _ => Ok(roots),
    }
}

/// The certificates of a file: at least one.
fn certificates(Pem { path, text }: &Pem) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|source| holds_no(path, "certificate").because(source))?;
    if found.is_empty() { Err(holds_no(path, "certificate")) } else { Ok(found) }
}

fn holds_no(path: &Path, content: &str) -> TlsError {
    TlsError::invalid(format!("{} holds no {content} in PEM", path.display()))
}

fn check_validity(path: &Path, certificate: &CertificateDer<'_>, now: Timestamp) -> Result<(), TlsError> {
    let path = path.display();
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|source| {
        TlsError::invalid(format!("{path} holds a certificate that cannot be read")).because(source)
    })?;
    let Validity { not_before, not_after } = parsed.validity();
    if (not_before.timestamp()..=not_after.timestamp()).contains(&now.as_second()) {
        return Ok(());
    }
    let message =
        format!("the certificate in {path} is valid from {not_before} to {not_after} alone: renew it");
    Err(TlsError::new("CertificateExpired", message))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use time::{Duration, OffsetDateTime};

    use super::*;

    /// A certificate with its key, valid from and until this many days from now.
    fn pair(from: i64, until: i64) -> (String, String) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = OffsetDateTime::now_utc() + Duration::days(from);
        params.not_after = OffsetDateTime::now_utc() + Duration::days(until);
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn folder(name: &str) -> (PathBuf, TlsFiles) {
        let dir = std::env::temp_dir().join(format!("kube-node-tls-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = |file: &str| dir.join(file);
        let files = TlsFiles { cert: path("tls.crt"), key: path("tls.key"), client_ca: path("ca.crt") };
        (dir, files)
    }

    fn write(files: &TlsFiles, (cert, key): &(String, String), ca: &str) {
        fs::write(&files.cert, cert).unwrap();
        fs::write(&files.key, key).unwrap();
        fs::write(&files.client_ca, ca).unwrap();
    }

    fn reason(files: &TlsFiles) -> &'static str {
        let loaded = files.read().and_then(|material| Certificates::load(material, Timestamp::now()));
        loaded.err().map_or("serves", |error| error.reason())
    }

    #[test]
    fn what_does_not_serve_is_named() {
        let (dir, files) = folder("named");
        let (good, other) = (pair(-1, 1), pair(-1, 1));
        assert_eq!(reason(&files), "CertificatesUnreadable");
        write(&files, &good, &other.0);
        assert_eq!(reason(&files), "serves");
        for (from, until) in [(-2, -1), (1, 2)] {
            write(&files, &pair(from, until), &other.0);
            assert_eq!(reason(&files), "CertificateExpired");
        }
        write(&files, &(good.0.clone(), other.1.clone()), &other.0);
        assert_eq!(reason(&files), "CertificateMismatch");
        write(&files, &(good.0.clone(), "nonsense".to_owned()), &other.0);
        assert_eq!(reason(&files), "CertificatesInvalid");
        write(&files, &good, "");
        assert_eq!(reason(&files), "CertificatesInvalid");
        write(&files, &good, &pair(-2, -1).0);
        assert_eq!(reason(&files), "CertificateExpired");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_changes_is_read_again_and_what_is_broken_is_not_taken() {
        let (dir, files) = folder("changed");
        let (first, second, ca) = (pair(-1, 1), pair(-1, 1), pair(-1, 1).0);
        write(&files, &first, &ca);
        let certificates = Certificates::load(files.read().unwrap(), Timestamp::now()).unwrap();
        let before = certificates.config();
        assert!(!certificates.reload(files.read().unwrap(), Timestamp::now()).unwrap());
        fs::write(&files.cert, &second.0).unwrap();
        assert!(certificates.reload(files.read().unwrap(), Timestamp::now()).is_err(), "half of it is there");
        assert!(Arc::ptr_eq(&certificates.config(), &before));
        fs::write(&files.key, &second.1).unwrap();
        assert!(certificates.reload(files.read().unwrap(), Timestamp::now()).unwrap());
        assert!(!Arc::ptr_eq(&certificates.config(), &before));
        let later = Timestamp::now() + jiff::SignedDuration::from_hours(48);
        assert!(certificates.reload(files.read().unwrap(), later).is_err(), "it has expired meanwhile");
        fs::remove_dir_all(&dir).unwrap();
    }
}
