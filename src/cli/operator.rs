//! `kube-node operator`: the controllers, the providers and the hollow kubelets, in one process.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;

use crate::{
    controllers::ProviderIdPrefix,
    images,
    operator::{self, Options},
    runtime::telemetry::{self, LogFormat},
};

/// Arguments of `operator`.
#[derive(Debug, Args)]
pub struct Operator {
    /// Kubeconfig of the operator; KUBECONFIG or the pod's own identity when absent
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Kubeconfig of the hollow kubelets, which need less than the operator; the operator's when absent
    #[arg(long, value_name = "FILE")]
    hollow_kubeconfig: Option<PathBuf>,
    /// Namespace of the operator, in which it keeps revisions
    #[arg(long, default_value = "kube-node-system", env = "POD_NAMESPACE")]
    namespace: String,
    /// Address of /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    admin_address: SocketAddr,
    /// How providerIDs begin; the provider's name when absent, empty to leave them to a cloud-controller-manager
    #[arg(long, value_name = "PREFIX")]
    provider_id_prefix: Option<String>,
    /// Image of kube-node itself, for machines that are pods
    #[arg(long, value_name = "IMAGE", env = "KUBE_NODE_IMAGE", default_value = images::KUBE_NODE)]
    machine_image: String,
    /// URL of the API server as machines that are pods reach it; as the operator reaches it when absent
    #[arg(long, value_name = "URL")]
    machine_api_server: Option<String>,
    /// Form of the logs
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

impl Operator {
    /// Works until SIGINT or SIGTERM.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        telemetry::start(self.log_format);
        super::block_on(async {
            let client = operator::client(self.kubeconfig.as_deref()).await?;
            let hollow = match self.hollow_kubeconfig.as_deref() {
                Some(path) => Some(operator::client(Some(path)).await?),
                None => None,
            };
            let options = Options {
                client,
                hollow,
                namespace: self.namespace,
                admin_address: self.admin_address,
                provider_id_prefix: match self.provider_id_prefix {
                    None => ProviderIdPrefix::Provider,
                    Some(prefix) if prefix.is_empty() => ProviderIdPrefix::None,
                    Some(prefix) => ProviderIdPrefix::Text(prefix),
                },
                machine_image: self.machine_image,
                machine_api_server: self.machine_api_server,
            };
            operator::run(options, operator::signals()?).await?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
