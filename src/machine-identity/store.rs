//! Storage of a certificate and its key: one file, so that both always match, with mode 0600.

use std::{fs, io, ops::RangeInclusive, path::Path};

use anyhow::{Context, anyhow, ensure};
use jiff::Timestamp;
use kube_ext::{environment, files::write_private};
use rcgen::KeyPair;
use x509_parser::{certificate::X509Certificate, pem::Pem, time::ASN1Time};

/// File in the state folder: the key, then the certificate.
const FILE: &str = "client.pem";
/// First line of the certificate in the file.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// A certificate that matches its key and its machine.
#[derive(Clone)]
pub struct Certificate {
    /// The certificate, PEM.
    pub(super) pem: String,
    /// The private key, PKCS #8 as PEM.
    pub(super) key: String,
    not_before: Timestamp,
    /// Expiry.
    pub(super) not_after: Timestamp,
}

impl Certificate {
    /// Checks that `pem` is a certificate of `node` for `key`, and reads its validity.
    pub(super) fn new(pem: String, key: &KeyPair, node: &str) -> anyhow::Result<Self> {
        let first = Pem::iter_from_buffer(pem.as_bytes()).next();
        let first = first.and_then(Result::ok).ok_or_else(|| unusable("it is not PEM"))?;
        let parsed = first.parse_x509().map_err(|_| unusable("it is no X.509 certificate"))?;
        ensure!(is_of(&parsed, node), unusable("it is somebody else's"));
        let is_for_key = parsed.public_key().subject_public_key.data == key.public_key_raw();
        ensure!(is_for_key, unusable("it is for another key"));
        let at = |time: ASN1Time| {
            Timestamp::from_second(time.timestamp()).map_err(|_| unusable("its life is out of all bounds"))
        };
        let (not_before, not_after) = (at(parsed.validity().not_before)?, at(parsed.validity().not_after)?);
        Ok(Self { key: key.serialize_pem(), not_before, not_after, pem })
    }

    /// Renewal time, drawn between these fractions of the lifetime.
    pub(super) fn renewal(&self, parts: &RangeInclusive<f64>) -> Timestamp {
        let life = self.not_after.duration_since(self.not_before);
        let part = environment::random_range(parts.clone());
        self.not_before.checked_add(life.mul_f64(part)).unwrap_or(self.not_after)
    }
}

/// The issued certificate does not fit the key or the machine.
pub(super) fn unusable(defect: &str) -> anyhow::Error {
    anyhow!("what was issued is no certificate of this machine: {defect}")
}

fn is_of(certificate: &X509Certificate<'_>, node: &str) -> bool {
    let mut names = certificate.subject().iter_common_name();
    let name = names.next().and_then(|name| name.as_str().ok());
    name.and_then(|name| name.strip_prefix("system:node:")) == Some(node) && names.next().is_none()
}

/// The stored certificate of `node` in a folder, if it is valid at `now`. An unusable one counts as none:
/// another is requested.
pub(super) fn load(dir: &Path, node: &str, now: Timestamp) -> anyhow::Result<Option<Certificate>> {
    // In a pod the folder is a volume.
    if !fs::metadata(dir).with_context(|| unwritable(dir))?.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory)).with_context(|| unwritable(dir));
    }
    let file = dir.join(FILE);
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| unwritable(&file))?,
    };
    let stored = text.find(CERTIFICATE).map(|at| text.split_at(at)).and_then(|(key, pem)| {
        let key = KeyPair::from_pem(key).ok()?;
        Certificate::new(pem.to_owned(), &key, node).ok()
    });
    Ok(stored.filter(|stored| stored.not_before <= now && now < stored.not_after))
}

/// Stores a certificate in a folder, in place of the former one.
pub(super) fn save(dir: &Path, certificate: &Certificate) -> anyhow::Result<()> {
    let content = format!("{}{}", certificate.key, certificate.pem);
    write_private(&dir.join(FILE), &content)
}

fn unwritable(path: &Path) -> String {
    format!("cannot use {}: it must be a folder that this user may write", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rcgen::{CertificateParams, DnType};
    use time::{Duration, OffsetDateTime};

    use super::*;

    /// A certificate of `name`, valid from an hour ago to an hour from now.
    fn issued(name: &str, key: &KeyPair) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = OffsetDateTime::now_utc() - Duration::hours(1);
        params.not_after = OffsetDateTime::now_utc() + Duration::hours(1);
        params.self_signed(key).unwrap().pem()
    }

    #[test]
    fn what_is_kept_comes_back_while_it_is_good_and_ours() {
        let dir = std::env::temp_dir().join(format!("kube-node-store-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let now = Timestamp::now();
        let load = |node, now| load(&dir, node, now).unwrap();
        assert!(load("a", now).is_none());
        let key = KeyPair::generate().unwrap();
        let certificate = Certificate::new(issued("system:node:a", &key), &key, "a").unwrap();
        save(&dir, &certificate).unwrap();
        let mode = fs::metadata(dir.join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let stored = load("a", now).expect("it is good");
        assert_eq!((stored.key, stored.not_after), (certificate.key, certificate.not_after));
        assert!(load("b", now).is_none(), "another machine's");
        assert!(load("a", certificate.not_after).is_none(), "expired");
        fs::write(dir.join(FILE), "half a fi").unwrap();
        assert!(load("a", now).is_none(), "not readable, so as none");
        fs::remove_dir_all(&dir).unwrap();
        assert!(super::load(&dir, "a", now).is_err());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let pem = issued("system:node:a", &key);
        let what = |result: anyhow::Result<Certificate>| result.err().unwrap().to_string();
        assert!(what(Certificate::new(pem.clone(), &key, "b")).ends_with("somebody else's"));
        assert!(what(Certificate::new(pem, &other, "a")).ends_with("another key"));
        assert!(what(Certificate::new("no".to_owned(), &key, "a")).ends_with("not PEM"));
    }

    #[test]
    fn it_is_renewed_at_its_part_of_its_life() {
        let key = KeyPair::generate().unwrap();
        let made = Certificate::new(issued("system:node:a", &key), &key, "a").unwrap();
        let at = made.renewal(&(0.7..=0.9)).duration_since(made.not_before).as_secs_f64();
        assert!((0.7 * 7200.0..=0.9 * 7200.0 + 1.0).contains(&at), "{at}");
        assert_eq!(made.renewal(&(0.0..=0.0)), made.not_before);
    }
}
