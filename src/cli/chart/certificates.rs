//! `kube-node chart certificates`: fills two Secrets, one for the autoscaler server and one for cluster-autoscaler, and renews
//! what they hold.
//!
//! The chart creates both Secrets empty: the right to create Secrets would include the right to create tokens
//! of every ServiceAccount in the namespace. One certificate authority signs both certificates and its key is discarded, so a
//! renewal makes both anew, in two steps ([`Step`]): cluster-autoscaler reads its certificate once, and between the steps
//! a restart of it may come at any time.
//!
//! Invariant: in each step one Secret after the other is written, and both orders of a write and a restart leave certificates
//! that fit, as does an end of the job in between.

use anyhow::Context;
use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};
use kube_ext::{objects, process::print_line};
use local_cluster::pki::{AutoscalerCertificates, Identity};
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};
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
/// Keys of the server's Secret: the certificate that the server takes with the second step of a renewal.
const NEXT_CERT: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
/// Part of the lifetime, as a divisor, with which a renewal begins.
const RENEW_AT: i32 = 3;
/// Part of the lifetime, as a divisor, with which the server takes its next certificate. Of a year, two months are between the
/// two.
const SWITCH_AT: i32 = 6;

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

/// What to do with the certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Keep them.
    Keep,
    /// Replace them at once, for this reason: they are of no use.
    Replace(String),
    /// First step of a renewal: cluster-autoscaler gets its next certificate, both sides trust the old and the next CA, and the
    /// server keeps its own certificate and stores its next one.
    Renew,
    /// Second step: the server takes its next certificate.
    Switch,
}

impl Certificates {
    /// Returns when both Secrets hold valid certificates.
    pub(super) async fn run(self, client: &Client) -> anyhow::Result<()> {
        let server = read(client, &self.namespace, &self.server_secret).await?;
        let caller = read(client, &self.client_namespace, &self.client_secret).await?;
        let names: Vec<&str> = self.server_name.iter().map(String::as_str).collect();
        let now = OffsetDateTime::now_utc();
        let step = step(&server, &caller, &names, now);
        let changes = changes(&step, &server, &names, now)?;
        // The server trusts the next certificate of cluster-autoscaler before that one is used.
        for (secret, change) in [&server, &caller].into_iter().zip(changes) {
            if let Some(change) = change {
                write(client, secret, change).await?;
            }
        }
        match step {
            Step::Keep => print_line("The certificates are kept."),
            Step::Replace(reason) => {
                print_line(format_args!(
                    "Certificates are made: {reason}. Restart cluster-autoscaler if it runs."
                ));
            }
            Step::Renew => print_line(
                "cluster-autoscaler has its next certificate, and the server takes its own when a sixth of the lifetime is left: restart cluster-autoscaler until then.",
            ),
            Step::Switch => print_line("The server has its next certificate."),
        }
        Ok(())
    }
}

