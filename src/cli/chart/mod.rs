//! `kube-node chart`: jobs of the Helm chart, run in pods of the kube-node image. Not for users.

mod certificates;
mod uninstall;

use clap::{Args, Subcommand};
use kube_node_controllers::Access;

/// Arguments of `chart`.
#[derive(Debug, Args)]
pub struct Chart {
    #[command(subcommand)]
    job: Job,
}

#[derive(Debug, Subcommand)]
enum Job {
    /// Fill the Secrets with certificates for the autoscaler server and cluster-autoscaler
    Certificates(certificates::Certificates),
    /// Make sure that no object needs the operator, before its removal
    Uninstall(uninstall::Uninstall),
}

impl Chart {
    /// Runs the job as the identity of its pod.
    pub async fn run(self) -> anyhow::Result<()> {
        let client = Access::new(None, None).await?.connected().await?;
        match self.job {
            Job::Certificates(job) => job.run(&client).await,
            Job::Uninstall(job) => job.run(&client).await,
        }
    }
}
