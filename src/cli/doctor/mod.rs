//! `kube-node doctor`: what may keep nodes from coming, looked at one after the other, each with what to do.
//!
//! [`cluster`] looks at what the commands and the operator need, [`machines`] at the nodes, and at the pods that carry
//! them. A check reads; [`findings`] puts what was read into words, without I/O.

mod cluster;
mod findings;
mod machines;

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use kube::Client;

use self::findings::{Finding, Verdict};
use super::{Output, access::ClusterArgs, say};

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Doctor {
    /// Says what was found; exit code 1 when something keeps nodes from working.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        super::block_on(async {
            let client = self.cluster.client().await?;
            let found = examine(&client, Timestamp::now()).await;
            match self.output {
                Output::Json => say(serde_json::to_string_pretty(&found)?),
                Output::Text => {
                    for finding in &found {
                        say(finding);
                    }
                }
            }
            let is_sick = found.iter().any(|finding| finding.verdict == Verdict::Bad);
            Ok(if is_sick { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        })
    }
}

/// All checks. Where our kinds are not installed the rest has nothing to look at.
async fn examine(client: &Client, now: Timestamp) -> Vec<Finding> {
    let mut found = vec![cluster::server(client).await];
    let kinds = cluster::kinds(client).await;
    let is_installed = kinds.verdict == Verdict::Good;
    found.push(kinds);
    found.push(cluster::manifests(client).await);
    found.push(cluster::rights(client).await);
    if is_installed {
        found.push(cluster::operator(client).await);
        found.extend(cluster::sets(client).await);
    }
    found.extend(machines::examine(client, now).await);
    found
}
