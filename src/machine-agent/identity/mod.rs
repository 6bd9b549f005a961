//! The identity of a machine: a client certificate `system:node:<name>`, so that Node authorization and `NodeRestriction` hold
//! it to its own Node, Lease and pods. Machines that are pods have one, and hollow machines whose class wants so.
//!
//! [`token`] is the provider's side: a short-lived token of a ServiceAccount that may do nothing but ask for certificates,
//! bound to the Node by name and UID, in a bootstrap kubeconfig. [`Identity`] is the machine's: with that token it asks for a
//! certificate (`certificates.k8s.io`), which the operator's approver compares with the Node; from then on it renews the
//! certificate with the certificate itself. Where it begins, and what keeps its key, is its [`CredentialStore`]: a pod has [`Folders`], a
//! machine in a process with others has [`MemoryStore`]. The key is made here and never leaves that place.

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
use kube_node_planner::approval::LIFETIME_MAX;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

pub use credential_store::{CredentialStore, Folders};
pub use error::IdentityError;
pub use memory::{BootstrapClient, MemoryStore};
pub use request::PendingCsr;

use self::rotating::Rotating;
pub use self::store::Certificate;

/// What a certificate is asked to live: all that is granted.
pub const LIFETIME: Duration = LIFETIME_MAX;
/// When a certificate is renewed, as parts of its life; by chance, so that machines made together do not stay together.
pub const RENEW_AT: RangeInclusive<f64> = 0.7..=0.9;
/// How long a machine waits for what may come right by itself: an API server that is away, a token that is about to be
/// replaced, an approver that restarts. Then it ends, and its pod shows why.
pub const PATIENCE: Duration = Duration::from_mins(5);
/// First wait between two tries.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// What a machine needs to come by its identity.
#[derive(Clone, Debug)]
pub struct Options<P = Folders> {
    /// Name of its Node.
    pub node: String,
    /// Where it begins, and what keeps the certificate and its key.
    pub place: P,
    /// What a certificate is asked to live; the API takes 10 minutes at least.
    pub lifetime: Duration,
    /// When a certificate is renewed, as parts of its life.
    pub renew_at: RangeInclusive<f64>,
    /// How long to wait for what may come right by itself.
    pub patience: Duration,
}

impl Options {
    /// In the folders of a pod, with the usual times.
    #[must_use]
    pub fn new(node: impl Into<String>, bootstrap: PathBuf, state_dir: PathBuf) -> Self {
        Self::at(node, Folders { bootstrap, state_dir })
    }
}

impl<P> Options<P> {
    /// At a place, with the usual times.
    #[must_use]
    pub fn at(node: impl Into<String>, place: P) -> Self {
        Self { node: node.into(), place, lifetime: LIFETIME, renew_at: RENEW_AT, patience: PATIENCE }
    }
}

/// A machine's identity.
pub struct Identity<P = Folders> {
    options: Options<P>,
    rotating: Arc<Rotating>,
    certificate: Certificate,
}

impl<P: CredentialStore> Identity<P> {
    /// The identity that its place keeps, else a new one. Waits for what may come right by itself, as long as
    /// `patience` says; what never will is an error at once.
    pub async fn obtain(options: Options<P>) -> Result<Self, IdentityError> {
        Self::pursue(options, &mut PendingCsr::default()).await
    }

    /// The same, going on with a request that was made before.
    pub async fn pursue(options: Options<P>, pursuit: &mut PendingCsr) -> Result<Self, IdentityError> {
        let certificate = if let Some(kept) = options.place.load(&options.node, Timestamp::now())? {
            info!(until = %kept.not_after, "going on with the certificate that is kept");
            kept
        } else {
            let mut patience = Backoff::until(Instant::now() + options.patience);
            let made = loop {
                match pursuit.with_token(&options).await {
                    Ok(made) => break made,
                    Err(error) => patience.after(error).await?,
                }
            };
            options.place.save(&made)?;
            info!(until = %made.not_after, "the certificate is issued");
            made
        };
        let client = options.place.client_of(&certificate).await?;
        Ok(Self { rotating: Rotating::new(client), options, certificate })
    }

    /// A client whose connections use the newest certificate. Clones and their connections are shared.
    #[must_use]
    pub fn client(&self) -> Client {
        self.rotating.client()
    }

    /// Renews the certificate in time, for as long as that goes; comes back with the error that ends it.
    pub async fn keep(mut self) -> IdentityError {
        loop {
            if let Err(error) = self.renewed().await {
                return error;
            }
        }
    }

    /// Waits until the certificate is to be renewed, and does that. From then on there is another connection; what runs on the
    /// one before is to be dropped.
    pub async fn renewed(&mut self) -> Result<(), IdentityError> {
        let renewal = self.certificate.renewal(&self.options.renew_at);
        sleep(from_now(renewal)).await;
        self.renew().await
    }

    /// Ends all connections, once what runs on them is dropped. The next request makes another one.
    pub async fn hang_up(&self) -> Result<(), IdentityError> {
        self.rotating.replace(self.options.place.client_of(&self.certificate).await?);
        Ok(())
    }

    /// Asks with the certificate itself while that is good, with the token of the bootstrap kubeconfig after that.
    async fn renew(&mut self) -> Result<(), IdentityError> {
        // While the certificate lives, nothing is lost.
        let lives = from_now(self.certificate.not_after);
        let mut patience = Backoff::until(Instant::now() + lives + self.options.patience);
        let client = self.client();
        let mut pursuit = PendingCsr::default();
        let made = loop {
            let mut made = pursuit.with_client(&client, &self.options).await;
            if matches!(made, Err(IdentityError::Unauthenticated { .. })) {
                made = pursuit.with_token(&self.options).await;
            }
            match made {
                Ok(made) => break made,
                Err(error) => patience.after(error).await?,
            }
        };
        self.options.place.save(&made)?;
        self.rotating.replace(self.options.place.client_of(&made).await?);
        info!(until = %made.not_after, "the certificate is renewed");
        self.certificate = made;
        Ok(())
    }
}

/// How long until `time`.
fn from_now(time: Timestamp) -> Duration {
    Duration::try_from(time.duration_since(Timestamp::now())).unwrap_or_default()
}

/// Between two tries.
struct Backoff {
    deadline: Instant,
    wait: Duration,
}

impl Backoff {
    fn until(deadline: Instant) -> Self {
        Self { deadline, wait: FIRST_WAIT }
    }

    /// Waits after a failure; gives it back when it cannot come right, or the time is over.
    async fn after(&mut self, error: IdentityError) -> Result<(), IdentityError> {
        if !error.may_come_right() || Instant::now() + self.wait >= self.deadline {
            return Err(error);
        }
        warn!(error = &error as &dyn std::error::Error, "no certificate yet, trying again");
        sleep(self.wait.mul_f64(rand::random_range(0.5..=1.0))).await;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        Ok(())
    }
}
