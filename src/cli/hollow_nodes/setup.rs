//! `kube-node setup`: installs what nodes need in a cluster, and checks that an operator runs.

use clap::Args;
use local_cluster::{NAMESPACE, install};

use super::ClusterArgs;
use crate::{operator_probe::probe, print_line};

/// Arguments of `setup`.
#[derive(Debug, Args)]
pub struct Setup {
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl Setup {
    /// Installs by server-side apply, so a second run changes nothing.
    pub async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.client().await?;
        install(&client).await?;
        print_line(format_args!(
            "Installed: the kinds NodeClass and NodeSet, namespaces, roles and admission policies (namespace {NAMESPACE})"
        ));
        match probe(&client).await {
            Ok(true) => print_line("An operator runs. Next: kube-node create"),
            Ok(false) => print_line(
                "No operator runs yet. Next: start one, in the cluster or beside it, for example\n  kube-node operator --kubeconfig FILE",
            ),
            Err(why) => print_line(format_args!("Whether an operator runs is not known: {why}")),
        }
        Ok(())
    }
}
