//! Serving certificate of the process, for the kubelets of all its machines: from files, or self-signed, as
//! in a kubelet without a configured certificate.

use std::{net::IpAddr, path::PathBuf};

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use kube_ext::tls::Pem;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType};
use time::{Duration, OffsetDateTime};

/// Lifetime of a self-signed certificate.
const LIFETIME: Duration = Duration::days(365);
/// Tolerance for clocks that differ.
const BACKDATE: Duration = Duration::hours(1);
/// Age at which a self-signed certificate is replaced.
const RENEW_AFTER: SignedDuration = SignedDuration::from_hours(300 * 24);

/// Source of the certificate.
pub struct CertificateSource {
    /// Folder of `tls.crt` and `tls.key`; None for a self-signed certificate.
    folder: Option<PathBuf>,
    /// Address in a self-signed certificate.
    address: IpAddr,
    /// Last self-signed certificate, its key, and the time of its creation.
    self_signed: Option<(Pem, Pem, Timestamp)>,
}

impl CertificateSource {
    /// Creates the source: a folder, or self-signed certificates.
    pub const fn new(folder: Option<PathBuf>, address: IpAddr) -> Self {
        Self { folder, address, self_signed: None }
    }

    /// Current certificate and its key.
    pub fn take(&mut self, now: Timestamp) -> anyhow::Result<(Pem, Pem)> {
        if let Some(folder) = &self.folder {
            return Ok((Pem::read(&folder.join("tls.crt"))?, Pem::read(&folder.join("tls.key"))?));
        }
        self.self_signed.take_if(|(.., created)| now.duration_since(*created) >= RENEW_AFTER);
        let (cert, key, _) = match &mut self.self_signed {
            Some(current) => current,
            none => {
                let (cert, key) = self_signed(self.address).context("cannot make a certificate")?;
                none.insert((cert, key, now))
            }
        };
        Ok((cert.clone(), key.clone()))
    }
}

fn self_signed(address: IpAddr) -> Result<(Pem, Pem), rcgen::Error> {
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
    let pem =
        |what: &str, text: String| Pem { path: format!("the {what} made here").into(), text: text.into() };
    Ok((pem("certificate", cert.pem()), pem("key", key.serialize_pem())))
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
        Certificates::load(material, now).unwrap();
        let later = now + SignedDuration::from_hours(301 * 24);
        assert_ne!(source.take(later).unwrap().0.text, cert.text);
        let missing = CertificateSource::new(Some("/nowhere".into()), "10.0.0.7".parse().unwrap()).take(now);
        assert!(missing.unwrap_err().to_string().contains("/nowhere/tls.crt"));
    }
}