async fn read(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Secret> {
    objects::read(&Api::namespaced(client.clone(), namespace), name).await?.with_context(|| {
        format!("there is no Secret {name} in {namespace}: the chart makes it, so upgrade the release")
    })
}

/// Changes a Secret, unless it has changed since it was read.
async fn write(client: &Client, read: &Secret, mut change: Value) -> anyhow::Result<()> {
    let api = Api::<Secret>::namespaced(client.clone(), &read.namespace().unwrap_or_default());
    change["metadata"] = json!({ "resourceVersion": read.metadata.resource_version });
    objects::patch(&api, &read.name_any(), FIELD_MANAGER, change).await?;
    Ok(())
}

/// Changes of the server's and the client's Secret, as merge patches.
fn changes(
    step: &Step,
    server: &Secret,
    names: &[&str],
    now: OffsetDateTime,
) -> anyhow::Result<[Option<Value>; 2]> {
    let no_next = json!({ (NEXT_CERT): null, (NEXT_KEY): null });
    let own = |Identity { certificate, key }, ca: &str| json!({ (CERT): certificate, (KEY): key, (CA): ca });
    Ok(match step {
        Step::Keep => [None, None],
        Step::Replace(_) => {
            let AutoscalerCertificates { ca, server, client } = AutoscalerCertificates::make_at(names, now)?;
            [
                Some(json!({ "data": no_next, "stringData": own(server, &ca) })),
                Some(json!({ "stringData": own(client, &ca) })),
            ]
        }
        Step::Renew => {
            let all = AutoscalerCertificates::make_at(names, now)?;
            let ca = signer(server).unwrap_or_default() + &all.ca;
            let Identity { certificate, key } = all.server;
            [
                Some(json!({ "stringData": { (NEXT_CERT): certificate, (NEXT_KEY): key, (CA): ca } })),
                Some(json!({ "stringData": own(all.client, &ca) })),
            ]
        }
        Step::Switch => {
            let next = json!({ (CERT): text(server, NEXT_CERT), (KEY): text(server, NEXT_KEY) });
            [Some(json!({ "data": no_next, "stringData": next })), None]
        }
    })
}

/// The next step.
fn step(server: &Secret, caller: &Secret, names: &[&str], now: OffsetDateTime) -> Step {
    if [CERT, KEY, CA].iter().any(|key| text(server, key).is_none() || text(caller, key).is_none()) {
        return Step::Replace("there are none yet".to_owned());
    }
    let unreadable = || Step::Replace("one that is there cannot be read".to_owned());
    let (Some(own), Some(theirs)) = (Facts::of(server), Facts::of(caller)) else {
        return unreadable();
    };
    if let Some(name) = names.iter().find(|name| !own.names.iter().any(|own| own == *name)) {
        return Step::Replace(format!("the server's that is there is not for {name}"));
    }
    if let Some(expired) = [&own, &theirs].into_iter().find(|one| one.until <= now) {
        return Step::Replace(format!("one that is there was valid until {}", expired.until.date()));
    }
    let is_renewed = text(server, NEXT_CERT).is_some() && text(server, NEXT_KEY).is_some();
    match (is_renewed, text(server, CA) == text(caller, CA)) {
        (false, false) => Step::Replace("those of server and client come of two authorities".to_owned()),
        // The job ended between its two writes.
        (true, false) => Step::Renew,
        (true, true) if own.has_less_than(SWITCH_AT, now) => Step::Switch,
        (false, true) if own.has_less_than(RENEW_AT, now) || theirs.has_less_than(RENEW_AT, now) => {
            Step::Renew
        }
        (_, true) => Step::Keep,
    }
}

/// The CA that signed the server's certificate, PEM: the newest one, or the one before that in a renewal.
fn signer(server: &Secret) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----\n";
    let all: Vec<&str> = text(server, CA)?.split_inclusive(END).collect();
    let is_renewed = text(server, NEXT_CERT).is_some();
    if is_renewed { all.first() } else { all.last() }.map(|ca| (*ca).to_owned())
}

fn text<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    let value = secret.data.as_ref()?.get(key)?;
    std::str::from_utf8(&value.0).ok().filter(|text| !text.is_empty())
}

/// Facts of a certificate.
struct Facts {
    names: Vec<String>,
    until: OffsetDateTime,
    lifetime: Duration,
}

impl Facts {
    /// Facts of the certificate in use.
    fn of(secret: &Secret) -> Option<Self> {
        let pem = Pem::iter_from_buffer(text(secret, CERT)?.as_bytes()).next()?.ok()?;
        let (_, certificate) = X509Certificate::from_der(&pem.contents).ok()?;
        let validity = certificate.validity();
        let (from, until) = (validity.not_before.to_datetime(), validity.not_after.to_datetime());
        let alternative = certificate.subject_alternative_name().ok().flatten();
        let names = alternative.iter().flat_map(|names| &names.value.general_names);
        let names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        Some(Self { names: names.collect(), until, lifetime: until - from })
    }

    /// Returns true if less than this part of the lifetime is left.
    fn has_less_than(&self, divisor: i32, now: OffsetDateTime) -> bool {
        self.until - now < self.lifetime / divisor
    }
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
