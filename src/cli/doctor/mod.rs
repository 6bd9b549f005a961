//! `kube-node doctor`: checks everything that may keep nodes from becoming Ready, with advice for each finding.
//!
//! [`cluster`] checks what the commands and the operator need; [`machines`] checks the nodes and the pods of their
//! machines. A check reads objects; [`findings`] turns them into text, without I/O.

mod cluster;
mod findings;
mod machines;

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use kube::Client;
use kube_node_api::names::{MACHINE_NAMESPACE, OPERATOR_NAMESPACE};

use self::findings::{Finding, Severity};
use super::{Output, print_line};

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    namespaces: Namespaces,
}

/// Namespaces of the installation.
#[derive(Debug, Args)]
struct Namespaces {
    /// Namespace of the operator
    #[arg(short, long, value_name = "NAMESPACE", default_value = OPERATOR_NAMESPACE)]
    namespace: String,
    /// Namespace of kubemark machines
    #[arg(long, value_name = "NAMESPACE", default_value = MACHINE_NAMESPACE)]
    machine_namespace: String,
}

impl Doctor {
    /// Prints the findings. Returns exit code 1 if a problem keeps nodes from working, or whether one does is not known.
    pub async fn run(self, client: &Client) -> anyhow::Result<ExitCode> {
        let found = examine(client, &self.namespaces, Timestamp::now()).await;
        match self.output {
            Output::Json => print_line(serde_json::to_string_pretty(&found)?),
            Output::Text => found.iter().for_each(print_line),
        }
        let is_failure = found.iter().any(Finding::is_failure);
        Ok(if is_failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Runs all checks. Without our CRDs the later checks have no objects to read.
async fn examine(client: &Client, namespaces: &Namespaces, now: Timestamp) -> Vec<Finding> {
    let crds = Finding::of("kinds", cluster::crds(client, namespaces).await);
    let is_installed = crds.severity == Severity::Good;
    let mut found = vec![
        Finding::of("API server", cluster::server(client).await),
        crds,
        Finding::of("setup", cluster::manifests(client, namespaces).await),
        Finding::of("rights", cluster::rights(client, namespaces).await),
    ];
    if is_installed {
        found.push(Finding::of("operator", cluster::operator(client, namespaces).await));
        let sets = cluster::sets(client).await.unwrap_or_else(|error| vec![Err(error)]);
        found.extend(sets.into_iter().map(|checked| Finding::of("NodeSets", checked)));
    }
    found.extend(machines::examine(client, namespaces, now).await);
    found
}
