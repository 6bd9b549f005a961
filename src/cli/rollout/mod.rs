//! `kube-node rollout`: kubectl's `rollout` for NodeSets, with its conventions and texts where they fit.
//!
//! A command reads, a function without I/O decides, the command writes or prints.

mod change;
mod history;
mod status;
mod undo;
mod verdict;

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use jiff::Timestamp;

pub(super) use self::change::is_resumed_since;
use super::access::{self, ClusterArgs, set_name};
use local_cluster::NAMESPACE;

/// Arguments of `rollout`.
#[derive(Debug, Args)]
pub struct Rollout {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Wait until a rollout is complete, and show how far it is
    Status(status::Status),
    /// List the revisions of a set's class, or print the machine of one
    History(history::Show),
    /// Go back to a revision: pins it, and leaves the class as it is
    Undo(undo::Undo),
    /// Replace every node of a set, as a rollout does it
    Restart(Set),
    /// Stop a rollout; scaling and repair go on
    Pause(Set),
    /// Let a rollout go on that was paused or has halted itself
    Resume(Set),
}

/// One set.
#[derive(Debug, Args)]
struct Set {
    /// Name of the NodeSet, also as nodeset/NAME
    #[arg(value_name = "NODESET", value_parser = set_name)]
    name: String,
}

/// Where revisions are.
#[derive(Debug, Args)]
struct Namespace {
    /// Namespace of the operator, in which it keeps revisions
    #[arg(short, long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: String,
}

impl Rollout {
    /// Does what was asked for.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        super::block_on(async {
            let client = self.cluster.client().await?;
            let said = match self.action {
                Action::Status(status) => return status.run(&client).await,
                Action::History(show) => show.run(&client).await?,
                Action::Undo(undo) => undo.run(&client).await?,
                Action::Restart(Set { name }) => {
                    let now = Timestamp::now();
                    let at = change::next_second(now);
                    let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
                    tokio::time::sleep(left).await;
                    access::change_set(&client, &name, |set| change::restart(set, at)).await?
                }
                Action::Pause(Set { name }) => access::change_set(&client, &name, change::pause).await?,
                Action::Resume(Set { name }) => {
                    access::change_set(&client, &name, |set| change::resume(set, Timestamp::now())).await?
                }
            };
            super::say(said);
            Ok(ExitCode::SUCCESS)
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    pub(crate) use super::change::tests::{halted, now, set};
}
