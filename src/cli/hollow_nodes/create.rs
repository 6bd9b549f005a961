//! `kube-node create [N]`: applies the NodeClass and the NodeSet and waits until the nodes are Ready.
//!
//! Both objects are tried in a dry run first, so that a refused one leaves nothing behind. An operator that is missing is
//! reported at once; the objects stay, and one that starts later serves them.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use kube_ext::{
    call::{ApiError, call},
    objects::{Typed, list, read},
};
use kube_node_api::{NodeClass, NodeSet, names::LABEL_NODE_CONTROLLER};
use serde_json::Value;

use super::{
    ClusterArgs, NAME, OptionalWait,
    objects::{Kind, NodeController, set},
    read_set, replicas,
};
use crate::{access::FIELD_MANAGER, operator_probe::serves, print_line};

/// Time limit for an operator to answer; one that runs takes a second at most.
const ANSWER: Duration = Duration::from_secs(3);

/// Arguments of `create`.
#[derive(Debug, Args)]
pub struct Create {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Number of nodes
    #[arg(value_name = "NODES", default_value_t = 10, value_parser = replicas())]
    nodes: i32,
    #[command(flatten)]
    kind: Kind,
    #[command(flatten)]
    wait: OptionalWait,
}

impl Create {
    /// Returns when all nodes are Ready.
    pub async fn run(self) -> anyhow::Result<()> {
        let controller = self.kind.node_controller();
        if controller == NodeController::Hollow && self.kind.image.is_some() {
            bail!("--image is for kubemark machines: leave it out, or take --node-controller kubemark");
        }
        let client = self.cluster.client().await?;
        let before = read_set(&client).await.map_err(|error| explained(error, "NodeSet"))?;
        let class = read(&Api::all(client.clone()), NAME).await?;
        check(before.as_ref(), class.as_ref(), controller)?;
        let class = self.kind.class(has_other_nodes(&client).await?);
        let set = set(self.nodes);
        try_out::<NodeClass>(&client, &class).await?;
        try_out::<NodeSet>(&client, &set).await?;
        apply::<NodeClass>(&client, &class, &apply_params()).await?;
        apply::<NodeSet>(&client, &set, &apply_params()).await?;
        let image = self.kind.image().map_or_else(String::new, |image| format!(", image {image}"));
        let taint =
            taint(&class).map_or_else(String::new, |key| format!(", with the taint {key}:NoSchedule"));
        let (nodes, controller) = (self.nodes, controller.name());
        print_line(format_args!(
            "NodeSet {NAME}: {nodes} nodes of NodeController {controller}{image}{taint}"
        ));
        let is_served = serves(&client, controller, ANSWER).await;
        missing_operator(is_served, controller).into_iter().for_each(print_line);
        self.wait.until_ready(&client).await
    }
}

/// Refuses to change the provider or the class of existing objects.
fn check(set: Option<&NodeSet>, class: Option<&NodeClass>, desired: NodeController) -> anyhow::Result<()> {
    let again = "change their number with kube-node scale, or take them away first with kube-node cleanup";
    if let Some(other) = set.map(|set| &set.spec.node_class_name).filter(|class| *class != NAME) {
        bail!("NodeSet {NAME} is there already, with nodes of NodeClass {other}: {again}");
    }
    let controller = class.map(|class| &class.spec.node_controller);
    if let Some(other) = controller.filter(|other| *other != desired.name()) {
        bail!("NodeClass {NAME} is there already, with nodes of NodeController {other}: {again}");
    }
    Ok(())
}

/// Returns true if the cluster has a Node whose containers are real.
async fn has_other_nodes(client: &Client) -> anyhow::Result<bool> {
    let [hollow, kubemark] = [NodeController::Hollow, NodeController::Kubemark].map(NodeController::name);
    let others = format!("{LABEL_NODE_CONTROLLER} notin ({hollow}, {kubemark})");
    let params = ListParams::default().labels(&others).limit(1);
    Ok(!list(&Api::<Node>::all(client.clone()), "Nodes", &params).await?.is_empty())
}

/// Key of the taint of a class as [`Kind::class`] makes it.
fn taint(class: &Value) -> Option<&str> {
    class.pointer("/spec/template/taints/0/key")?.as_str()
}

/// Says that no operator serves the class, or that this is not known.
fn missing_operator(is_served: anyhow::Result<bool>, controller: &str) -> Option<String> {
    match is_served {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "No operator serves NodeController {controller}: start one, in the cluster (kube-node setup --operator) or beside it, for example kube-node operator --kubeconfig FILE."
        )),
        Err(why) => {
            Some(format!("Whether an operator serves NodeController {controller} is not known: {why:#}"))
        }
    }
}

/// Parameters of server-side apply. Force: fields written earlier by these commands or by hand take the new values.
fn apply_params() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

/// Has the API server validate the object and change nothing.
async fn try_out<K: Typed>(client: &Client, object: &Value) -> anyhow::Result<()> {
    let params = PatchParams { dry_run: true, ..apply_params() };
    apply::<K>(client, object, &params).await.context("nothing was changed")
}

async fn apply<K: Typed>(client: &Client, object: &Value, params: &PatchParams) -> anyhow::Result<()> {
    let (api, kind, object) = (Api::<K>::all(client.clone()), K::kind(&()), Patch::Apply(object));
    let applied = call(format_args!("apply {kind} {NAME}"), api.patch(NAME, params, &object)).await;
    applied.map(drop).map_err(|error| explained(error, &kind))
}

/// Adds advice where the CRD is missing.
fn explained(error: ApiError, kind: &str) -> anyhow::Error {
    if error.is_not_found() {
        anyhow!("this cluster has no kind {kind}: kube-node setup installs it")
    } else {
        error.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_missing_operator_is_said_in_one_sentence() {
        assert_eq!(missing_operator(Ok(true), "hollow"), None);
        let said = missing_operator(Ok(false), "kubemark").unwrap();
        assert!(said.starts_with("No operator serves NodeController kubemark: start one, "), "{said}");
        assert!(said.ends_with('.') && !said.contains('\n') && !said.contains(". "), "{said}");
        let said = missing_operator(Err(anyhow!("no right")), "hollow").unwrap();
        assert!(said.ends_with("is not known: no right"), "{said}");
    }

    #[test]
    fn what_is_there_is_not_made_into_something_else() {
        let set = |class: &str| -> NodeSet {
            serde_json::from_value(
                json!({"metadata": {"name": NAME}, "spec": {"replicas": 3, "nodeClassName": class}}),
            )
            .unwrap()
        };
        let class = |controller: &str| -> NodeClass {
            serde_json::from_value(
                json!({"metadata": {"name": NAME}, "spec": {"nodeController": controller}}),
            )
            .unwrap()
        };
        let check = |set: Option<&NodeSet>, class: Option<&NodeClass>| {
            super::check(set, class, NodeController::Hollow).map_err(|error| error.to_string())
        };
        assert_eq!(check(None, None), Ok(()));
        assert_eq!(check(Some(&set(NAME)), Some(&class("hollow"))), Ok(()));
        let refused = check(Some(&set("hollow")), None).unwrap_err();
        assert!(
            refused.contains("nodes of NodeClass hollow: change their number with kube-node scale"),
            "{refused}"
        );
        let refused = check(None, Some(&class("kubemark"))).unwrap_err();
        assert!(refused.contains("nodes of NodeController kubemark"), "{refused}");
    }
}
