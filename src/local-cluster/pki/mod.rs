//! Certificates of a cluster, made in process. All keys are ECDSA P-256; every private key file has mode 0600.
//!
//! Three certificate authorities: the cluster's (signs servers, users and CSRs), etcd's (with a shared one,
//! every client certificate of the cluster could read etcd) and the front proxy's. A cluster that serves
//! cluster-autoscaler has a fourth ([`autoscaler`]). Existing certificates are kept, so that kubeconfigs
//! handed out stay valid; all are renewed when one has less than `RENEW_BEFORE` left.

mod autoscaler;

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};

pub use self::autoscaler::AutoscalerCertificates;
use super::files::{create_private_dir, read, write_private, write_public};

/// Lifetime of every certificate of the cluster, longer than that of a test cluster.
const LIFETIME: Duration = Duration::days(3650);
/// Remaining lifetime below which a start renews the certificates.
const RENEW_BEFORE: Duration = Duration::days(30);
/// Allowance for clock differences between containers and their hosts.
const BACKDATE: Duration = Duration::hours(1);
/// Names and addresses in the serving certificates of kube-apiserver and the other components. The last one is the first
/// address of the service range: that of the Service `kubernetes`.
const SERVER_NAMES: [&str; 7] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    "10.96.0.1",
];

/// A certificate and its key, PEM.
#[derive(Clone)]
pub struct Identity {
    /// Certificate, PEM.
    pub certificate: String,
    /// Private key, PKCS #8.
    pub key: String,
}

/// Certificates of one cluster in one folder.
#[derive(Debug)]
pub struct Pki {
    dir: PathBuf,
}

/// Marker file of a complete folder; written last, so a folder without it is incomplete.
#[derive(Serialize, Deserialize)]
struct Made {
    /// Further addresses in kube-apiserver's certificate.
    #[serde(default)]
    addresses: Vec<IpAddr>,
    not_after: i64,
}

impl Made {
    /// Marker of certificates that are made now.
    fn now(addresses: &[IpAddr], lifetime: Duration) -> Self {
        let not_after = (OffsetDateTime::now_utc() + lifetime).unix_timestamp();
        Self { addresses: addresses.to_vec(), not_after }
    }
}

/// Time from which a certificate is valid, and for how long.
#[derive(Clone, Copy)]
struct Validity {
    from: OffsetDateTime,
    lifetime: Duration,
}

impl Validity {
    /// Validity of a cluster's certificate that is made now.
    fn of_cluster() -> Self {
        Self { from: OffsetDateTime::now_utc(), lifetime: LIFETIME }
    }

    fn of(self, mut params: CertificateParams) -> CertificateParams {
        params.not_before = self.from - BACKDATE;
        params.not_after = self.from + self.lifetime;
        params
    }
}

/// Usage of a leaf certificate.
enum Use<'a> {
    /// A server with these DNS names and IP addresses.
    Server(&'a [&'a str]),
    /// A user with these groups.
    Client(&'a [&'a str]),
    /// Server and client: etcd connects to itself.
    Both,
}

impl Pki {
    /// Uses the folder's certificates, or makes them if they are missing or about to expire. If `addresses`,
    /// at which kube-apiserver is also reached, have changed, its certificate alone is made again.
    pub(crate) fn ensure(dir: &Path, addresses: &[IpAddr]) -> anyhow::Result<Self> {
        let pki = Self { dir: dir.to_owned() };
        match pki.made() {
            None => pki.make(addresses)?,
            Some(made) if made.addresses != addresses => {
                pki.make_apiserver(addresses, &pki.cluster_ca()?)?;
                pki.write_made(&Made { addresses: addresses.to_vec(), ..made })?;
            }
            Some(_) => {}
        }
        Ok(pki)
    }

    /// The marker file, if the folder is complete and its certificates are valid for long enough.
    fn made(&self) -> Option<Made> {
        let made = fs::read_to_string(self.path("made.json")).ok()?;
        still_good(&made, OffsetDateTime::now_utc())
    }

    /// Path of a file in the folder, such as `ca.crt`.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// Certificate of the cluster's CA, PEM.
    pub(crate) fn ca(&self) -> anyhow::Result<String> {
        read(&self.path("ca.crt"))
    }

