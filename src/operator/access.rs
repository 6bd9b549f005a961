//! Access to the API server: an identity and its clients.

use std::path::Path;

use anyhow::Context;
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use kube_ext::{connection, leader::Fence};

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
    pub async fn new(kubeconfig: Option<&Path>) -> anyhow::Result<Self> {
        let config = match kubeconfig {
            Some(path) => {
                let unusable = || format!("the kubeconfig {} cannot be used", path.display());
                let file = Kubeconfig::read_from(path).with_context(unusable)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .with_context(unusable)?
            }
            None => Config::infer()
                .await
                .context("no way to an API server: give --kubeconfig, set KUBECONFIG, or run in a pod")?,
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
    pub fn client(&self) -> anyhow::Result<Client> {
        connection::client(self.config.clone())
            .with_context(|| format!("cannot make a client for {}", self.url))
    }

    /// A client that sends writes only while `fence` is open.
    pub(super) fn fenced(&self, fence: &Fence) -> anyhow::Result<Client> {
        connection::fenced(self.config.clone(), fence)
            .with_context(|| format!("cannot make a client for {}", self.url))
    }

    /// Returns the client once the API server has answered.
    pub async fn reached(&self) -> anyhow::Result<Client> {
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
}
