//! `kube-node cleanup`: deletes the nodes, with `--all` everything that `setup` installed too, with `--operator` only that.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use kube::{Api, Client, ResourceExt, api::ListParams};
use kube_ext::objects::{delete, list, wait_for};
use kube_node_api::{NodeClass, NodeSet};
use local_cluster::operator;
use tokio::time::timeout;

use super::{Goal, NAME, Wait, goal::follow};
use crate::{
    access::{confirm, object_names},
    operator_probe, print_line, text,
};

/// Time after which the command says what it waits for: an operator that runs releases a class at once.
const SILENT: Duration = Duration::from_secs(10);

/// Arguments of `cleanup`.
#[derive(Debug, Args)]
pub struct Cleanup {
    /// Also delete what setup installed: CRDs, roles, policies, and the namespaces that it created with everything in them
    #[arg(long)]
    all: bool,
    /// Take away what setup --operator installed, the operator and the namespaces that it created included; refused while
    /// NodeSets or NodeClasses exist
    #[arg(long, conflicts_with = "all")]
    operator: bool,
    /// Do not ask at a terminal before the deletion
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    limit: Wait,
}

impl Cleanup {
    /// Returns when everything is gone.
    pub async fn run(self, client: &Client) -> anyhow::Result<()> {
        confirm(self.question(), self.yes)?;
        if self.operator {
            operator::refuse_release(client).await?;
            nothing_but(client, None).await?;
            return uninstall_all(client).await;
        }
        if self.all {
            operator::refuse_release(client).await?;
            nothing_but(client, Some(NAME)).await?;
            operator::try_uninstall(client).await?;
        }
        if delete(&Api::<NodeSet>::all(client.clone()), NAME).await? {
            follow(client, NAME, Goal::Gone, self.limit.timeout).await?;
        } else {
            print_line(format_args!("There is no NodeSet {NAME}."));
        }
        self.delete_class(client).await?;
        if self.all {
            uninstall_all(client).await?;
        }
        Ok(())
    }

    fn question(&self) -> &'static str {
        match (self.all, self.operator) {
            (true, _) => "Delete the hollow nodes and all that setup installed in this cluster?",
            (_, true) => "Delete all that setup installed in this cluster?",
            (false, false) => "Delete the hollow nodes of this cluster?",
        }
    }

    /// The operator releases the class once no Node needs it. A class that other sets use stays.
    async fn delete_class(&self, client: &Client) -> anyhow::Result<()> {
        let sets = list(&Api::<NodeSet>::all(client.clone()), "NodeSets", &ListParams::default()).await;
        let sets = match sets {
            Err(error) if error.is_not_found() => Vec::new(),
            sets => sets?,
        };
        let is_of_class = |set: &NodeSet| set.spec.node_class_name == NAME;
        let others: Vec<String> =
            sets.into_iter().filter(is_of_class).map(|set| format!("NodeSet {}", set.name_any())).collect();
        if !others.is_empty() {
            let others = text::names(&others, text::NAMES_MAX);
            print_line(format_args!("NodeClass {NAME} stays: it is the class of {others}."));
            return Ok(());
        }
        let classes = Api::<NodeClass>::all(client.clone());
        if !delete(&classes, NAME).await? {
            return Ok(());
        }
        let limit = self.limit.timeout.0;
        let limit = if limit.is_zero() { Duration::MAX } else { limit };
        let problem = format!("NodeClass {NAME} is not gone: no operator has released it");
        let gone = wait_for(classes, NAME, |class: Option<&NodeClass>| class.is_none(), limit, &problem);
        tokio::pin!(gone);
        if let Ok(gone) = timeout(SILENT, &mut gone).await {
            return gone;
        }
        print_line(format_args!("{problem}. Does one run?"));
        gone.await
    }
}

async fn uninstall_all(client: &Client) -> anyhow::Result<()> {
    for namespace in operator::uninstall(client).await? {
        print_line(format_args!("Namespace {namespace} stays: setup did not create it."));
    }
    print_line("All that setup installed is gone.");
    Ok(())
}

/// Refuses if other NodeSets or NodeClasses than `own` exist: they and their Nodes would be deleted with the CRDs.
async fn nothing_but(client: &Client, own: Option<&str>) -> anyhow::Result<()> {
    let sets = object_names(&Api::<NodeSet>::all(client.clone()), "").await?;
    let classes = object_names(&Api::<NodeClass>::all(client.clone()), "").await?;
    let classes = operator_probe::clear(client, classes).await?;
    let of_kind = |kind: &'static str, all: Vec<String>| {
        all.into_iter()
            .filter(move |name| Some(name.as_str()) != own)
            .map(move |name| format!("{kind} {name}"))
    };
    let others: Vec<String> = of_kind("NodeSet", sets).chain(of_kind("NodeClass", classes)).collect();
    let named = text::names(&others, text::NAMES_MAX);
    let or = if own.is_some() { ", or leave --all out" } else { "" };
    ensure!(others.is_empty(), "there are nodes that need what setup installed: delete {named} first{or}");
    Ok(())
}
