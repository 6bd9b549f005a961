//! User of a client certificate.

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

/// User of a client certificate.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateUser {
    /// The user.
    pub user: UserInfo,
    /// Expiry of the certificate.
    pub until: Timestamp,
}

impl CertificateUser {
    /// User of a verified certificate: CN (the last one of several) is the name, each O a group.
    pub fn of(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let until = Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().last()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
        let groups = groups.chain([AUTHENTICATED]).map(ToOwned::to_owned).collect();
        let is_named = !name.is_empty();
        let user = UserInfo { username: Some(name), groups: Some(groups), ..UserInfo::default() };
        is_named.then_some(Self { user, until })
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
        let CertificateUser { user, until } = CertificateUser::of(&der(&["admin"])).unwrap();
        assert_eq!(
            (user.username.as_deref(), until.to_string().as_str()),
            (Some("admin"), "2040-01-02T00:00:00Z")
        );
        assert_eq!(user.groups.unwrap(), ["system:masters", AUTHENTICATED]);
        assert_eq!(CertificateUser::of(&der(&[])), None);
        assert_eq!(CertificateUser::of(b"no certificate"), None);
    }
}
