//! Who a client is.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::UserInfo;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The group of everybody who is known.
const AUTHENTICATED: &str = "system:authenticated";

/// A user as the API server knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// UID; empty where there is none.
    pub uid: String,
    /// All groups.
    pub groups: Vec<String>,
    /// What else is known.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The one that a client certificate names, which was verified: CN is the name, each O a group.
    #[must_use]
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
        let groups = groups.chain([AUTHENTICATED]).map(ToOwned::to_owned).collect();
        Some(Self { name, groups, ..Self::default() }).filter(|user| !user.name.is_empty())
    }

    /// What tells this user's wish from all others.
    #[must_use]
    pub fn digest(&self, wish: &[&str]) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update(text.len().to_be_bytes());
            hash.update(text);
        };
        let Self { name, uid, groups, extra } = self;
        wish.iter().copied().chain([name.as_str(), uid]).for_each(&mut add);
        for (key, values) in extra {
            add(key);
            values.iter().map(String::as_str).for_each(&mut add);
            add("");
        }
        groups.iter().map(String::as_str).for_each(&mut add);
        hash.finalize().into()
    }
}

impl From<UserInfo> for User {
    fn from(UserInfo { username, uid, groups, extra }: UserInfo) -> Self {
        Self {
            name: username.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            extra: extra.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    #[test]
    fn a_certificate_names_a_user_and_groups() {
        let der = |name: Option<&str>| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, "system:masters");
            if let Some(name) = name {
                params.distinguished_name.push(DnType::CommonName, name);
            }
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
        };
        let user = User::of_certificate(&der(Some("admin"))).unwrap();
        assert_eq!(user.name, "admin");
        assert_eq!(user.groups, ["system:masters", AUTHENTICATED]);
        assert_eq!(User::of_certificate(&der(None)), None);
        assert_eq!(User::of_certificate(b"no certificate"), None);
    }

    #[test]
    fn wishes_of_two_users_are_two() {
        let user = |name: &str, groups: &[&str]| User {
            name: name.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..User::default()
        };
        let wish = ["get", "node", "proxy"];
        let one = user("a", &["b"]).digest(&wish);
        assert_eq!(one, user("a", &["b"]).digest(&wish));
        assert_ne!(one, user("a", &[]).digest(&wish));
        assert_ne!(one, user("ab", &[]).digest(&wish));
        assert_ne!(one, user("a", &["b"]).digest(&["get", "node", "stats"]));
    }
}
