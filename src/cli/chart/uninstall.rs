//! `kube-node chart uninstall`: runs before the operator is removed.
//!
//! NodeSets, NodeClasses and Nodes carry finalizers that only the operator removes, and only the operator
//! drains Nodes and deletes machines. They must therefore go first; deleting them is the decision of the
//! user, who knows their workloads.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use clap::Args;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams},
};
use kube_ext::{
    call::{ApiError, call},
    process::say,
};
use kube_node_api::{GoDuration, NodeClass, NodeSet, names};
use local_cluster::release_secrets;
use tokio::time::{Instant, sleep};

/// Poll interval for objects that are being deleted.
const POLL: Duration = Duration::from_millis(500);
/// Maximum number of names per kind in a message.
const NAMES_MAX: usize = 5;

/// Arguments of `chart uninstall`.
#[derive(Debug, Args)]
pub struct Uninstall {
    /// Delete the remaining NodeSets, Nodes and NodeClasses instead of refusing
    #[arg(long)]
    delete_nodes: bool,
    /// Time limit of the deletion
    #[arg(long, value_name = "DURATION", default_value = "4m")]
    timeout: GoDuration,
}

impl Uninstall {
    /// Returns when no object needs the operator.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        kube_ext::process::block_on(async {
            let client = kube_node_operator::Access::new(None).await?.reached().await?;
            let mut kinds = [
                Kind::of::<NodeSet>(&client, ListParams::default()),
                Kind::of::<Node>(&client, ListParams::default().labels(names::LABEL_NODECLASS)),
                Kind::of::<NodeClass>(&client, ListParams::default()),
            ];
            for kind in &mut kinds {
                kind.look().await?;
            }
            let there = kinds.iter().filter_map(Kind::named).collect::<Vec<_>>().join(", ");
            if there.is_empty() {
                say("No node of kube-node is left.");
            } else if self.delete_nodes {
                say(format_args!("Deleting {there}"));
                let deadline = Instant::now() + self.timeout.0;
                for kind in &mut kinds {
                    kind.take_away(deadline).await?;
                }
                say("All nodes are gone.");
            } else {
                bail!(
                    "there are {there}, which need the operator to be drained and deleted: delete them first (kubectl delete nodesets,nodeclasses --all), or upgrade the release with --set uninstall.deleteNodes=true; then uninstall again"
                );
            }
            release_secrets(&client).await?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Objects of one kind that need the operator.
struct Kind {
    resource: ApiResource,
    api: Api<DynamicObject>,
    which: ListParams,
    there: Vec<String>,
}

impl Kind {
    fn of<K: Resource<DynamicType = ()>>(client: &Client, which: ListParams) -> Self {
        let resource = ApiResource::erase::<K>(&());
        let api = Api::all_with(client.clone(), &resource);
        Self { resource, api, which, there: Vec::new() }
    }

    /// Lists the objects.
    async fn look(&mut self) -> Result<(), ApiError> {
        let kind = &self.resource.kind;
        let listed = call(format_args!("list {kind} objects"), self.api.list_metadata(&self.which)).await;
        self.there = match listed {
            // The kind is not installed.
            Err(error) if error.is(404) => Vec::new(),
            listed => listed?.items.iter().map(ResourceExt::name_any).collect(),
        };
        Ok(())
    }

    /// Count and names of the objects as text.
    fn named(&self) -> Option<String> {
        named(&self.resource.kind, &self.there)
    }

    /// Deletes the present objects and waits until none is left.
    async fn take_away(&mut self, deadline: Instant) -> anyhow::Result<()> {
        self.look().await?;
        for name in &self.there {
            let action = format!("delete {} {name}", self.resource.kind);
            match call(action, self.api.delete(name, &DeleteParams::default())).await {
                Err(error) if !error.is(404) => return Err(error.into()),
                _ => {}
            }
        }
        let mut left = usize::MAX;
        loop {
            self.look().await?;
            let Some(named) = self.named() else { return Ok(()) };
            if Instant::now() >= deadline {
                bail!(
                    "still there: {named}; kubectl describe says what holds them, and without a running operator nothing lets them go"
                );
            }
            if self.there.len() != left {
                left = self.there.len();
                say(format_args!("Waiting for {named}"));
            }
            sleep(POLL).await;
        }
    }
}

/// Text such as `12 Nodes (a, b, c, d, e, …)`.
fn named(kind: &str, names: &[String]) -> Option<String> {
    let plural = match (kind, names.len()) {
        (_, 0) => return None,
        (kind, 1) => kind.to_owned(),
        ("NodeClass", _) => "NodeClasses".to_owned(),
        (kind, _) => format!("{kind}s"),
    };
    let shown = names.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = if names.len() > NAMES_MAX { ", …" } else { "" };
    Some(format!("{} {plural} ({shown}{more})", names.len()))
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn what_is_there_is_named() {
        let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>();
        assert_eq!(named("Node", &names(0)), None);
        assert_eq!(named("NodeSet", &names(1)).unwrap(), "1 NodeSet (n0)");
        assert_eq!(named("NodeClass", &names(2)).unwrap(), "2 NodeClasses (n0, n1)");
        assert_eq!(named("Node", &names(7)).unwrap(), "7 Nodes (n0, n1, n2, n3, n4, …)");
    }
}
