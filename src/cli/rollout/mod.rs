//! `kube-node rollout`: the commands of kubectl's `rollout` for NodeSets, with its conventions and texts
//! where they fit.
//!
//! A command reads objects, a function without I/O decides, then the command writes or prints.

mod change;
mod history;
mod state;
mod status;
mod undo;

use std::time::Duration;

use clap::{Args, Subcommand};
use kube::Client;
use kube_ext::server_time::server_time;

pub(super) use self::change::is_resumed_since;
use super::access::{self, set_name};
use local_cluster::NAMESPACE;

/// Arguments of `rollout`.
#[derive(Debug, Args)]
pub struct Rollout {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the progress of a rollout and wait until it is complete
    Status(status::Status),
    /// List the revisions of a NodeSet's class, or print the machine of one
    History(history::Show),
    /// Pin a NodeSet to an earlier revision; the class is not changed
    Undo(undo::Undo),
    /// Replace every node of a NodeSet by a rollout
    Restart(Set),
    /// Pause a rollout; scaling and repair continue
    Pause(Set),
    /// Resume a rollout that was paused or has halted itself
    Resume(Set),
}

/// One NodeSet.
#[derive(Debug, Args)]
struct Set {
    /// Name of the NodeSet, or nodeset/NAME
    #[arg(value_name = "NODESET", value_parser = set_name)]
    name: String,
}

/// Namespace of the revisions.
#[derive(Debug, Args)]
struct Namespace {
    /// Namespace of the operator, which holds the revisions
    #[arg(short, long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: String,
}

impl Rollout {
    /// Returns true if the command changes the NodeSet.
    pub(super) const fn is_writing(&self) -> bool {
        !matches!(self.action, Action::Status(_) | Action::History(_))
    }

    /// Runs the command.
    pub async fn run(self, client: &Client) -> anyhow::Result<()> {
        let message = match self.action {
            Action::Status(status) => return status.run(client).await,
            Action::History(show) => show.run(client).await?,
            Action::Undo(undo) => undo.run(client).await?,
            Action::Restart(Set { name }) => {
                let at = change::next_second(server_time(client).await?);
                tokio::time::sleep(Duration::from_secs(1)).await;
                access::change_set(client, &name, |set| change::restart(set, at)).await?
            }
            Action::Pause(Set { name }) => {
                access::change_set(client, &name, |set| Ok(change::pause(set))).await?
            }
            Action::Resume(Set { name }) => {
                let now = server_time(client).await?;
                access::change_set(client, &name, |set| Ok(change::resume(set, now))).await?
            }
        };
        super::print_line(message);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    pub(crate) use super::change::tests::{halted, now, set};
}
