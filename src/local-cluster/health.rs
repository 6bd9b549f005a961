//! Whether something is ready: one GET of its own health endpoint, over HTTP or HTTPS with the admin's certificate.

use std::time::Duration;

use http::{Request, StatusCode};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

/// A component that does not answer within this is not ready.
const LIMIT: Duration = Duration::from_secs(3);

/// Why a component is not ready, or a client not to be had.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kubeconfig does not serve.
    #[error("the cluster's kubeconfig does not serve")]
    Kubeconfig(#[source] KubeconfigError),
    /// The client cannot be made.
    #[error("cannot make a client for the cluster")]
    Client(#[source] kube::Error),
    /// The address is no URL.
    #[error("cannot make a request")]
    Request(#[source] http::Error),
    /// It refused the connection, or broke it.
    #[error("no answer")]
    Unreachable(#[source] kube::Error),
    /// It took longer than three seconds.
    #[error("no answer within {} s", LIMIT.as_secs())]
    Slow,
    /// It says itself that it is not ready.
    #[error("it answers {0}")]
    NotReady(StatusCode),
}

/// Asks one process for its health.
#[derive(Clone)]
pub struct Probe {
    client: Client,
    path: &'static str,
}

impl Probe {
    /// For a path below a URL; `kubeconfig` is the admin's, as text.
    pub async fn new(url: &str, path: &'static str, kubeconfig: &str) -> Result<Self, ProbeError> {
        let mut config = config_of(kubeconfig).await?;
        config.cluster_url =
            url.parse().map_err(|error: http::uri::InvalidUri| ProbeError::Request(error.into()))?;
        // A probe is to tell how it is now.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(ProbeError::Client)?;
        Ok(Self { client, path })
    }

    /// Ready, or why not.
    pub async fn check(&self) -> Result<(), ProbeError> {
        let request = Request::get(self.path).body(Body::empty()).map_err(ProbeError::Request)?;
        let response = tokio::time::timeout(LIMIT, self.client.send(request)).await;
        match response.map_err(|_| ProbeError::Slow)?.map_err(ProbeError::Unreachable)?.status() {
            StatusCode::OK => Ok(()),
            status => Err(ProbeError::NotReady(status)),
        }
    }
}

/// A client for a kubeconfig given as text.
pub async fn client_of(kubeconfig: &str) -> Result<Client, ProbeError> {
    Client::try_from(config_of(kubeconfig).await?).map_err(ProbeError::Client)
}

async fn config_of(kubeconfig: &str) -> Result<Config, ProbeError> {
    let read = Kubeconfig::from_yaml(kubeconfig).map_err(ProbeError::Kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .map_err(ProbeError::Kubeconfig)?;
    // Taken from HTTPS_PROXY, and no way to 127.0.0.1.
    config.proxy_url = None;
    Ok(config)
}
