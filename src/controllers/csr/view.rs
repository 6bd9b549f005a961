//! Pruned certificate signing requests: name, version, and the spec until the request is decided.

use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};

/// A certificate signing request, pruned.
#[derive(Debug)]
pub struct CsrView {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Resource version.
    pub resource_version: String,
    /// The undecided request; None once it is decided.
    pub pending: Option<Box<CertificateSigningRequestSpec>>,
}

impl From<CertificateSigningRequest> for CsrView {
    fn from(CertificateSigningRequest { metadata, spec, status }: CertificateSigningRequest) -> Self {
        let status = status.unwrap_or_default();
        let is_decided = status.certificate.is_some()
            || status.conditions.is_some_and(|conditions| !conditions.is_empty());
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            pending: (!is_decided).then(|| Box::new(spec)),
        }
    }
}

impl kube_node_cache::View for CsrView {
    fn key(&self) -> String {
        self.name.clone()
    }
}
