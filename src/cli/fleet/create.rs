//! `kube-node create [N]`: applies the fleet's NodeClass and NodeSet and waits until its nodes are Ready.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, value_parser};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use kube_ext::{
    call::{ApiError, call},
    process::say,
};
use kube_node_api::{NodeClass, NodeSet};
use serde_json::Value;

use super::{
    ClusterArgs, FLEET, Wait,
    objects::{self, Kind, NodeController},
    progress::{Goal, follow},
};
use crate::access::FIELD_MANAGER;

/// Maximum number of nodes, as in the CRD of NodeSet.
pub(super) const REPLICAS_MAX: i64 = 100_000;

/// Arguments of `create`.
#[derive(Debug, Args)]
pub struct Create {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Number of nodes
    #[arg(value_name = "NODES", default_value_t = 10, value_parser = value_parser!(i32).range(0..=REPLICAS_MAX))]
    nodes: i32,
    /// Provider of the nodes' machines
    #[arg(long, value_enum, default_value_t)]
    node_controller: NodeController,
    /// Version of upstream kubemark, which is the tag of its image; kube-node's own hollow kubelet when absent
    #[arg(long, value_name = "VERSION", env = "KUBEMARK_VERSION", value_parser = objects::version)]
    kubemark_version: Option<String>,
    /// Image of kubemark; its tag, if any, takes precedence over --kubemark-version
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Return without waiting until the nodes are Ready
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    limit: Wait,
}

impl Create {
    /// Returns when all nodes are Ready.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let kind =
            Kind { node_controller: self.node_controller, version: self.kubemark_version, image: self.image };
        if kind.node_controller == NodeController::Hollow && kind.image.is_some() {
            bail!("--image is for machines that are pods: leave it out, or take --node-controller kubemark");
        }
        kube_ext::process::block_on(async {
            let client = self.cluster.client().await?;
            let sets = Api::<NodeSet>::all(client.clone());
            let set = call(format_args!("read NodeSet {FLEET}"), sets.get_opt(FLEET)).await;
            let set = set.map_err(|error| explained(error, "NodeSet"))?;
            let classes = Api::<NodeClass>::all(client.clone());
            let class = call(format_args!("read NodeClass {FLEET}"), classes.get_opt(FLEET)).await?;
            check(set.as_ref(), class.as_ref(), kind.node_controller)?;
            apply("NodeClass", &classes, &kind.class()).await?;
            apply("NodeSet", &sets, &objects::set(self.nodes)).await?;
            let image = kind.image().filter(|_| kind.node_controller == NodeController::Kubemark);
            let image = image.map_or_else(String::new, |image| format!(", image {image}"));
            say(format_args!(
                "NodeSet {FLEET}: {} nodes of NodeController {}{image}",
                self.nodes,
                kind.node_controller.name()
            ));
            if !self.no_wait {
                follow(&client, Goal::Ready, self.limit.timeout).await?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Refuses to change the provider or the class of existing objects.
fn check(
    set: Option<&NodeSet>,
    class: Option<&NodeClass>,
    node_controller: NodeController,
) -> anyhow::Result<()> {
    let again = "change their number with kube-node scale, or take them away first with kube-node cleanup";
    if let Some(other) = set.map(|set| &set.spec.node_class_name).filter(|class| *class != FLEET) {
        bail!("NodeSet {FLEET} is there already, with nodes of NodeClass {other}: {again}");
    }
    let before =
        class.map(|class| &class.spec.node_controller).filter(|before| *before != node_controller.name());
    match before {
        Some(before) => {
            bail!("NodeClass {FLEET} is there already, with nodes of NodeController {before}: {again}")
        }
        None => Ok(()),
    }
}

async fn apply<K>(kind: &str, api: &Api<K>, object: &Value) -> anyhow::Result<()>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    // Force: fields written earlier by these commands or by hand take the new values.
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let applied =
        call(format_args!("apply {kind} {FLEET}"), api.patch(FLEET, &params, &Patch::Apply(object))).await;
    applied.map(drop).map_err(|error| explained(error, kind))
}

/// Adds advice to an API error.
fn explained(error: ApiError, kind: &str) -> anyhow::Error {
    if error.is(404) {
        return anyhow::anyhow!("this cluster has no kind {kind}: kube-node setup installs it");
    }
    error.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_there_is_not_made_into_something_else() {
        let set = |class: &str| -> NodeSet {
            serde_json::from_value(
                json!({"metadata": {"name": FLEET}, "spec": {"replicas": 3, "nodeClassName": class}}),
            )
            .unwrap()
        };
        let class = |controller: &str| -> NodeClass {
            serde_json::from_value(
                json!({"metadata": {"name": FLEET}, "spec": {"nodeController": controller}}),
            )
            .unwrap()
        };
        let check = |set: Option<&NodeSet>, class: Option<&NodeClass>| {
            super::check(set, class, NodeController::Hollow).map_err(|error| error.to_string())
        };
        assert_eq!(check(None, None), Ok(()));
        assert_eq!(check(Some(&set(FLEET)), Some(&class("hollow"))), Ok(()));
        let said = check(Some(&set("hollow")), None).unwrap_err();
        assert!(
            said.contains("nodes of NodeClass hollow: change their number with kube-node scale"),
            "{said}"
        );
        let said = check(None, Some(&class("kubemark"))).unwrap_err();
        assert!(said.contains("nodes of NodeController kubemark"), "{said}");
    }
}
