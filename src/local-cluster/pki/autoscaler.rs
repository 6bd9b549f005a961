//! Certificates of the operator's server for cluster-autoscaler and of its only client, for a year.
//!
//! Both come from a CA of their own: with the cluster's CA, every user of the cluster could resize it. The CA's key is
//! discarded after both are signed, so that no third certificate can be made.

use std::path::Path;

use kube_node_api::names;
use time::{Duration, OffsetDateTime};

use super::{
    super::files::{create_private_dir, write_public},
    Identity, Made, Pki, Use, Validity, leaf_valid, new_ca,
};

/// Lifetime of the certificates: limits the use of a stolen key.
const LIFETIME: Duration = Duration::days(365);

/// Certificates of one server and its one client.
#[derive(Clone)]
pub struct AutoscalerCertificates {
    /// CA of both, PEM.
    pub ca: String,
    /// The operator's certificate.
    pub server: Identity,
    /// cluster-autoscaler's certificate.
    pub client: Identity,
}

impl AutoscalerCertificates {
    /// Makes the CA and both certificates, for a server with these DNS names and IP addresses.
    pub fn make(server_names: &[&str]) -> anyhow::Result<Self> {
        Self::make_at(server_names, OffsetDateTime::now_utc())
    }

    /// Makes them as of another time.
    pub fn make_at(server_names: &[&str], from: OffsetDateTime) -> anyhow::Result<Self> {
        let validity = Validity { from, lifetime: LIFETIME };
        let ca = new_ca("kube-node-autoscaler", validity)?;
        Ok(Self {
            ca: ca.pem(),
            server: leaf_valid("kube-node", &Use::Server(server_names), &ca, validity)?,
            client: leaf_valid(names::AUTOSCALER_CLIENT, &Use::Client(&[]), &ca, validity)?,
        })
    }
}

impl Pki {
    /// Uses the [`AutoscalerCertificates`] of the folder, or makes them if they are missing or about to expire.
    pub fn ensure_autoscaler(dir: &Path) -> anyhow::Result<Self> {
        let pki = Self { dir: dir.to_owned() };
        if pki.made().is_none() {
            create_private_dir(dir)?;
            let all = AutoscalerCertificates::make(&["localhost", "127.0.0.1"])?;
            write_public(&pki.path("ca.crt"), &all.ca)?;
            pki.write("server", &all.server)?;
            pki.write("client", &all.client)?;
            pki.write_made(&Made::now(&[], LIFETIME))?;
        }
        Ok(pki)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn made_once_and_kept_without_the_key_of_the_ca() {
        let dir = std::env::temp_dir().join(format!("kube-node-pki-autoscaler-{}", std::process::id()));
        let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
        Pki::ensure_autoscaler(&dir).unwrap();
        let before = (read("ca.crt"), read("server.crt"), read("client.crt"));
        Pki::ensure_autoscaler(&dir).unwrap();
        assert_eq!((read("ca.crt"), read("server.crt"), read("client.crt")), before);
        let mode = fs::metadata(dir.join("client.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!dir.join("ca.key").exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
