//! Who may call: TLS 1.3 alone, and every client has a certificate of the given authority. The files are read again when
//! they change; what does not serve leaves what serves in place.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use jiff::Timestamp;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
    server::{VerifierBuilderError, WebPkiClientVerifier},
    sign::CertifiedKey,
    version::TLS13,
};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The server's certificate, with those between it and its authority (PEM).
    pub cert: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
    /// The authority of the clients (PEM).
    pub client_ca: PathBuf,
}

/// Why certificates do not serve.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file is no PEM of the right kind.
    #[error("{} holds no {wanted} in PEM", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// What it ought to hold.
        wanted: &'static str,
        /// What is wrong.
        #[source]
        source: Option<pem::Error>,
    },
    /// A certificate cannot be read.
    #[error("{} holds a certificate that cannot be read", path.display())]
    Certificate {
        /// Which file.
        path: PathBuf,
    },
    /// A certificate is not valid now.
    #[error("the certificate in {} is valid from {from} to {until} alone: renew it", path.display())]
    NotValid {
        /// Which file.
        path: PathBuf,
        /// Its first moment.
        from: Timestamp,
        /// Its last.
        until: Timestamp,
    },
    /// Certificate and key are of two pairs.
    #[error("the key in {} is not that of the certificate in {}", key.display(), cert.display())]
    Mismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        cert: PathBuf,
        /// What the library says.
        source: rustls::Error,
    },
    /// Clients cannot be known by this authority.
    #[error("{} is no authority to know clients by", path.display())]
    Authority {
        /// Which file.
        path: PathBuf,
        /// What the library says.
        source: VerifierBuilderError,
    },
    /// No configuration comes of it.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
}

impl TlsError {
    /// For metrics.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } => "CertificatesUnreadable",
            Self::Pem { .. } | Self::Certificate { .. } | Self::Authority { .. } | Self::Setup(_) => {
                "CertificatesInvalid"
            }
            Self::NotValid { .. } => "CertificateExpired",
            Self::Mismatch { .. } => "CertificateMismatch",
        }
    }
}

/// What was read.
struct Loaded {
    config: Arc<ServerConfig>,
    content: [u8; 32],
}

/// The certificates as they are now.
pub(super) struct Certificates {
    files: Files,
    now: RwLock<Loaded>,
}

impl Certificates {
    /// Reads them for the first time.
    pub(super) fn load(files: &Files, now: Timestamp) -> Result<Self, TlsError> {
        let loaded = load(files, None, now)?;
        // Without anything before it, there always is something.
        let Some(loaded) = loaded else { return Err(TlsError::Setup(rustls::Error::HandshakeNotComplete)) };
        Ok(Self { files: files.clone(), now: RwLock::new(loaded) })
    }

    /// What the next connection is met with.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner).config)
    }

    /// Reads them again; whether they have changed.
    pub(super) fn reload(&self, now: Timestamp) -> Result<bool, TlsError> {
        let content = self.now.read().unwrap_or_else(PoisonError::into_inner).content;
        let Some(loaded) = load(&self.files, Some(content), now)? else { return Ok(false) };
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(true)
    }
}

/// None where the files are as they were, and the certificate is valid still.
fn load(files: &Files, known: Option<[u8; 32]>, now: Timestamp) -> Result<Option<Loaded>, TlsError> {
    let read =
        |path: &Path| fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source });
    let (cert, key, ca) = (read(&files.cert)?, read(&files.key)?, read(&files.client_ca)?);
    let mut hash = Sha256::new();
    for part in [&cert, &key, &ca] {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    let content: [u8; 32] = hash.finalize().into();
    let chain = certificates(&files.cert, &cert)?;
    if let Some(own) = chain.first() {
        check_validity(&files.cert, own, now)?;
    }
    if known == Some(content) {
        return Ok(None);
    }
    let no_key =
        |source| TlsError::Pem { path: files.key.clone(), wanted: "private key", source: Some(source) };
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(no_key)?;
    let provider = Arc::new(ring::default_provider());
    let mismatch = |source| TlsError::Mismatch { key: files.key.clone(), cert: files.cert.clone(), source };
    CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider).map_err(mismatch)?;
    let mut roots = RootCertStore::empty();
    // While one is replaced by the next, both are there, and the old one may be over.
    let mut over = None;
    for authority in certificates(&files.client_ca, &ca)? {
        match check_validity(&files.client_ca, &authority, now) {
            Ok(()) => roots.add(authority).map_err(TlsError::Setup)?,
            Err(error) => over = Some(error),
        }
    }
    if roots.is_empty()
        && let Some(error) = over
    {
        return Err(error);
    }
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|source| TlsError::Authority { path: files.client_ca.clone(), source })?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Setup)?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .map_err(TlsError::Setup)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A connection is as good as the certificate it was opened with: none comes back without showing one.
    config.send_tls13_tickets = 0;
    Ok(Some(Loaded { config: Arc::new(config), content }))
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let none = |source| TlsError::Pem { path: path.to_owned(), wanted: "certificate", source };
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(|error| none(Some(error)))?;
    if found.is_empty() { Err(none(None)) } else { Ok(found) }
}

fn check_validity(path: &Path, certificate: &CertificateDer<'_>, now: Timestamp) -> Result<(), TlsError> {
    let unreadable = || TlsError::Certificate { path: path.to_owned() };
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| unreadable())?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp());
    let validity = parsed.validity();
    let (from, until) = (at(validity.not_before), at(validity.not_after));
    let (from, until) = (from.map_err(|_| unreadable())?, until.map_err(|_| unreadable())?);
    if from <= now && now <= until {
        Ok(())
    } else {
        Err(TlsError::NotValid { path: path.to_owned(), from, until })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use time::{Duration, OffsetDateTime};

    use super::*;

    /// A certificate that is valid from and until so many days from now, with its key.
    fn pair(from: i64, until: i64) -> (String, String) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = OffsetDateTime::now_utc() + Duration::days(from);
        params.not_after = OffsetDateTime::now_utc() + Duration::days(until);
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn folder(name: &str) -> (PathBuf, Files) {
        let dir = std::env::temp_dir().join(format!("kube-node-tls-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = |file: &str| dir.join(file);
        let files = Files { cert: path("tls.crt"), key: path("tls.key"), client_ca: path("ca.crt") };
        (dir, files)
    }

    fn write(files: &Files, (cert, key): &(String, String), ca: &str) {
        fs::write(&files.cert, cert).unwrap();
        fs::write(&files.key, key).unwrap();
        fs::write(&files.client_ca, ca).unwrap();
    }

    fn reason(files: &Files) -> &'static str {
        Certificates::load(files, Timestamp::now()).err().map_or("serves", |error| error.reason())
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
        let certificates = Certificates::load(&files, Timestamp::now()).unwrap();
        let before = certificates.config();
        assert!(!certificates.reload(Timestamp::now()).unwrap());
        fs::write(&files.cert, &second.0).unwrap();
        assert!(certificates.reload(Timestamp::now()).is_err(), "half of it is there");
        assert!(Arc::ptr_eq(&certificates.config(), &before));
        fs::write(&files.key, &second.1).unwrap();
        assert!(certificates.reload(Timestamp::now()).unwrap());
        assert!(!Arc::ptr_eq(&certificates.config(), &before));
        let later = Timestamp::now() + jiff::SignedDuration::from_hours(48);
        assert!(certificates.reload(later).is_err(), "it has expired meanwhile");
        fs::remove_dir_all(&dir).unwrap();
    }
}
