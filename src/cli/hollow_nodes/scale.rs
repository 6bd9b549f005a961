//! `kube-node scale N`: changes the number of nodes by the scale subresource, which developers may use.

use anyhow::bail;
use clap::Args;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use kube_ext::{call::call, process::print_line};
use kube_node_api::NodeSet;
use local_cluster::counted;
use serde_json::json;

use super::{NAME, OptionalWait, read_set, replicas};

/// Arguments of `scale`.
#[derive(Debug, Args)]
pub struct Scale {
    /// New number of nodes
    #[arg(value_name = "NODES", value_parser = replicas())]
    nodes: i32,
    #[command(flatten)]
    wait: OptionalWait,
}

impl Scale {
    /// Returns when all wanted nodes are Ready and surplus nodes are gone.
    pub async fn run(self, client: &Client) -> anyhow::Result<()> {
        let Some(before) = read_set(client).await? else {
            bail!("there is no NodeSet {NAME}: make it with kube-node create {}", self.nodes);
        };
        let patch = Patch::Merge(json!({ "spec": { "replicas": self.nodes } }));
        let (sets, params) = (Api::<NodeSet>::all(client.clone()), PatchParams::default());
        call(format_args!("scale NodeSet {NAME}"), sets.patch_scale(NAME, &params, &patch)).await?;
        print_line(format_args!(
            "NodeSet {NAME}: from {} to {}",
            before.spec.replicas,
            counted(self.nodes, "node")
        ));
        self.wait.until_ready(client).await
    }
}
