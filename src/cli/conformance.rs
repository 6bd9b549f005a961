//! `kube-node conformance`: checks the contract of docs/node-controllers.md in the given cluster.

use std::process::ExitCode;

use clap::Args;

use super::access::ClusterArgs;

/// Arguments of `conformance`.
#[derive(Debug, Args)]
pub struct Conformance {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    check: kube_node_conformance::Check,
}

impl Conformance {
    /// Returns exit code 0 if no clause is broken, else 1.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        Box::pin(self.check.run(self.cluster.client().await?)).await
    }
}
