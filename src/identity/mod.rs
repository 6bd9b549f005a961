//! The identity of a machine that is a pod of its own: a client certificate `system:node:<name>`, so that Node authorization
//! and `NodeRestriction` hold it to its own Node, Lease and pods.
//!
//! [`token`] is the provider's side: a short-lived token of a ServiceAccount that may do nothing but ask for certificates,
//! bound to the Node by name and UID, in a bootstrap kubeconfig. [`Identity`] is the machine's: with that token it asks for a
//! certificate (`certificates.k8s.io`), which the operator's approver compares with the Node; from then on it renews the
//! certificate with the certificate itself. The key is made here and never leaves the state folder.

mod bootstrap;
mod error;
mod request;
mod rotating;
mod store;
pub mod token;

use std::{ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Client;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

pub use error::IdentityError;

use self::{
    bootstrap::Bootstrap,
    rotating::Rotating,
    store::{Certificate, Store},
};
use crate::core::approval::LIFETIME_MAX;

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
pub struct Options {
    /// Name of its Node.
    pub node: String,
    /// The bootstrap kubeconfig. Read anew for each try: the provider may replace it while the machine waits.
    pub bootstrap: PathBuf,
    /// Folder for the certificate and its key, of this machine alone.
    pub state_dir: PathBuf,
    /// What a certificate is asked to live; the API takes 10 minutes at least.
    pub lifetime: Duration,
    /// When a certificate is renewed, as parts of its life.
    pub renew_at: RangeInclusive<f64>,
    /// How long to wait for what may come right by itself.
    pub patience: Duration,
}

impl Options {
    /// With the usual times.
    #[must_use]
    pub fn new(node: impl Into<String>, bootstrap: PathBuf, state_dir: PathBuf) -> Self {
        Self {
            node: node.into(),
            bootstrap,
            state_dir,
            lifetime: LIFETIME,
            renew_at: RENEW_AT,
            patience: PATIENCE,
        }
    }
}

/// A machine's identity.
pub struct Identity {
    options: Options,
    store: Store,
    rotating: Arc<Rotating>,
    certificate: Certificate,
}

impl Identity {
    /// The identity that the state folder keeps, else a new one. Waits for what may come right by itself, as long as
    /// `patience` says; what never will is an error at once.
    pub async fn obtain(options: Options) -> Result<Self, IdentityError> {
        let store = Store::open(&options.state_dir)?;
        let certificate = if let Some(kept) = store.load(&options.node, Timestamp::now())? {
            info!(until = %kept.not_after, "going on with the certificate that is kept");
            kept
        } else {
            let mut patience = Patience::until(Instant::now() + options.patience);
            let made = loop {
                match request::with_token(&options).await {
                    Ok(made) => break made,
                    Err(error) => patience.after(error).await?,
                }
            };
            store.save(&made)?;
            info!(until = %made.not_after, "the certificate is issued");
            made
        };
        let client = Bootstrap::read(&options.bootstrap).await?.client_of(&certificate)?;
        Ok(Self { rotating: Rotating::new(client), options, store, certificate })
    }

    /// A client whose connections use the newest certificate. Clones and their connections are shared.
    #[must_use]
    pub fn client(&self) -> Client {
        self.rotating.client()
    }

    /// Renews the certificate in time, for as long as that goes; comes back with the error that ends it.
    pub async fn keep(mut self) -> IdentityError {
        loop {
            let renewal = self.certificate.renewal(&self.options.renew_at);
            sleep(from_now(renewal)).await;
            if let Err(error) = self.renew().await {
                return error;
            }
        }
    }

    /// Asks with the certificate itself while that is good, with the token of the bootstrap kubeconfig after that.
    async fn renew(&mut self) -> Result<(), IdentityError> {
        // While the certificate lives, nothing is lost.
        let lives = from_now(self.certificate.not_after);
        let mut patience = Patience::until(Instant::now() + lives + self.options.patience);
        let client = self.client();
        let made = loop {
            let mut made = request::with_client(&client, &self.options).await;
            if matches!(made, Err(IdentityError::Unauthenticated { .. })) {
                made = request::with_token(&self.options).await;
            }
            match made {
                Ok(made) => break made,
                Err(error) => patience.after(error).await?,
            }
        };
        self.store.save(&made)?;
        self.rotating.replace(Bootstrap::read(&self.options.bootstrap).await?.client_of(&made)?);
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
struct Patience {
    deadline: Instant,
    wait: Duration,
}

impl Patience {
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
