//! Errors of a machine's identity.

use std::time::Duration;

use kube_ext::call::ApiError;

/// Time that a CSR may stay unanswered before that is reported.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_mins(1);

/// Reason why a machine has no identity, or no longer. The text includes the remedy: it becomes the last line
/// of the machine's container.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A call about the CSR failed.
    #[error(transparent)]
    Call(#[from] ApiError),
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
        ANSWER_LIMIT.as_secs()
    )]
    Unanswered {
        /// Name of the `CertificateSigningRequest`.
        name: String,
    },
    /// The token is refused before its expiry: the Node that it is bound to is gone.
    #[error("the API server takes the token of Node {node} no more: that Node is gone, or was made anew")]
    NodeGone {
        /// Name of the Node.
        node: String,
    },
    /// There is no usable token yet: the kubelet may be about to write its file, or to replace it.
    #[error(transparent)]
    NoToken(anyhow::Error),
    /// Key, certificate, state or client cannot be used; waiting does not help.
    #[error(transparent)]
    Unusable(#[from] anyhow::Error),
}

impl IdentityError {
    /// Returns true if waiting may help.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::NoToken(_) | Self::Unanswered { .. } => true,
            Self::Call(error) => !error.is_final() && !self.is_unauthenticated(),
            _ => false,
        }
    }

    /// Returns true if the API server does not accept the credential of a call.
    pub(super) fn is_unauthenticated(&self) -> bool {
        matches!(self, Self::Call(error) if error.is(401))
    }
}
