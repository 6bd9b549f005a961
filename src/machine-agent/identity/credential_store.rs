//! Where a machine begins, and what keeps its certificate.

use std::path::PathBuf;

use jiff::Timestamp;
use kube::Client;

use super::{IdentityError, bootstrap::Bootstrap, store::Store};
pub use super::{bootstrap::Beginning, store::Certificate};

/// Where a machine begins, and what keeps its certificate.
pub trait CredentialStore: Send + Sync + 'static {
    /// A client that shows a token which is good for asking for a certificate; another one for each try.
    fn begin(&self, node: &str) -> impl Future<Output = Result<Beginning, IdentityError>> + Send;

    /// A client that shows the certificate; its connections are shared with nobody.
    fn client_of(
        &self,
        certificate: &Certificate,
    ) -> impl Future<Output = Result<Client, IdentityError>> + Send;

    /// The certificate that is kept, where it is good at `now`.
    fn load(&self, node: &str, now: Timestamp) -> Result<Option<Certificate>, IdentityError>;

    /// Keeps a certificate in the place of the one before.
    fn save(&self, certificate: &Certificate) -> Result<(), IdentityError>;
}

/// The folders of a machine that is a pod of its own.
#[derive(Clone, Debug)]
pub struct Folders {
    /// The bootstrap kubeconfig. Read anew for each try: the provider may replace it while the machine waits.
    pub bootstrap: PathBuf,
    /// Folder for the certificate and its key, of this machine alone.
    pub state_dir: PathBuf,
}

impl CredentialStore for Folders {
    async fn begin(&self, _: &str) -> Result<Beginning, IdentityError> {
        Bootstrap::read(&self.bootstrap).await?.begin()
    }

    async fn client_of(&self, certificate: &Certificate) -> Result<Client, IdentityError> {
        Bootstrap::read(&self.bootstrap).await?.client_of(certificate)
    }

    fn load(&self, node: &str, now: Timestamp) -> Result<Option<Certificate>, IdentityError> {
        Store::open(&self.state_dir)?.load(node, now)
    }

    fn save(&self, certificate: &Certificate) -> Result<(), IdentityError> {
        Store::open(&self.state_dir)?.save(certificate)
    }
}
