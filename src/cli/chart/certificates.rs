//! `kube-node chart certificates`: fills two Secrets, one for the autoscaler server and one for cluster-autoscaler.
//!
//! The chart creates both Secrets empty: the right to create Secrets would include the right to create tokens
//! of every ServiceAccount in the namespace. Valid certificates are kept, so that an upgrade changes nothing.
//! Otherwise both are made again, since one certificate authority signs both and its key is discarded.

use anyhow::Context;
use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};
use kube_ext::{objects, process::print_line};
use local_cluster::pki::{AutoscalerCertificates, Identity, RENEW_BEFORE};
use serde_json::json;
use time::OffsetDateTime;
use x509_parser::{
    extensions::GeneralName,
    pem::Pem,
    prelude::{FromDer, X509Certificate},
};

use crate::access::FIELD_MANAGER;

/// Keys of the Secrets, as in the type `kubernetes.io/tls` and in cert-manager.
const CERT: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA: &str = "ca.crt";

/// Arguments of `chart certificates`.
#[derive(Debug, Args)]
pub struct Certificates {
    /// Namespace of the operator
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
    /// Name of the Secret of the server
    #[arg(long, value_name = "NAME")]
    server_secret: String,
    /// Name of the Secret of cluster-autoscaler
    #[arg(long, value_name = "NAME")]
    client_secret: String,
    /// Namespace of cluster-autoscaler's Secret
    #[arg(long, value_name = "NAMESPACE")]
    client_namespace: String,
    /// Host name under which the server is called; may be repeated
    #[arg(long, value_name = "NAME", required = true)]
    server_name: Vec<String>,
}

impl Certificates {
    /// Returns when both Secrets hold valid certificates.
    pub(super) async fn run(self, client: &Client) -> anyhow::Result<()> {
        let server = read(client, &self.namespace, &self.server_secret).await?;
        let caller = read(client, &self.client_namespace, &self.client_secret).await?;
        let names: Vec<&str> = self.server_name.iter().map(String::as_str).collect();
        let Some(flaw) = flaw(&server, &caller, &names, OffsetDateTime::now_utc()) else {
            print_line("The certificates are kept.");
            return Ok(());
        };
        let all = AutoscalerCertificates::make(&names)?;
        fill(client, &server, &all.ca, &all.server).await?;
        fill(client, &caller, &all.ca, &all.client).await?;
        print_line(format_args!("Certificates are made: {flaw}."));
        Ok(())
    }
}

async fn read(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Secret> {
    objects::read(&Api::namespaced(client.clone(), namespace), name).await?.with_context(|| {
        format!("there is no Secret {name} in {namespace}: the chart makes it, so upgrade the release")
    })
}

/// Fills a Secret, unless it has changed since it was read.
async fn fill(client: &Client, read: &Secret, ca: &str, identity: &Identity) -> anyhow::Result<()> {
    let api = Api::<Secret>::namespaced(client.clone(), &read.namespace().unwrap_or_default());
    let change = json!({
        "metadata": { "resourceVersion": read.metadata.resource_version },
        "stringData": { (CERT): identity.certificate, (KEY): identity.key, (CA): ca },
    });
    objects::patch(&api, &read.name_any(), FIELD_MANAGER, change).await?;
    Ok(())
}

fn text<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    let value = secret.data.as_ref()?.get(key)?;
    Some(value.0.as_slice()).filter(|value| !value.is_empty())
}

/// Reason why the present certificates must be replaced; `None` if they are valid.
fn flaw(server: &Secret, caller: &Secret, names: &[&str], now: OffsetDateTime) -> Option<String> {
    if [CERT, KEY, CA].iter().any(|key| text(server, key).is_none() || text(caller, key).is_none()) {
        return Some("there are none yet".to_owned());
    }
    if text(server, CA) != text(caller, CA) {
        return Some("those of server and client come of two authorities".to_owned());
    }
    for secret in [server, caller] {
        let read = text(secret, CERT).and_then(|pem| Pem::iter_from_buffer(pem).next()?.ok());
        let certificate = read.as_ref().and_then(|pem| X509Certificate::from_der(&pem.contents).ok());
        let Some((_, certificate)) = certificate else {
            return Some("one that is there cannot be read".to_owned());
        };
        if certificate.validity().not_after.to_datetime() < now + RENEW_BEFORE {
            return Some(format!("one that is there is valid until {}", certificate.validity().not_after));
        }
        if std::ptr::eq(secret, server)
            && let Some(name) = names.iter().find(|name| !has_name(&certificate, name))
        {
            return Some(format!("the server's that is there is not for {name}"));
        }
    }
    None
}

fn has_name(certificate: &X509Certificate<'_>, name: &str) -> bool {
    let names = certificate.subject_alternative_name().ok().flatten();
    names.is_some_and(|names| names.value.general_names.contains(&GeneralName::DNSName(name)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(ca: &str, identity: &Identity) -> Secret {
        let of = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = [(CERT, &*identity.certificate), (KEY, &*identity.key), (CA, ca)];
        Secret {
            data: Some(data.into_iter().map(|(key, text)| (key.to_owned(), of(text))).collect()),
            ..Secret::default()
        }
    }

    #[test]
    fn what_serves_is_kept_and_all_else_made_anew() {
        let make = || {
            let all = AutoscalerCertificates::make(&["a.svc", "b.svc"]).unwrap();
            (secret(&all.ca, &all.server), secret(&all.ca, &all.client))
        };
        let now = OffsetDateTime::now_utc();
        let (server, client) = make();
        assert_eq!(flaw(&server, &client, &["b.svc", "a.svc"], now), None);
        let certificates_of = |server: &Secret, client: &Secret, names: &[&str], now| {
            flaw(server, client, names, now).expect("a flaw")
        };
        assert_eq!(certificates_of(&Secret::default(), &client, &["a.svc"], now), "there are none yet");
        assert!(certificates_of(&server, &make().1, &["a.svc"], now).ends_with("two authorities"));
        assert!(certificates_of(&server, &client, &["a.svc", "c.svc"], now).ends_with("is not for c.svc"));
        let late = now + time::Duration::days(3630);
        assert!(
            certificates_of(&server, &client, &["a.svc"], late)
                .starts_with("one that is there is valid until")
        );
        let mut damaged = client.clone();
        damaged.data.as_mut().unwrap().insert(CERT.to_owned(), ByteString(b"nonsense".to_vec()));
        assert!(certificates_of(&server, &damaged, &["a.svc"], now).ends_with("cannot be read"));
    }
}
