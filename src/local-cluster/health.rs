//! Health probe: one GET of a component's health endpoint, over HTTP or over HTTPS with the admin's certificate.

use std::time::Duration;

use http::{Request, StatusCode};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

/// Time limit of one probe.
const LIMIT: Duration = Duration::from_secs(3);

/// Reason why a component is not ready or a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kubeconfig is not usable.
    #[error("the cluster's kubeconfig does not serve")]
    Kubeconfig(#[source] KubeconfigError),
    /// The client cannot be made.
    #[error("cannot make a client for the cluster")]
    Client(#[source] kube::Error),
    /// The address is not a URL.
    #[error("cannot make a request")]
    Request(#[source] http::Error),
    /// The connection was refused or broken.
    #[error("no answer")]
    Unreachable(#[source] kube::Error),
    /// No answer came within three seconds.
    #[error("no answer within {} s", LIMIT.as_secs())]
    Slow,
    /// The endpoint reports that it is not ready.
    #[error("it answers {0}")]
    NotReady(StatusCode),
}

/// A health probe of one process.
#[derive(Clone)]
pub struct Probe {
    client: Client,
    path: &'static str,
}

impl Probe {
    /// A probe of a path below a URL; `kubeconfig` is the admin's kubeconfig as text.
    pub async fn new(url: &str, path: &'static str, kubeconfig: &str) -> Result<Self, ProbeError> {
        let mut config = config_of(kubeconfig).await?;
        config.cluster_url =
            url.parse().map_err(|error: http::uri::InvalidUri| ProbeError::Request(error.into()))?;
        // No retries: a probe reports the present state.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(ProbeError::Client)?;
        Ok(Self { client, path })
    }

    /// Returns `Ok` if the component is ready, else the reason.
    pub async fn check(&self) -> Result<(), ProbeError> {
        let request = Request::get(self.path).body(Body::empty()).map_err(ProbeError::Request)?;
        let response = tokio::time::timeout(LIMIT, self.client.send(request)).await;
        match response.map_err(|_| ProbeError::Slow)?.map_err(ProbeError::Unreachable)?.status() {
            StatusCode::OK => Ok(()),
            status => Err(ProbeError::NotReady(status)),
        }
    }
}

/// A client made from a kubeconfig given as text.
pub async fn client_of(kubeconfig: &str) -> Result<Client, ProbeError> {
    Client::try_from(config_of(kubeconfig).await?).map_err(ProbeError::Client)
}

async fn config_of(kubeconfig: &str) -> Result<Config, ProbeError> {
    let read = Kubeconfig::from_yaml(kubeconfig).map_err(ProbeError::Kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .map_err(ProbeError::Kubeconfig)?;
    // kube sets this from HTTPS_PROXY; a proxy cannot reach 127.0.0.1.
    config.proxy_url = None;
    Ok(config)
}
