//! Errors of a machine's identity.

use std::{io, path::PathBuf, time::Duration};

use jiff::Timestamp;
use kube_ext::call::ApiError;

/// Reason why a machine has no identity, or no longer. The text includes the remedy: it becomes the last line
/// of the machine's container.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The bootstrap kubeconfig cannot be used.
    #[error("the bootstrap kubeconfig {} cannot be used: it must be as the operator writes it", path.display())]
    Bootstrap {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The bootstrap kubeconfig has no token.
    #[error("the bootstrap kubeconfig {} has no token of a ServiceAccount", path.display())]
    NoToken {
        /// Path of the file.
        path: PathBuf,
    },
    /// No client can be built from the kubeconfig.
    #[error("cannot make a client for {url}")]
    Client {
        /// URL of the API server.
        url: String,
        /// Cause.
        source: Box<kube::Error>,
    },
    /// No token could be requested.
    #[error(transparent)]
    Token(ApiError),
    /// The token has expired.
    #[error(
        "the token in {} expired at {since}: the operator replaces it while it runs; see its logs, or delete the pod",
        path.display()
    )]
    TokenExpired {
        /// Path of the file.
        path: PathBuf,
        /// Expiry of the token.
        since: Timestamp,
    },
    /// The token is refused before its expiry: the Node that it is bound to is gone.
    #[error("the API server takes the token of Node {node} no more: that Node is gone, or was made anew")]
    NodeGone {
        /// Name of the Node.
        node: String,
    },
    /// The approver denied the CSR.
    #[error("the certificate is denied: {reason}: {message}")]
    Denied {
        /// Reason of the condition.
        reason: String,
        /// Message of the condition.
        message: String,
    },
    /// The signer failed.
    #[error("the signer failed: {reason}: {message}")]
    Failed {
        /// Reason of the condition.
        reason: String,
        /// Message of the condition.
        message: String,
    },
    /// The CSR was not answered in time.
    #[error(
        "request {name} has no certificate after {} s: the operator approves it and kube-controller-manager signs it; see whether both run",
        waited.as_secs()
    )]
    Unanswered {
        /// Name of the `CertificateSigningRequest`.
        name: String,
        /// Time waited.
        waited: Duration,
    },
    /// A call about the CSR failed.
    #[error(transparent)]
    Call(#[from] ApiError),
    /// The state folder cannot be used.
    #[error("cannot use {}: it must be a folder that this user may write", path.display())]
    State {
        /// File or folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The key or the CSR cannot be created.
    #[error("cannot make a key and a request for a certificate")]
    Key(#[source] rcgen::Error),
    /// The issued certificate does not fit the key or the machine.
    #[error("what was issued is no certificate of this machine: {what}")]
    Unusable {
        /// Defect of the certificate.
        what: String,
    },
}

impl IdentityError {
    /// Returns true if waiting may help.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            // The kubelet may be about to write the file, or to replace it.
            Self::Bootstrap { .. }
            | Self::NoToken { .. }
            | Self::Token(_)
            | Self::TokenExpired { .. }
            | Self::Unanswered { .. } => true,
            Self::Call(error) => !error.is_final() && !self.is_unauthenticated(),
            _ => false,
        }
    }

    /// Returns true if the API server does not accept the credential of a call.
    pub(super) fn is_unauthenticated(&self) -> bool {
        matches!(self, Self::Call(error) if error.is(401))
    }
}
