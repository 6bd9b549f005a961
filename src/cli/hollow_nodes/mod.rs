//! Commands for hollow nodes in any cluster: `setup`, `create`, `verify`, `scale`, `list`, `cleanup`.
//!
//! They manage one NodeSet and one NodeClass, both named [`NAME`]. Other nodes need NodeSets written by the user.

mod cleanup;
mod create;
mod goal;
mod list;
mod objects;
mod rows;
mod scale;
mod setup;
mod verify;

use clap::{Args, value_parser};
use kube::{Api, Client};
use kube_ext::call::ApiError;
use kube_node_api::{GoDuration, NodeSet};
use local_cluster::NODE_SET;

pub use self::{cleanup::Cleanup, create::Create, list::List, scale::Scale, setup::Setup, verify::Verify};
pub(super) use self::{
    goal::{Goal, progress},
    objects::{has_tag, version},
    rows::{Row, row},
};
use super::access::ClusterArgs;

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
        if self.no_wait { Ok(()) } else { goal::follow(client, Goal::Ready, self.wait.timeout).await }
    }
}

/// The NodeSet, if it exists.
async fn read_set(client: &Client) -> Result<Option<NodeSet>, ApiError> {
    kube_ext::objects::read(&Api::all(client.clone()), NAME).await
}

/// Parser of a number of nodes.
fn replicas() -> clap::builder::RangedI64ValueParser<i32> {
    value_parser!(i32).range(0..=REPLICAS_MAX)
}