    /// Signs a client certificate of the cluster for any user and at most two groups.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> anyhow::Result<Identity> {
        leaf(user, &Use::Client(groups), &self.cluster_ca()?)
    }

    /// Signs a serving certificate of the cluster.
    pub(crate) fn server(&self, name: &str, address: IpAddr) -> anyhow::Result<Identity> {
        let address = address.to_string();
        leaf(name, &Use::Server(&[name, &address]), &self.cluster_ca()?)
    }

    fn cluster_ca(&self) -> anyhow::Result<Issuer<'static, KeyPair>> {
        let key = KeyPair::from_pem(&read(&self.path("ca.key"))?).with_context(|| failed("ca"))?;
        Ok(Issuer::new(ca_params("kubernetes", Validity::of_cluster()), key))
    }

    fn make(&self, addresses: &[IpAddr]) -> anyhow::Result<()> {
        create_private_dir(&self.dir)?;
        let cluster = self.make_ca("ca", "kubernetes")?;
        let etcd = self.make_ca("etcd-ca", "kube-node-etcd")?;
        let proxy = self.make_ca("front-proxy-ca", "kube-node-front-proxy")?;
        let masters = Use::Client(&["system:masters"]);
        let plain = Use::Client(&[]);
        let server = Use::Server(&SERVER_NAMES);
        for (file, name, usage, ca) in [
            ("controller-manager", "kube-controller-manager", &server, &cluster),
            ("scheduler", "kube-scheduler", &server, &cluster),
            ("kubelet-client", "kube-apiserver-kubelet-client", &masters, &cluster),
            ("etcd", "etcd", &Use::Both, &etcd),
            ("etcd-client", "kube-apiserver-etcd-client", &plain, &etcd),
            ("front-proxy-client", "front-proxy-client", &plain, &proxy),
        ] {
            self.write(file, &leaf(name, usage, ca)?)?;
        }
        self.make_apiserver(addresses, &cluster)?;
        let tokens = KeyPair::generate().with_context(|| failed("sa"))?;
        write_private(&self.path("sa.key"), &tokens.serialize_pem())?;
        write_public(&self.path("sa.pub"), &tokens.public_key_pem())?;
        self.write_made(&Made::now(addresses, LIFETIME))
    }

    fn make_apiserver(&self, addresses: &[IpAddr], ca: &Issuer<'_, KeyPair>) -> anyhow::Result<()> {
        let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        let names: Vec<&str> = SERVER_NAMES.into_iter().chain(addresses.iter().map(String::as_str)).collect();
        self.write("apiserver", &leaf("kube-apiserver", &Use::Server(&names), ca)?)
    }

    fn write(&self, file: &str, identity: &Identity) -> anyhow::Result<()> {
        write_public(&self.path(&format!("{file}.crt")), &identity.certificate)?;
        write_private(&self.path(&format!("{file}.key")), &identity.key)
    }

    fn write_made(&self, made: &Made) -> anyhow::Result<()> {
        write_public(&self.path("made.json"), &(serde_json::to_string(made)? + "\n"))
    }

    fn make_ca(&self, file: &str, name: &str) -> anyhow::Result<CertifiedIssuer<'static, KeyPair>> {
        let ca = new_ca(name, Validity::of_cluster())?;
        self.write(file, &Identity { certificate: ca.pem(), key: ca.key().serialize_pem() })?;
        Ok(ca)
    }
}

/// Context of an error.
fn failed(name: &str) -> String {
    format!("cannot make the certificate {name}")
}

fn still_good(made: &str, now: OffsetDateTime) -> Option<Made> {
    let made: Made = serde_json::from_str(made).ok()?;
    (made.not_after > (now + RENEW_BEFORE).unix_timestamp()).then_some(made)
}

/// A CA adds only its name and usages to the certificates it signs, so its own file need not be read back.
fn ca_params(name: &str, validity: Validity) -> CertificateParams {
    let mut params = validity.of(CertificateParams::default());
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn new_ca(name: &str, validity: Validity) -> anyhow::Result<CertifiedIssuer<'static, KeyPair>> {
    let params = ca_params(name, validity);
    let ca = KeyPair::generate().and_then(|key| CertifiedIssuer::self_signed(params, key));
    ca.with_context(|| failed(name))
}

/// Signs a certificate of the cluster.
fn leaf(name: &str, usage: &Use<'_>, ca: &Issuer<'_, KeyPair>) -> anyhow::Result<Identity> {
    leaf_valid(name, usage, ca, Validity::of_cluster())
}

