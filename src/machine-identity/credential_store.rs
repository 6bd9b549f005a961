//! Credential stores: the source of the bootstrap token, and the storage of the certificate.

use std::path::PathBuf;

use jiff::Timestamp;
use kube::Client;

use super::{IdentityError, bootstrap, store};
pub use super::{bootstrap::TokenClient, store::Certificate};

/// Source of the bootstrap token, and storage of the certificate.
pub trait CredentialStore: Send + Sync + 'static {
    /// A client whose token may request a certificate; another client for each try.
    fn token_client(&self, node: &str) -> impl Future<Output = Result<TokenClient, IdentityError>> + Send;

    /// A client that authenticates by the certificate; its connections are shared with nobody.
    fn certificate_client(
        &self,
        certificate: &Certificate,
    ) -> impl Future<Output = Result<Client, IdentityError>> + Send;

    /// The stored certificate, if it is valid at `now`.
    fn load(&self, node: &str, now: Timestamp) -> Result<Option<Certificate>, IdentityError>;

    /// Stores a certificate in place of the former one.
    fn save(&self, certificate: &Certificate) -> Result<(), IdentityError>;
}

/// Folders of a machine with a pod of its own.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Bootstrap kubeconfig. Read for each try: the provider may replace it while the machine waits.
    pub bootstrap: PathBuf,
    /// Folder for the certificate and its key, used by this machine only.
    pub state_dir: PathBuf,
}

impl CredentialStore for Folders {
    async fn token_client(&self, _: &str) -> Result<TokenClient, IdentityError> {
        bootstrap::token_client(&self.bootstrap).await
    }

    async fn certificate_client(&self, certificate: &Certificate) -> Result<Client, IdentityError> {
        bootstrap::certificate_client(&self.bootstrap, certificate).await
    }

    fn load(&self, node: &str, now: Timestamp) -> Result<Option<Certificate>, IdentityError> {
        Ok(store::load(&self.state_dir, node, now)?)
    }

    fn save(&self, certificate: &Certificate) -> Result<(), IdentityError> {
        Ok(store::save(&self.state_dir, certificate)?)
    }
}
