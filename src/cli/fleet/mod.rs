//! Hollow nodes in any cluster, in a few words: `setup`, `create`, `verify`, `scale`, `list`, `cleanup`.
//!
//! They work on one NodeSet and one NodeClass, both of the name [`FLEET`]; whoever wants more writes objects of their own.

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

/// The NodeSet, and its NodeClass.
const FLEET: &str = NODE_SET;

/// How long to wait.
#[derive(Debug, Args)]
struct Wait {
    /// Longest time to wait, for example 5m; 0 waits for as long as it takes
    #[arg(long, value_name = "DURATION", default_value = "0")]
    timeout: GoDuration,
}
