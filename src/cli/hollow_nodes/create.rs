//! `kube-node create [N]`: creates the NodeClass and the NodeSet and waits until the nodes are Ready.
//!
//! Of objects that exist only what an argument names is changed; what else differs from new objects is reported. All writes are
//! tried in a dry run first, so that a refused one leaves nothing behind. An operator that is missing is reported at once; the
//! objects stay, and one that starts later serves them.

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
use kube_node_api::{NodeClass, NodeSet, names::LABEL_NODE_CONTROLLER, taints::HOLLOW};
use local_cluster::{counted, kept};
use serde_json::{Value, json};

use super::{
    ClusterArgs, NAME, OptionalWait,
    objects::{Kind, NodeController, has_taint, machine, set, untainted},
    read_set, replicas,
};
use crate::{access::FIELD_MANAGER, operator_probe::serves, print_line};

/// Time limit for an operator to answer; one that runs takes a second at most.
const ANSWER: Duration = Duration::from_secs(3);

/// Number of nodes of a new NodeSet when none is given.
const DEFAULT_NODES: i32 = 10;

/// Arguments of `create`.
#[derive(Debug, Args)]
pub struct Create {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Number of nodes; when absent that of the NodeSet that is there, or 10
    #[arg(value_name = "NODES", value_parser = replicas())]
    nodes: Option<i32>,
    #[command(flatten)]
    kind: Kind,
    #[command(flatten)]
    wait: OptionalWait,
}

/// Write of one object.
#[derive(Debug, PartialEq)]
enum Write {
    /// Server-side apply of an object that does not exist.
    Create(Value),
    /// Merge patch of an object that exists.
    Change(Value),
    Nothing,
}

impl Create {
    /// Returns when all nodes are Ready.
    pub async fn run(self) -> anyhow::Result<()> {
        let controller = self.kind.node_controller();
        if controller == NodeController::Hollow && self.kind.image.is_some() {
            bail!("--image is for kubemark machines: leave it out, or take --node-controller kubemark");
        }
        let client = self.cluster.client_to_write().await?;
        let before = read_set(&client).await.map_err(|error| explained(error, "NodeSet"))?;
        let found = read(&Api::all(client.clone()), NAME).await?;
        check(before.as_ref(), found.as_ref(), controller)?;
        let is_beside_others = has_other_nodes(&client).await?;
        let (class_write, notes) = class_write(&self.kind, found.as_ref(), is_beside_others);
        let (set_write, count) = set_write(self.nodes, before.as_ref());
        let write = async |dry_run| {
            class_write.send::<NodeClass>(&client, dry_run).await?;
            set_write.send::<NodeSet>(&client, dry_run).await
        };
        write(true).await.context("nothing was changed")?;
        write(false).await?;
        notes.into_iter().for_each(print_line);
        let image = self.kind.image().map_or_else(String::new, |image| format!(", image {image}"));
        let is_tainted = match (&class_write, &found) {
            (Write::Create(class), _) => !class["spec"]["template"]["taints"].is_null(),
            (_, found) => found.as_ref().is_some_and(has_taint) && !self.kind.no_taint,
        };
        let taint = if is_tainted { format!(", with the taint {HOLLOW}:NoSchedule") } else { String::new() };
        let controller = controller.name();
        print_line(format_args!(
            "NodeSet {NAME}: {} of NodeController {controller}{image}{taint}",
            counted(count, "node")
        ));
        let is_served = serves(&client, controller, ANSWER).await;
        missing_operator(is_served, controller).into_iter().for_each(print_line);
        self.wait.until_ready(&client).await
    }
}

/// The write of the class, and notes on what an existing class has otherwise than a new one.
fn class_write(kind: &Kind, found: Option<&NodeClass>, is_beside_others: bool) -> (Write, Vec<String>) {
    let Some(found) = found else { return (Write::Create(kind.class(is_beside_others)), Vec::new()) };
    let untainted = (is_beside_others && !kind.no_taint && !has_taint(found)).then(|| untainted(found));
    let notes = kept("NodeClass", NAME, &json!(found), &machine()).into_iter().chain(untainted).collect();
    (kind.change(found).map_or(Write::Nothing, Write::Change), notes)
}

/// The write of the set, and the number of its nodes.
fn set_write(nodes: Option<i32>, found: Option<&NodeSet>) -> (Write, i32) {
    let Some(found) = found else {
        let nodes = nodes.unwrap_or(DEFAULT_NODES);
        return (Write::Create(set(nodes)), nodes);
    };
    match nodes.filter(|nodes| *nodes != found.spec.replicas) {
        Some(nodes) => (Write::Change(json!({"spec": {"replicas": nodes}})), nodes),
        None => (Write::Nothing, found.spec.replicas),
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

impl Write {
    /// Sends the write; with `dry_run` the API server validates it and changes nothing.
    async fn send<K: Typed>(&self, client: &Client, dry_run: bool) -> anyhow::Result<()> {
        let (api, kind) = (Api::<K>::all(client.clone()), K::kind(&()));
        let params = PatchParams { dry_run, ..PatchParams::apply(FIELD_MANAGER) };
        let (verb, patch) = match self {
            Self::Create(object) => ("apply", Patch::Apply(object)),
            Self::Change(change) => ("change", Patch::Merge(change)),
            Self::Nothing => return Ok(()),
        };
        let sent = call(format_args!("{verb} {kind} {NAME}"), api.patch(NAME, &params, &patch)).await;
        sent.map(drop).map_err(|error| explained(error, &kind))
    }
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
    use super::*;

    #[test]
    fn an_existing_set_keeps_the_nodes_that_no_argument_changes() {
        let found: NodeSet = serde_json::from_value(set(7)).unwrap();
        assert_eq!(set_write(None, None), (Write::Create(set(10)), 10));
        assert_eq!(set_write(None, Some(&found)), (Write::Nothing, 7));
        assert_eq!(set_write(Some(7), Some(&found)), (Write::Nothing, 7));
        assert_eq!(set_write(Some(2), Some(&found)), (Write::Change(json!({"spec": {"replicas": 2}})), 2));
    }

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
