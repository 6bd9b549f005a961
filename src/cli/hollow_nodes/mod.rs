//! Commands for hollow nodes in any cluster: `setup`, `create`, `verify`, `scale`, `list`, `cleanup`.
//!
//! They manage one NodeSet and one NodeClass, both named [`NAME`]. Other nodes need NodeSets written by the user; `verify` and
//! `list` read those too.

mod cleanup;
mod create;
mod goal;
mod list;
mod objects;
mod rows;
mod scale;
mod setup;
mod verify;

use std::collections::BTreeSet;

use clap::{Args, value_parser};
use futures::future::try_join_all;
use kube::{Api, Client, ResourceExt, api::ListParams};
use kube_ext::{call::ApiError, objects::list};
use kube_node_api::{GoDuration, NodeClass, NodeSet};
use local_cluster::NODE_SET;

use self::objects::NodeController;

pub use self::{cleanup::Cleanup, create::Create, list::List, scale::Scale, setup::Setup, verify::Verify};
pub(super) use self::{
    goal::{Goal, progress},
    objects::{has_tag, version},
    rows::{Row, row},
};
use super::access::{self, ClusterArgs, set_name};

/// Name of the NodeSet and the NodeClass.
const NAME: &str = NODE_SET;
/// Maximum number of nodes, as in the CRD of NodeSet.
const REPLICAS_MAX: i64 = 100_000;

/// Time limit of a wait.
#[derive(Debug, Args)]
struct Wait {
    /// Maximum time to wait, for example 5m; 0 waits without a limit
    #[arg(long, value_name = "DURATION", default_value = "0")]
    timeout: GoDuration,
}

/// Wait of a command that changes the nodes.
#[derive(Debug, Args)]
struct OptionalWait {
    /// Return without waiting until the nodes are Ready
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    wait: Wait,
}

impl OptionalWait {
    async fn until_ready(self, client: &Client) -> anyhow::Result<()> {
        if self.no_wait { Ok(()) } else { goal::follow(client, NAME, Goal::Ready, self.wait.timeout).await }
    }
}

/// The NodeSet, if it exists.
async fn read_set(client: &Client) -> Result<Option<NodeSet>, ApiError> {
    kube_ext::objects::read(&Api::all(client.clone()), NAME).await
}

/// Choice of NodeSets.
#[derive(Debug, Args)]
struct Choice {
    /// Names of the NodeSets, or nodeset/NAME; when absent all with hollow nodes
    #[arg(value_name = "NODESET", value_parser = set_name)]
    names: Vec<String>,
}

impl Choice {
    /// The NodeSets.
    async fn sets(&self, client: &Client) -> anyhow::Result<Vec<NodeSet>> {
        if self.names.is_empty() {
            return hollow_sets(client).await;
        }
        try_join_all(self.names.iter().map(|name| access::read_set(client, name))).await
    }

    /// The Nodes of the NodeSets; of all NodeSets also Nodes without one.
    async fn rows(&self, client: &Client) -> anyhow::Result<Vec<Row>> {
        let mut rows = rows::read(client).await?;
        rows.retain(|row| self.names.is_empty() || self.names.contains(&row.node_set));
        Ok(rows)
    }
}

/// All NodeSets of hollow and kubemark nodes, sorted by name. A set whose class does not exist is one of them: nobody knows of
/// another NodeController.
async fn hollow_sets(client: &Client) -> anyhow::Result<Vec<NodeSet>> {
    let all = ListParams::default();
    let sets = match list(&Api::<NodeSet>::all(client.clone()), "NodeSets", &all).await {
        Err(error) if error.is_not_found() => Vec::new(),
        sets => sets?,
    };
    let classes = match list(&Api::<NodeClass>::all(client.clone()), "NodeClasses", &all).await {
        Err(error) if error.is_not_found() => Vec::new(),
        classes => classes?,
    };
    Ok(of_our_controllers(sets, &classes))
}

fn of_our_controllers(mut sets: Vec<NodeSet>, classes: &[NodeClass]) -> Vec<NodeSet> {
    let is_foreign = |class: &NodeClass| NodeController::of(&class.spec.node_controller).is_none();
    let foreign: BTreeSet<String> =
        classes.iter().filter(|class| is_foreign(class)).map(ResourceExt::name_any).collect();
    sets.retain(|set| !foreign.contains(&set.spec.node_class_name));
    sets.sort_by_key(ResourceExt::name_any);
    sets
}

/// Parser of a number of nodes.
fn replicas() -> clap::builder::RangedI64ValueParser<i32> {
    value_parser!(i32).range(0..=REPLICAS_MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sets_of_third_party_controllers_are_not_hollow() {
        let class = |name: &str, controller: &str| -> NodeClass {
            serde_json::from_value(
                json!({"metadata": {"name": name}, "spec": {"nodeController": controller}}),
            )
            .unwrap()
        };
        let set = |name: &str, class: &str| -> NodeSet {
            serde_json::from_value(
                json!({"metadata": {"name": name}, "spec": {"nodeClassName": class, "replicas": 1}}),
            )
            .unwrap()
        };
        let classes = [class("h", "hollow"), class("k", "kubemark"), class("t", "example.com/own")];
        let sets = vec![set("d", "h"), set("c", "k"), set("b", "t"), set("a", "missing")];
        let names: Vec<_> = of_our_controllers(sets, &classes).iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["a", "c", "d"]);
    }
}
