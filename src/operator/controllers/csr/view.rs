//! Pruned certificate signing requests: requester and requested certificate, until the request is decided.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube_node_planner::approval::{CertificateRequest, Subject};

/// A certificate signing request, pruned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsrView {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Resource version.
    pub resource_version: String,
    /// The undecided request; None once it is decided.
    pub pending: Option<Box<CertificateRequest>>,
}

impl From<CertificateSigningRequest> for CsrView {
    fn from(CertificateSigningRequest { metadata, spec, status }: CertificateSigningRequest) -> Self {
        let status = status.unwrap_or_default();
        let is_decided = status.certificate.is_some()
            || status.conditions.is_some_and(|conditions| !conditions.is_empty());
        let pending = (!is_decided).then(|| {
            Box::new(CertificateRequest {
                signer: spec.signer_name,
                username: spec.username.unwrap_or_default(),
                groups: spec.groups.unwrap_or_default(),
                extra: spec.extra.unwrap_or_default(),
                usages: spec.usages.unwrap_or_default(),
                lifetime: spec
                    .expiration_seconds
                    .and_then(|seconds| u64::try_from(seconds).ok())
                    .map(Duration::from_secs),
                subject: Subject::of(&spec.request.0),
            })
        });
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            pending,
        }
    }
}

impl kube_node_cache::View for CsrView {
    fn key(&self) -> String {
        self.name.clone()
    }
}
