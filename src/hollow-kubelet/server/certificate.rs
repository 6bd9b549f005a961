//! Serving certificate of the process, for the kubelets of all its machines: from files, or self-signed, as
//! in a kubelet without a configured certificate.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use kube_ext::tls::{Pem, TlsError};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType};
use time::{Duration, OffsetDateTime};

/// Lifetime of a self-signed certificate.
const LIFETIME: Duration = Duration::days(365);
/// Tolerance for clocks that differ.
const BACKDATE: Duration = Duration::hours(1);
/// Age at which a self-signed certificate is replaced.
const RENEW_AFTER: SignedDuration = SignedDuration::from_hours(300 * 24);

/// Reason for which there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The files cannot be used.
    #[error(transparent)]
    Files(#[from] TlsError),
    /// A certificate could not be created.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
}

/// Source of the certificate.
pub enum CertificateSource {
    /// `tls.crt` and `tls.key` of a folder.
    Folder(PathBuf),
    /// Self-signed certificate for this address.
    Own {
        /// Address in the certificate.
        address: IpAddr,
        /// Last certificate, its key, and the time of its creation.
        made: Option<(Pem, Pem, Timestamp)>,
    },
}

impl CertificateSource {
    /// Creates the source: a folder, or self-signed certificates.
    #[must_use]
    pub fn new(folder: Option<&Path>, address: IpAddr) -> Self {
        folder.map_or(Self::Own { address, made: None }, |folder| Self::Folder(folder.to_owned()))
    }

    /// Current certificate and its key.
    pub fn take(&mut self, now: Timestamp) -> Result<(Pem, Pem), CertificateError> {
        match self {
            Self::Folder(folder) => {
                Ok((Pem::read(&folder.join("tls.crt"))?, Pem::read(&folder.join("tls.key"))?))
            }
            Self::Own { made: Some((cert, key, at)), .. } if now.duration_since(*at) < RENEW_AFTER => {
                Ok((cert.clone(), key.clone()))
            }
            Self::Own { address, made } => {
                let (cert, key) = make(*address)?;
                *made = Some((cert.clone(), key.clone(), now));
                Ok((cert, key))
            }
        }
    }
}

fn make(address: IpAddr) -> Result<(Pem, Pem), rcgen::Error> {
    let mut params = CertificateParams::default();
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - BACKDATE, now + LIFETIME);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "kube-node hollow kubelets");
    params.subject_alt_names = vec![SanType::IpAddress(address)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let cert = params.self_signed(&key)?;
    let own =
        |what: &str, text: String| Pem { path: format!("the {what} made here").into(), text: text.into() };
    Ok((own("certificate", cert.pem()), own("key", key.serialize_pem())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_ext::tls::{Certificates, ClientAuth, TlsMaterial};

    #[test]
    fn one_of_its_own_serves_and_is_made_anew_in_time() {
        let mut source = CertificateSource::new(None, "10.0.0.7".parse().unwrap());
        let now = Timestamp::now();
        let (cert, key) = source.take(now).unwrap();
        assert_eq!(source.take(now).unwrap().0.text, cert.text);
        let material =
            TlsMaterial { cert: cert.clone(), key, clients: ClientAuth::Any(None), protocol: b"http/1.1" };
        Certificates::load(&material, now).unwrap();
        let later = now + SignedDuration::from_hours(301 * 24);
        assert_ne!(source.take(later).unwrap().0.text, cert.text);
        let missing =
            CertificateSource::new(Some(Path::new("/nowhere")), "10.0.0.7".parse().unwrap()).take(now);
        assert!(missing.unwrap_err().to_string().contains("/nowhere/tls.crt"));
    }
}
