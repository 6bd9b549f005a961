//! Identity of a machine: a client certificate `system:node:<name>`, so that Node authorization and
//! `NodeRestriction` limit the machine to its own Node, Lease and pods. Machines with pods of their own have
//! one, and hollow machines whose class asks for it.
//!
//! [`token`] is the provider's side: a short-lived token of a ServiceAccount that may only request
//! certificates, bound to the Node by name and UID, in a bootstrap kubeconfig. [`Identity`] is the machine's
//! side: with that token it requests a certificate (`certificates.k8s.io`), which the operator's approver
//! compares with the Node; from then on it renews the certificate with the certificate itself. The
//! [`CredentialStore`] supplies the token and keeps the key: [`Folders`] for a pod, [`MemoryStore`] for a
//! machine in a process with others. The key is generated here and never leaves that store.

mod bootstrap;
mod credential_store;
mod error;
mod memory;
mod request;
mod rotating;
mod store;
pub mod token;

use std::{ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Client;
use kube_ext::{backoff::Backoff, environment, error::chain};
use kube_node_api::{machine_identity::LIFETIME_MAX, time::passed};
use parking_lot::RwLock;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

pub use credential_store::{CredentialStore, Folders};
pub use error::IdentityError;
pub use memory::{BootstrapClient, MemoryStore};
pub use request::PendingCsr;

use self::rotating::rotating;
pub use self::store::Certificate;

/// Time of renewal, as a fraction of the certificate's lifetime; random, so that machines created together do
/// not stay together.
pub const RENEW_AT: RangeInclusive<f64> = 0.7..=0.9;
/// Time limit for temporary failures: an unreachable API server, a token that is about to be replaced, an
/// approver that restarts. After that the machine ends, and its pod shows the reason.
pub const PATIENCE: Duration = Duration::from_mins(5);
/// Backoff between two tries.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Settings of an identity.
#[derive(Clone, Debug)]
pub struct IdentityOptions<P = Folders> {
    /// Name of the machine's Node.
    pub node: String,
    /// Credential store.
    pub store: P,
    /// Requested lifetime of a certificate; the API accepts 10 minutes at least.
    pub lifetime: Duration,
    /// Time of renewal, as a fraction of the certificate's lifetime.
    pub renew_at: RangeInclusive<f64>,
    /// Time limit for temporary failures.
    pub patience: Duration,
}

impl IdentityOptions {
    /// Options with the folders of a pod and the default times.
    pub fn new(node: impl Into<String>, bootstrap: PathBuf, state_dir: PathBuf) -> Self {
        Self::at(node, Folders { bootstrap, state_dir })
    }
}

impl<P> IdentityOptions<P> {
    /// Options with a credential store and the default times.
    pub fn at(node: impl Into<String>, store: P) -> Self {
        Self { node: node.into(), store, lifetime: LIFETIME_MAX, renew_at: RENEW_AT, patience: PATIENCE }
    }
}

/// Identity of a machine.
pub struct Identity<P = Folders> {
    options: IdentityOptions<P>,
    /// Client of the newest certificate.
    newest: Arc<RwLock<Client>>,
    certificate: Certificate,
}

impl<P: CredentialStore> Identity<P> {
    /// The stored identity, else a new one. Retries temporary failures for `patience`; a permanent one is
    /// returned at once.
    pub async fn obtain(options: IdentityOptions<P>) -> Result<Self, IdentityError> {
        Self::obtain_with(options, &mut PendingCsr::default()).await
    }

    /// Like [`Self::obtain`], continuing a pending CSR.
    pub async fn obtain_with(
        options: IdentityOptions<P>,
        pending_csr: &mut PendingCsr,
    ) -> Result<Self, IdentityError> {
        let certificate = if let Some(stored) = options.store.load(&options.node, environment::now())? {
            info!(until = %stored.not_after, "going on with the certificate that is kept");
            stored
        } else {
            let deadline = Instant::now() + options.patience;
            let made = certify(&options, pending_csr, None, deadline).await?;
            info!(until = %made.not_after, "the certificate is issued");
            made
        };
        let client = options.store.certificate_client(&certificate).await?;
        Ok(Self { newest: Arc::new(RwLock::new(client)), options, certificate })
    }

    /// A client that always uses the newest certificate. Clones share its connections.
    pub fn client(&self) -> Client {
        rotating(&self.newest)
    }

    /// Renews the certificate in time for as long as possible; returns the error that ends this.
    pub async fn keep(mut self) -> IdentityError {
        loop {
            if let Err(error) = self.renewed().await {
                return error;
            }
        }
    }

    /// Waits until the renewal is due, and renews the certificate: by itself while it is accepted, then by the token
    /// of the bootstrap kubeconfig. Later requests use a new connection; requests on the former one should be
    /// dropped.
    pub async fn renewed(&mut self) -> Result<(), IdentityError> {
        let renewal = self.certificate.renewal(&self.options.renew_at);
        sleep(until(renewal)).await;
        // While the certificate is valid, a failure costs nothing.
        let deadline = Instant::now() + until(self.certificate.not_after) + self.options.patience;
        let client = self.client();
        let made = certify(&self.options, &mut PendingCsr::default(), Some(&client), deadline).await?;
        self.connect_anew(&made).await?;
        info!(until = %made.not_after, "the certificate is renewed");
        self.certificate = made;
        Ok(())
    }

    /// Ends all connections, once the requests on them are dropped. The next request opens another one.
    pub async fn hang_up(&self) -> Result<(), IdentityError> {
        self.connect_anew(&self.certificate).await
    }

    /// Sends all later requests by a new client, which authenticates by the certificate.
    async fn connect_anew(&self, certificate: &Certificate) -> Result<(), IdentityError> {
        let client = self.options.store.certificate_client(certificate).await?;
        *self.newest.write() = client;
        Ok(())
    }
}

/// Time until `time`.
fn until(time: Timestamp) -> Duration {
    passed(environment::now(), time)
}

/// Obtains and stores a certificate: by `client` while the API server accepts its certificate, otherwise by the token.
/// Retries temporary failures until `deadline`; a permanent one is returned at once.
async fn certify<P: CredentialStore>(
    options: &IdentityOptions<P>,
    pending_csr: &mut PendingCsr,
    client: Option<&Client>,
    deadline: Instant,
) -> Result<Certificate, IdentityError> {
    let mut backoff = BACKOFF;
    loop {
        let mut made = match client {
            Some(client) => pending_csr.with_client(client, options).await,
            None => pending_csr.with_token(options).await,
        };
        if client.is_some() && made.as_ref().is_err_and(IdentityError::is_unauthenticated) {
            made = pending_csr.with_token(options).await;
        }
        let error = match made {
            Ok(made) => return options.store.save(&made).map(|()| made),
            Err(error) => error,
        };
        let wait = backoff.wait();
        if !error.is_temporary() || Instant::now() + wait >= deadline {
            return Err(error);
        }
        warn!(error = chain(&error), "no certificate yet, trying again");
        sleep(wait).await;
    }
}
