//! Credential store of a machine that shares its process with others: the process requests the bootstrap
//! token, the key is in memory only, and the clients connect as a kubelet's do. A restarted process requests
//! all certificates again.

use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client, Config, config::AuthInfo};
use kube_ext::{connection::like_a_kubelet, leader::Fence, rate::Rate};
use kube_node_api::machine_identity::Account;

use super::{
    CredentialStore, IdentityError,
    bootstrap::{TokenClient, showing},
    store::Certificate,
    token::{self, LIFETIME_MIN},
};

/// Bootstrap client of all machines in a process.
pub struct BootstrapClient {
    /// `ServiceAccount`s of machines, of which tokens are requested.
    pub accounts: Api<ServiceAccount>,
    /// Address and certificate authority of the API server.
    pub server: Config,
    /// Fence for all writes of the machines.
    pub fence: Fence,
}

/// Credential store of one machine in the process.
#[derive(Clone)]
pub struct MemoryStore {
    /// UID of the machine's Node.
    pub uid: Arc<str>,
    /// Bootstrap client of the process.
    pub bootstrap: Arc<BootstrapClient>,
    /// Rate limit that all clients of the machine share.
    pub rate: Arc<Rate>,
}

impl MemoryStore {
    fn client_with(&self, auth_info: AuthInfo) -> Result<Client, IdentityError> {
        let BootstrapClient { server, fence, .. } = &*self.bootstrap;
        let mut config = server.clone();
        config.auth_info = auth_info;
        let url = config.cluster_url.to_string();
        let client = like_a_kubelet(config, fence, &self.rate);
        Ok(client.with_context(|| format!("cannot make a client for {url}"))?)
    }
}

impl CredentialStore for MemoryStore {
    async fn token_client(&self, node: &str) -> Result<TokenClient, IdentityError> {
        let requested =
            token::request(&self.bootstrap.accounts, Account::Hollow, node, &self.uid, LIFETIME_MIN).await;
        let token = requested.map_err(|error| IdentityError::NoToken(error.into()))?;
        let auth_info = AuthInfo { token: Some(token.secret), ..AuthInfo::default() };
        Ok(TokenClient { client: self.client_with(auth_info)?, stored: None })
    }

    async fn certificate_client(&self, certificate: &Certificate) -> Result<Client, IdentityError> {
        self.client_with(showing(certificate))
    }

    fn load(&self, _: &str, _: Timestamp) -> Result<Option<Certificate>, IdentityError> {
        Ok(None)
    }

    fn save(&self, _: &Certificate) -> Result<(), IdentityError> {
        Ok(())
    }
}
