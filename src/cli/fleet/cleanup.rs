//! `kube-node cleanup`: deletes the fleet's nodes, and with `--all` everything that `setup` installed.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams},
    core::PartialObjectMeta,
};
use kube_ext::{
    call::{ApiError, call},
    process::say,
};
use kube_node_api::{NodeClass, NodeSet};
use local_cluster::uninstall;

use super::{
    ClusterArgs, FLEET, Wait,
    progress::{Goal, follow},
};

/// Maximum number of names in an error.
const NAMED_MAX: usize = 10;

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
    pub fn run(self) -> anyhow::Result<ExitCode> {
        kube_ext::process::block_on(async {
            let client = self.cluster.client().await?;
            if self.all {
                nothing_else(&client).await?;
            }
            if take_away::<NodeSet>(&client, "NodeSet").await? {
                follow(&client, Goal::Gone, self.limit.timeout).await?;
            } else {
                say(format_args!("There is no NodeSet {FLEET}."));
            }
            take_away::<NodeClass>(&client, "NodeClass").await?;
            if self.all {
                uninstall(&client).await?;
                say("All that setup installed is gone.");
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Deletes the fleet's object of this kind. Returns true if it existed.
async fn take_away<K>(client: &Client, kind: &str) -> Result<bool, ApiError>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api = Api::<K>::all(client.clone());
    match call(format_args!("delete {kind} {FLEET}"), api.delete(FLEET, &DeleteParams::default())).await {
        Err(error) if error.is(404) => Ok(false),
        other => other.map(|_| true),
    }
}

/// Refuses if other NodeSets or NodeClasses exist: they and their Nodes would be deleted with the CRDs.
async fn nothing_else(client: &Client) -> anyhow::Result<()> {
    let mut others = names::<NodeSet>(client, "NodeSet").await?;
    others.extend(names::<NodeClass>(client, "NodeClass").await?);
    if others.is_empty() {
        return Ok(());
    }
    let more = if others.len() > NAMED_MAX { ", …" } else { "" };
    others.truncate(NAMED_MAX);
    bail!("there is more than this fleet: delete {}{more} first, or leave --all out", others.join(", "))
}

async fn names<K>(client: &Client, kind: &str) -> Result<Vec<String>, ApiError>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api = Api::<PartialObjectMeta<K>>::all(client.clone());
    match call(format_args!("list {kind} objects"), api.list(&ListParams::default())).await {
        // The kind is not installed, so no objects exist.
        Err(error) if error.is(404) => Ok(Vec::new()),
        other => {
            let names = other?.items.into_iter().map(|object| object.name_any());
            Ok(names.filter(|name| name != FLEET).map(|name| format!("{kind} {name}")).collect())
        }
    }
}
