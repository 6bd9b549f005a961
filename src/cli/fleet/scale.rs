//! `kube-node scale N`: changes the number of nodes by the scale subresource, which developers may use.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, value_parser};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use kube_ext::{call::call, process::say};
use kube_node_api::NodeSet;
use serde_json::json;

use super::{
    ClusterArgs, FLEET, Wait,
    create::REPLICAS_MAX,
    progress::{Goal, follow},
};

/// Arguments of `scale`.
#[derive(Debug, Args)]
pub struct Scale {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// New number of nodes
    #[arg(value_name = "NODES", value_parser = value_parser!(i32).range(0..=REPLICAS_MAX))]
    nodes: i32,
    /// Return without waiting until the nodes are Ready
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    limit: Wait,
}

impl Scale {
    /// Returns when all wanted nodes are Ready and surplus nodes are gone.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        kube_ext::process::block_on(async {
            let client = self.cluster.client().await?;
            let sets = Api::<NodeSet>::all(client.clone());
            let Some(before) = call(format_args!("read NodeSet {FLEET}"), sets.get_opt(FLEET)).await? else {
                bail!("there is no NodeSet {FLEET}: make it with kube-node create {}", self.nodes);
            };
            let patch = Patch::Merge(json!({ "spec": { "replicas": self.nodes } }));
            let params = PatchParams::default();
            call(format_args!("scale NodeSet {FLEET}"), sets.patch_scale(FLEET, &params, &patch)).await?;
            say(format_args!("NodeSet {FLEET}: from {} to {} nodes", before.spec.replicas, self.nodes));
            if !self.no_wait {
                follow(&client, Goal::Ready, self.limit.timeout).await?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}