fn leaf_valid(
    name: &str,
    usage: &Use<'_>,
    ca: &Issuer<'_, KeyPair>,
    validity: Validity,
) -> anyhow::Result<Identity> {
    let (server, client) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
    let (usages, names, groups): (_, &[&str], &[&str]) = match usage {
        Use::Server(names) => (vec![server], names, &[]),
        Use::Client(groups) => (vec![client], &[], groups),
        Use::Both => (vec![server, client], &SERVER_NAMES, &[]),
    };
    let subject = subject(name, groups)?;
    let sign = || {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = validity.of(CertificateParams::new(names)?);
        params.distinguished_name = subject;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, ca)?.pem();
        Ok::<_, rcgen::Error>(Identity { certificate, key: key.serialize_pem() })
    };
    sign().with_context(|| failed(name))
}

/// OID of the attribute organizationName (O).
const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];

/// Subject with user and groups as kube-apiserver reads them: CN, and one O for each group.
///
/// rcgen keeps one value per kind of attribute. O can be written as two kinds, hence at most two groups.
fn subject(user: &str, groups: &[&str]) -> anyhow::Result<DistinguishedName> {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, user);
    let attributes = [DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())];
    ensure!(groups.len() <= attributes.len(), "user {user} has more than two groups");
    for (attribute, group) in attributes.into_iter().zip(groups) {
        subject.push(attribute, *group);
    }
    Ok(subject)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::Ipv4Addr, os::unix::fs::PermissionsExt};

    fn count(haystack: &[u8], needle: &[u8]) -> usize {
        haystack.windows(needle.len()).filter(|window| *window == needle).count()
    }

    #[test]
    fn made_once_and_kept() {
        let dir = std::env::temp_dir().join(format!("kube-node-pki-{}", std::process::id()));
        let first = Pki::ensure(&dir, &[]).unwrap().ca().unwrap();
        assert_eq!(Pki::ensure(&dir, &[]).unwrap().ca().unwrap(), first);
        for file in ["ca.key", "sa.key", "etcd.key"] {
            let mode = fs::metadata(dir.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        fs::write(dir.join("made.json"), "{\"not_after\":0}").unwrap();
        assert_ne!(Pki::ensure(&dir, &[]).unwrap().ca().unwrap(), first, "expired and yet kept");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn further_addresses_change_one_certificate() {
        let dir = std::env::temp_dir().join(format!("kube-node-pki-address-{}", std::process::id()));
        let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
        Pki::ensure(&dir, &[]).unwrap();
        let (ca, before, scheduler) = (read("ca.crt"), read("apiserver.crt"), read("scheduler.crt"));
        let address = [IpAddr::V4(Ipv4Addr::new(10, 245, 0, 1))];
        Pki::ensure(&dir, &address).unwrap();
        let after = read("apiserver.crt");
        assert_ne!(before, after);
        assert_eq!((&ca, &scheduler), (&read("ca.crt"), &read("scheduler.crt")));
        Pki::ensure(&dir, &address).unwrap();
        assert_eq!(read("apiserver.crt"), after, "nothing has changed");
        Pki::ensure(&dir, &[]).unwrap();
        assert_ne!(read("apiserver.crt"), after, "the address is somebody else's now");
        assert_eq!((ca, scheduler), (read("ca.crt"), read("scheduler.crt")));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn renewed_before_it_expires() {
        let now = OffsetDateTime::now_utc();
        let at = |days| format!("{{\"not_after\":{}}}", (now + Duration::days(days)).unix_timestamp());
        assert!(still_good(&at(31), now).is_some());
        assert!(still_good(&at(29), now).is_none());
        assert!(still_good("{}", now).is_none());
    }

    #[test]
    fn both_groups_are_in_the_subject() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("someone", &["first-group", "second-group"]).unwrap();
        let der = params.self_signed(&key).unwrap().der().to_vec();
        // Subject and issuer of a self-signed certificate are equal: every value occurs twice.
        assert_eq!(count(&der, b"first-group"), 2);
        assert_eq!(count(&der, b"second-group"), 2);
        assert_eq!(count(&der, &[0x06, 0x03, 0x55, 0x04, 0x0a]), 4, "both as O");
        assert!(subject("someone", &["a", "b", "c"]).is_err());
    }
}
