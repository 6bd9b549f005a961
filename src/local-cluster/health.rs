//! Health probe: one GET of a component's health endpoint, over HTTP or over HTTPS with the admin's certificate.

use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use http::{Request, StatusCode};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Time limit of one probe.
const LIMIT: Duration = Duration::from_secs(3);

/// A health probe of one process.
#[derive(Clone)]
pub struct Probe {
    client: Client,
    path: &'static str,
}

impl Probe {
    /// A probe of a path below a URL; `kubeconfig` is the admin's kubeconfig as text.
    pub async fn new(url: &str, path: &'static str, kubeconfig: &str) -> anyhow::Result<Self> {
        let mut config = config_of(kubeconfig).await?;
        config.cluster_url = url.parse().context("cannot make a request")?;
        // No retries: a probe reports the present state.
        config.default_retry = false;
        Ok(Self { client: client_with(config)?, path })
    }

    /// Returns `Ok` if the component is ready, else the reason.
    pub async fn check(&self) -> anyhow::Result<()> {
        let request = Request::get(self.path).body(Body::empty()).context("cannot make a request")?;
        let answer = tokio::time::timeout(LIMIT, self.client.send(request)).await;
        let answer = answer.map_err(|_| anyhow!("no answer within {} s", LIMIT.as_secs()))?;
        let status = answer.context("no answer")?.status();
        ensure!(status == StatusCode::OK, "it answers {status}");
        Ok(())
    }
}

/// A client made from a kubeconfig given as text.
pub async fn client_of(kubeconfig: &str) -> anyhow::Result<Client> {
    client_with(config_of(kubeconfig).await?)
}

fn client_with(config: Config) -> anyhow::Result<Client> {
    Client::try_from(config).context("cannot make a client for the cluster")
}

async fn config_of(kubeconfig: &str) -> anyhow::Result<Config> {
    let unusable = "the cluster's kubeconfig does not serve";
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).context(unusable)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.context(unusable)?;
    // kube sets this from HTTPS_PROXY; a proxy cannot reach 127.0.0.1.
    config.proxy_url = None;
    Ok(config)
}
