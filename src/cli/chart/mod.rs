//! `kube-node chart`: jobs of the Helm chart, run in pods of the kube-node image. Not for users.

mod certificates;
mod uninstall;

use anyhow::ensure;
use clap::Subcommand;
use kube::Client;
use kube_node_controllers::Access;

use crate::{operator_probe::probe, print_line};

/// Jobs of the chart.
#[derive(Debug, Subcommand)]
pub enum Chart {
    /// Fill the Secrets with certificates for the autoscaler server and cluster-autoscaler, and renew these
    Certificates(certificates::Certificates),
    /// Make sure that no object needs the operator, before its removal
    Uninstall(uninstall::Uninstall),
    /// Check that an operator accepts a NodeClass, for `helm test`
    Test,
}

impl Chart {
    /// Runs the job as the identity of its pod.
    pub async fn run(self) -> anyhow::Result<()> {
        let client = Access::new(None, None).await?.connected().await?;
        match self {
            Self::Certificates(job) => job.run(&client).await,
            Self::Uninstall(job) => job.run(&client).await,
            Self::Test => test(&client).await,
        }
    }
}

async fn test(client: &Client) -> anyhow::Result<()> {
    ensure!(
        probe(client).await?,
        "no operator has accepted or refused a NodeClass in time: read the logs of deployment/kube-node-operator"
    );
    print_line("An operator answers.");
    Ok(())
}
