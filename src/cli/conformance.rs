//! `kube-node conformance`: the check of the contract of docs/node-controllers.md, on the cluster at hand.

use std::process::ExitCode;

use clap::Args;
use kube_ext::process::block_on;

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
    /// Exit code 0 when no clause is broken, 1 when one is.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        block_on(async { self.check.run(self.cluster.client().await?).await })
    }
}
