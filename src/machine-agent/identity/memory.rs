//! A machine in a process with others: it begins with a token that the process requests, its key is in memory alone, and its
//! clients connect as a kubelet's do. A process that starts anew asks for all certificates anew.

use std::sync::Arc;

use jiff::Timestamp;
use kube::{Client, Config, config::AuthInfo};
use kube_ext::{connection::like_a_kubelet, leader::Fence, rate::Rate};
use kube_node_planner::approval::Account;
use secrecy::ExposeSecret;

use super::{
    CredentialStore, IdentityError,
    bootstrap::{Beginning, showing},
    store::Certificate,
    token::{self, LIFETIME_MIN},
};

/// What all machines of a process have in common.
pub struct BootstrapClient {
    /// Requests tokens.
    pub requester: Client,
    /// Where the API server is, and what it is known by.
    pub server: Config,
    /// What machines write goes through it.
    pub fence: Fence,
}

/// One machine of a process.
#[derive(Clone)]
pub struct MemoryStore {
    uid: Arc<str>,
    road: Arc<BootstrapClient>,
    rate: Arc<Rate>,
}

impl MemoryStore {
    /// The place of the machine of the Node with this UID.
    #[must_use]
    pub fn new(uid: Arc<str>, road: Arc<BootstrapClient>) -> Self {
        Self { uid, road, rate: Arc::default() }
    }

    /// How fast its clients ask, all together.
    #[must_use]
    pub fn rate(&self) -> Arc<Rate> {
        Arc::clone(&self.rate)
    }

    fn client_with(&self, auth_info: AuthInfo) -> Result<Client, IdentityError> {
        let BootstrapClient { server, fence, .. } = &*self.road;
        let mut config = server.clone();
        config.auth_info = auth_info;
        let url = config.cluster_url.to_string();
        like_a_kubelet(config, fence, &self.rate)
            .map_err(|source| IdentityError::Client { url, source: Box::new(source) })
    }
}

impl CredentialStore for MemoryStore {
    async fn begin(&self, node: &str) -> Result<Beginning, IdentityError> {
        let token =
            token::request(&self.road.requester, Account::Hollow, node, &self.uid, LIFETIME_MIN).await?;
        let shown =
            AuthInfo { token: Some(token.secret.expose_secret().to_owned().into()), ..AuthInfo::default() };
        Ok(Beginning { client: self.client_with(shown)?, kept: None })
    }

    async fn client_of(&self, certificate: &Certificate) -> Result<Client, IdentityError> {
        self.client_with(showing(certificate))
    }

    fn load(&self, _: &str, _: Timestamp) -> Result<Option<Certificate>, IdentityError> {
        Ok(None)
    }

    fn save(&self, _: &Certificate) -> Result<(), IdentityError> {
        Ok(())
    }
}
