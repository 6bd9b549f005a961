//! Why a machine has no identity.

use std::{io, path::PathBuf, time::Duration};

use jiff::Timestamp;

/// Why a machine has no identity, or no longer. What can be done about it is part of the text: it becomes the last line of
/// the machine's container.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The bootstrap kubeconfig cannot be used.
    #[error("the bootstrap kubeconfig {} cannot be used: it must be as the operator writes it", path.display())]
    Bootstrap {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It has no token.
    #[error("the bootstrap kubeconfig {} has no token of a ServiceAccount", path.display())]
    NoToken {
        /// The file.
        path: PathBuf,
    },
    /// No client can be made of it.
    #[error("cannot make a client for {url}")]
    Client {
        /// Of the API server.
        url: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// There is no token to ask with.
    #[error(transparent)]
    Token(#[from] super::token::TokenError),
    /// Its token is too old.
    #[error(
        "the token in {} expired at {since}: the operator replaces it while it runs; see its logs, or delete the pod",
        path.display()
    )]
    TokenExpired {
        /// The file.
        path: PathBuf,
        /// Since when.
        since: Timestamp,
    },
    /// Its token is good by its time and refused nevertheless: what it is bound to is gone.
    #[error("the API server takes the token of Node {node} no more: that Node is gone, or was made anew")]
    NodeGone {
        /// Name of the Node.
        node: String,
    },
    /// The certificate was asked for with a certificate that the API server does not take any more.
    #[error("the API server does not take the certificate any more")]
    Unauthenticated {
        /// What it says.
        source: Box<kube::Error>,
    },
    /// The approver says no.
    #[error("the certificate is denied: {reason}: {message}")]
    Denied {
        /// Reason of the condition.
        reason: String,
        /// Its message.
        message: String,
    },
    /// The signer cannot.
    #[error("the signer failed: {reason}: {message}")]
    Failed {
        /// Reason of the condition.
        reason: String,
        /// Its message.
        message: String,
    },
    /// Nobody has answered the request.
    #[error(
        "request {name} has no certificate after {} s: the operator approves it and kube-controller-manager signs it; see whether both run",
        waited.as_secs()
    )]
    Unanswered {
        /// Name of the `CertificateSigningRequest`.
        name: String,
        /// For how long.
        waited: Duration,
    },
    /// The API server refuses.
    #[error("cannot {action}")]
    Refused {
        /// What was being done.
        action: String,
        /// What it says.
        source: Box<kube::Error>,
    },
    /// No answer, or none of an API server.
    #[error("cannot {action}: the API server cannot be reached")]
    Unreachable {
        /// What was being done.
        action: String,
        /// What happened; None when nothing came back in time.
        source: Option<Box<kube::Error>>,
    },
    /// The state folder.
    #[error("cannot use {}: it must be a folder that this user may write", path.display())]
    State {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No key, or no request of it.
    #[error("cannot make a key and a request for a certificate")]
    Key(#[source] rcgen::Error),
    /// What was issued is no certificate for the key.
    #[error("what was issued is no certificate of this machine: {what}")]
    Unusable {
        /// What is wrong with it.
        what: String,
    },
}

impl IdentityError {
    /// Whether waiting can help.
    #[must_use]
    pub fn may_come_right(&self) -> bool {
        match self {
            // The kubelet may be about to write the file, or to replace it.
            Self::Bootstrap { .. }
            | Self::NoToken { .. }
            | Self::Token(_)
            | Self::TokenExpired { .. }
            | Self::Unanswered { .. }
            | Self::Unreachable { .. } => true,
            Self::Refused { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if status.code == 429 || status.code >= 500)
            }
            // With the token there may be another certificate.
            Self::Unauthenticated { .. }
            | Self::NodeGone { .. }
            | Self::Denied { .. }
            | Self::Failed { .. }
            | Self::Client { .. }
            | Self::State { .. }
            | Self::Key(_)
            | Self::Unusable { .. } => false,
        }
    }
}
