//! `kube-node setup`: installs what nodes need in a cluster, with `--operator` the operator too, and checks that one runs.
//!
//! Nothing is changed before the cluster's version, a release of helm and the rights have been checked.

use clap::{Args, ValueEnum};
use kube::Client;
use kube_ext::call::call;
use kube_node_api::GoDuration;
use kube_node_controllers::kubernetes_version;
use local_cluster::{
    NAMESPACE, images,
    operator::{self, Installed},
};

use super::ClusterArgs;
use crate::{manifest::document, operator_probe::probe, print_line, print_note};

/// Arguments of `setup`.
#[derive(Debug, Args)]
pub struct Setup {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Also install the operator, as the chart does with its default values
    #[arg(long)]
    operator: bool,
    /// Image of the operator and of kubemark machines; when absent that of the operator that is there, else localhost/kube-node of
    /// this version
    #[arg(long, value_name = "IMAGE", requires = "operator")]
    image: Option<String>,
    /// Apply nothing; client: print the objects, without a cluster
    #[arg(long, value_name = "MODE")]
    dry_run: Option<DryRun>,
    /// Format of the objects that --dry-run prints; names only when absent
    #[arg(short, long, value_name = "FORMAT", requires = "dry_run")]
    output: Option<Format>,
    /// Return without waiting until the operator is ready
    #[arg(long, requires = "operator")]
    no_wait: bool,
    /// Maximum time to wait for the operator, for example 5m
    #[arg(long, value_name = "DURATION", default_value = "2m")]
    timeout: GoDuration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DryRun {
    Client,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Yaml,
}

impl Setup {
    /// Installs by server-side apply, so a second run changes nothing.
    pub async fn run(self) -> anyhow::Result<()> {
        if let Some(DryRun::Client) = self.dry_run {
            return self.print();
        }
        let client = self.cluster.client_to_write().await?;
        let version = call("ask the API server for its version", client.apiserver_version()).await?;
        if let Some(warning) = kubernetes_version::check(&version)? {
            print_note(format_args!("note: {warning}"));
        }
        operator::refuse_release(&client).await?;
        let there = Installed::read(&client).await?;
        if self.operator {
            return self.install_operator(&client, there.as_ref()).await;
        }
        if let Some(Installed { version, .. }) = there.filter(Installed::is_other) {
            print_line(format_args!(
                "The operator of version {version} stays, and gets the kinds, roles and policies of {}: kube-node setup --operator brings the operator of that version too.",
                env!("CARGO_PKG_VERSION")
            ));
        }
        operator::setup(&client, None).await?;
        print_line(format_args!(
            "Installed: the kinds NodeClass and NodeSet, namespaces, roles and admission policies (namespace {NAMESPACE})"
        ));
        match probe(&client).await {
            Ok(true) => print_line("An operator runs. Next: kube-node create"),
            Ok(false) => print_line(
                "No operator runs yet. Next: start one, in the cluster (kube-node setup --operator) or beside it, for example\n  kube-node operator --kubeconfig FILE",
            ),
            Err(why) => print_line(format_args!("Whether an operator runs is not known: {why}")),
        }
        Ok(())
    }

    fn print(&self) -> anyhow::Result<()> {
        let image = self.operator.then(|| self.image.as_deref().unwrap_or(images::KUBE_NODE));
        for object in operator::everything(image)? {
            let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
            match self.output {
                Some(Format::Yaml) => print_line(document(&object)?),
                None => print_line(format_args!(
                    "{}/{} (dry run)",
                    kind.to_lowercase(),
                    object.metadata.name.as_deref().unwrap_or_default()
                )),
            }
        }
        Ok(())
    }

    /// Installs the operator, in place of that which is there.
    async fn install_operator(&self, client: &Client, there: Option<&Installed>) -> anyhow::Result<()> {
        let image = match (self.image.as_deref(), there) {
            (Some(image), _) => image,
            (None, Some(there)) => there.next_image()?,
            (None, None) => images::KUBE_NODE,
        };
        if let Some(Installed { version, .. }) = there.filter(|there| there.is_other()) {
            print_line(format_args!(
                "The operator of version {version} becomes {}.",
                env!("CARGO_PKG_VERSION")
            ));
        }
        operator::setup(client, Some(image)).await?;
        print_line(format_args!(
            "Installed: the operator in namespace {NAMESPACE}, the kinds NodeClass and NodeSet, roles and admission policies"
        ));
        if !self.no_wait {
            operator::wait_until_ready(client, self.timeout.0).await?;
            print_line("The operator is ready. Next: kube-node create");
        }
        Ok(())
    }
}
