//! `kube-node verify`: checks that all wanted nodes exist and are Ready.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use kube::Api;
use kube_ext::{call::call, process::say};
use kube_node_api::NodeSet;

use super::{
    ClusterArgs, FLEET, Wait,
    progress::{Goal, follow, stand},
    rows::{Row, read},
};

/// Maximum number of Nodes in the output.
const NAMED_MAX: usize = 10;

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct Verify {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Wait until all nodes are Ready; without this flag, check once
    #[arg(short, long)]
    wait: bool,
    #[command(flatten)]
    limit: Wait,
}

impl Verify {
    /// Returns exit code 0 if all nodes are Ready, else 1.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        kube_ext::process::block_on(async {
            let client = self.cluster.client().await?;
            let sets = Api::<NodeSet>::all(client.clone());
            let Some(set) = call(format_args!("read NodeSet {FLEET}"), sets.get_opt(FLEET)).await? else {
                bail!("there is no NodeSet {FLEET}: make it with kube-node create");
            };
            if self.wait {
                follow(&client, Goal::Ready, self.limit.timeout).await?;
                return Ok(ExitCode::SUCCESS);
            }
            let stand = stand(Goal::Ready, Some(&set));
            say(&stand.counts);
            if stand.is_done {
                return Ok(ExitCode::SUCCESS);
            }
            if !stand.is_seen {
                say(
                    "The operator has not looked at the NodeSet as it is now: kube-node doctor finds out why.",
                );
            }
            if let Some(why) = &stand.why {
                say(why);
            }
            for line in others(&read(&client).await?) {
                say(line);
            }
            Ok(ExitCode::FAILURE)
        })
    }
}

/// Nodes that are not Ready, each with its reason.
fn others(rows: &[Row]) -> Vec<String> {
    let others: Vec<&Row> = rows.iter().filter(|row| !row.ready).collect();
    let mut lines: Vec<String> = others
        .iter()
        .take(NAMED_MAX)
        .map(|Row { name, status, reason, message, .. }| format!("{name}: {status}: {reason}: {message}"))
        .collect();
    if others.len() > NAMED_MAX {
        lines.push(format!("… and {} more: kube-node list shows all", others.len() - NAMED_MAX));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn those_that_are_not_ready_are_named_up_to_a_number() {
        let node = |at: usize| {
            super::super::rows::tests::of(
                json!({"metadata": {"name": format!("n{at}")}, "status": {"conditions": [
                {"type": "Ready", "status": if at == 0 { "True" } else { "False" }, "reason": "Provisioning", "message": "no machine"}]}}),
            )
        };
        let lines = others(&(0..13).map(node).collect::<Vec<_>>());
        assert_eq!(lines.len(), 11);
        assert_eq!(lines[0], "n1: NotReady: Provisioning: no machine");
        assert!(lines[10].contains("2 more"));
        assert!(others(&[node(0)]).is_empty());
    }
}
