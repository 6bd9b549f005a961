//! Commands for hollow nodes in any cluster: `setup`, `create`, `verify`, `scale`, `list`, `cleanup`.
//!
//! They manage one NodeSet and one NodeClass, both named [`FLEET`]. Other fleets need NodeSets written by the user.

mod cleanup;
mod create;
mod list;
mod objects;
mod progress;
mod rows;
mod scale;
mod setup;
mod verify;

use clap::Args;
use kube_node_api::GoDuration;
use local_cluster::NODE_SET;

pub use self::{cleanup::Cleanup, create::Create, list::List, scale::Scale, setup::Setup, verify::Verify};
pub(super) use self::{
    progress::{Goal, stand},
    rows::{Row, row},
};
use super::access::ClusterArgs;

/// Name of the fleet's NodeSet and NodeClass.
const FLEET: &str = NODE_SET;

/// Time limit of a wait.
#[derive(Debug, Args)]
struct Wait {
    /// Maximum time to wait, for example 5m; 0 waits without a limit
    #[arg(long, value_name = "DURATION", default_value = "0")]
    timeout: GoDuration,
}
