//! Access to the API server: an identity and its clients.

use std::path::Path;

use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use kube_ext::{connection, leader::Fence};

use super::OperatorError;
use crate::preflight::Preflight;

/// An identity and the API server that it is for.
#[derive(Clone)]
pub struct Access {
    config: Config,
    /// URL of the API server, for messages.
    pub(super) url: String,
    /// Source of the identity, for messages.
    identity: String,
}

impl Access {
    /// Reads the kubeconfig; without one, infers the configuration from `KUBECONFIG` or the pod's ServiceAccount.
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

    /// Impersonates `user`, so that a second identity needs no second credential.
    #[must_use]
    pub fn acting_as(mut self, user: String) -> Self {
        self.identity = format!("{} as {user}", self.identity);
        self.config.auth_info.impersonate = Some(user);
        self
    }

    /// Address and CA of the API server, without credentials.
    pub(super) fn anonymous(&self) -> Config {
        let mut config = self.config.clone();
        config.auth_info = AuthInfo::default();
        config
    }

    /// A client without a fence.
    pub fn client(&self) -> Result<Client, OperatorError> {
        connection::client(self.config.clone()).map_err(|source| self.no_client(source))
    }

    /// A client that sends writes only while `fence` is open.
    pub(super) fn fenced(&self, fence: &Fence) -> Result<Client, OperatorError> {
        connection::fenced(self.config.clone(), fence).map_err(|source| self.no_client(source))
    }

    /// Returns the client once the API server has answered.
    pub async fn reached(&self) -> Result<Client, OperatorError> {
        let client = self.client()?;
        self.preflight(&client, "").reach().await?;
        Ok(client)
    }

    /// Checks of this identity by its `client`.
    pub(super) fn preflight<'a>(&'a self, client: &'a Client, namespace: &'a str) -> Preflight<'a> {
        Preflight { client, who: &self.identity, url: &self.url, namespace }
    }

    /// CA certificates of the API server (PEM); empty if the system's root certificates are used.
    pub(super) fn ca(&self) -> String {
        let certificates = self.config.root_cert.iter().flatten();
        certificates.map(|der| pem::encode(&pem::Pem::new("CERTIFICATE", der.as_slice()))).collect()
    }

    fn no_client(&self, source: kube::Error) -> OperatorError {
        OperatorError::Client { url: self.url.clone(), source: Box::new(source) }
    }
}
