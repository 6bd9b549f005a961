//! `kube-node chart`: jobs of the Helm chart, run in pods of the kube-node image. Not for users.

mod certificates;
mod uninstall;

use clap::Subcommand;
use kube_node_controllers::Access;

/// Jobs of the chart.
#[derive(Debug, Subcommand)]
pub enum Chart {
    /// Fill the Secrets with certificates for the autoscaler server and cluster-autoscaler
    Certificates(certificates::Certificates),
    /// Make sure that no object needs the operator, before its removal
    Uninstall(uninstall::Uninstall),
}

impl Chart {
    /// Runs the job as the identity of its pod.
    pub async fn run(self) -> anyhow::Result<()> {
        let client = Access::new(None, None).await?.connected().await?;
        match self {
            Self::Certificates(job) => job.run(&client).await,
            Self::Uninstall(job) => job.run(&client).await,
        }
    }
}
