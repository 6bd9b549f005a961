//! The way to the API server: an identity, and the clients that go by it.

use std::path::Path;

use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use kube_ext::{connection, leader::Fence};

use super::OperatorError;
use crate::preflight;

/// An identity, and where it leads to.
#[derive(Clone)]
pub struct Access {
    config: Config,
    /// Of the API server, for messages.
    pub(super) url: String,
    /// Where the identity comes from, for messages.
    pub(super) identity: String,
}

impl Access {
    /// From a kubeconfig, or from what KUBECONFIG or the pod offers.
    pub async fn new(kubeconfig: Option<&Path>) -> Result<Self, OperatorError> {
        let config = match kubeconfig {
            Some(path) => {
                let failed = |source| OperatorError::Kubeconfig { path: path.to_owned(), source };
                let file = Kubeconfig::read_from(path).map_err(failed)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(failed)?
            }
            None => Config::infer().await.map_err(|source| OperatorError::NoConfig(Box::new(source)))?,
        };
        let identity = kubeconfig
            .map_or_else(|| "this identity".to_owned(), |path| format!("the identity of {}", path.display()));
        Ok(Self { url: config.cluster_url.to_string(), config, identity })
    }

    /// The same, acting as a user by impersonation: so a second identity needs no second credential.
    #[must_use]
    pub fn acting_as(mut self, user: String) -> Self {
        self.identity = format!("{} as {user}", self.identity);
        self.config.auth_info.impersonate = Some(user);
        self
    }

    /// Where the API server is, and what it is known by, without an identity.
    pub(super) fn anonymous(&self) -> Config {
        let mut config = self.config.clone();
        config.auth_info = AuthInfo::default();
        config
    }

    /// A client that does what it is asked to.
    pub fn client(&self) -> Result<Client, OperatorError> {
        connection::client(self.config.clone()).map_err(|source| self.no_client(source))
    }

    /// A client that writes only while `fence` is open.
    pub(super) fn fenced(&self, fence: &Fence) -> Result<Client, OperatorError> {
        connection::fenced(self.config.clone(), fence).map_err(|source| self.no_client(source))
    }

    /// The client, once the API server has answered.
    pub async fn reached(&self) -> Result<Client, OperatorError> {
        let client = self.client()?;
        preflight::reach(&client, &self.url).await?;
        Ok(client)
    }

    /// The certificates that the API server is known by (PEM); none where those of this machine are used.
    pub(super) fn ca(&self) -> String {
        let certificates = self.config.root_cert.iter().flatten();
        certificates.map(|der| pem::encode(&pem::Pem::new("CERTIFICATE", der.as_slice()))).collect()
    }

    fn no_client(&self, source: kube::Error) -> OperatorError {
        OperatorError::Client { url: self.url.clone(), source: Box::new(source) }
    }
}
