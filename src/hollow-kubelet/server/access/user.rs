//! User of a client.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

/// A user as the API server knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User name.
    pub name: String,
    /// UID; empty if there is none.
    pub uid: String,
    /// All groups.
    pub groups: Vec<String>,
    /// Extra attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// User of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The user.
    pub user: User,
    /// Expiry of the certificate.
    pub until: Timestamp,
}

impl Shown {
    /// User of a verified certificate: CN (the last one of several) is the name, each O a group.
    #[must_use]
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let until = Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().last()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
        let groups = groups.chain([AUTHENTICATED]).map(ToOwned::to_owned).collect();
        let user = User { name, groups, ..User::default() };
        (!user.name.is_empty()).then_some(Self { user, until })
    }
}

impl User {
    /// Digest of this user and a request, distinct from that of any other user or request.
    #[must_use]
    pub fn digest(&self, wish: &[&str]) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update(text.len().to_be_bytes());
            hash.update(text);
        };
        // Each list is prefixed with its length, so that no two lists read the same.
        let mut list = |texts: &mut dyn ExactSizeIterator<Item = &str>| {
            add(&texts.len().to_string());
            texts.for_each(&mut add);
        };
        let Self { name, uid, groups, extra } = self;
        list(&mut wish.iter().copied());
        list(&mut [name.as_str(), uid].into_iter());
        list(&mut groups.iter().map(String::as_str));
        list(&mut extra.keys().map(String::as_str));
        for values in extra.values() {
            list(&mut values.iter().map(String::as_str));
        }
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
        let der = |names: &[&str]| {
            let mut params = CertificateParams::default();
            params.not_after = rcgen::date_time_ymd(2040, 1, 2);
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, "system:masters");
            for &name in names {
                params.distinguished_name.push(DnType::CommonName, name);
            }
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
        };
        let Shown { user, until } = Shown::of_certificate(&der(&["admin"])).unwrap();
        assert_eq!((user.name.as_str(), until.to_string().as_str()), ("admin", "2040-01-02T00:00:00Z"));
        assert_eq!(user.groups, ["system:masters", AUTHENTICATED]);
        assert_eq!(Shown::of_certificate(&der(&[])), None);
        assert_eq!(Shown::of_certificate(b"no certificate"), None);
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
        let told = |extra: &[(&str, &[&str])], groups: &[&str]| {
            let list = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
            let extra = extra.iter().map(|(key, values)| ((*key).to_owned(), list(values))).collect();
            User { extra, ..user("a", groups) }.digest(&wish)
        };
        assert_ne!(told(&[("k", &["v"])], &["", "g"]), told(&[("k", &["v", "", "", "g"])], &[]));
        assert_ne!(told(&[("k", &["", "l"])], &[]), told(&[("k", &[]), ("l", &[])], &[]));
        assert_ne!(told(&[], &["k", ""]), told(&[("k", &[])], &[]));
    }
}
