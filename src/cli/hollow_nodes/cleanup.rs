//! `kube-node cleanup`: deletes the nodes, and with `--all` everything that `setup` installed.

use anyhow::ensure;
use clap::Args;
use kube::{Api, Client};
use kube_ext::{objects::delete, process::print_line};
use kube_node_api::{NodeClass, NodeSet};
use local_cluster::uninstall;

use super::{ClusterArgs, Goal, NAME, Wait, goal::follow};
use crate::{
    access::object_names,
    text::{NAMES_MAX, names},
};

/// Arguments of `cleanup`.
#[derive(Debug, Args)]
pub struct Cleanup {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Also delete what setup installed: CRDs, roles, policies, and the namespaces with everything in them
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    limit: Wait,
}

impl Cleanup {
    /// Returns when everything is gone.
    pub async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.client().await?;
        if self.all {
            nothing_else(&client).await?;
        }
        if delete(&Api::<NodeSet>::all(client.clone()), NAME).await? {
            follow(&client, Goal::Gone, self.limit.timeout).await?;
        } else {
            print_line(format_args!("There is no NodeSet {NAME}."));
        }
        delete(&Api::<NodeClass>::all(client.clone()), NAME).await?;
        if self.all {
            uninstall(&client).await?;
            print_line("All that setup installed is gone.");
        }
        Ok(())
    }
}

/// Refuses if other NodeSets or NodeClasses exist: they and their Nodes would be deleted with the CRDs.
async fn nothing_else(client: &Client) -> anyhow::Result<()> {
    let (sets, classes) =
        (object_names::<NodeSet>(client, "").await?, object_names::<NodeClass>(client, "").await?);
    let sets = sets.into_iter().map(|name| ("NodeSet", name));
    let all = sets.chain(classes.into_iter().map(|name| ("NodeClass", name)));
    let others = all.filter(|(_, name)| name != NAME).map(|(kind, name)| format!("{kind} {name}"));
    let others: Vec<String> = others.collect();
    ensure!(
        others.is_empty(),
        "there is more than this fleet: delete {} first, or leave --all out",
        names(&others, NAMES_MAX)
    );
    Ok(())
}
