//! `kube-node verify`: checks that all wanted nodes exist and are Ready.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use kube::Client;

use super::{Goal, NAME, Row, Wait, goal, progress, read_set, rows};
use crate::{print_line, progress::Progress};

/// Maximum number of Nodes in the output.
const NODES_MAX: usize = 10;

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// Wait until all nodes are Ready; without this flag, check once
    #[arg(short, long)]
    wait: bool,
    #[command(flatten)]
    limit: Wait,
}

impl Verify {
    /// Returns exit code 0 if all nodes are Ready, else 1.
    pub async fn run(self, client: &Client) -> anyhow::Result<ExitCode> {
        let Some(set) = read_set(client).await? else {
            bail!("there is no NodeSet {NAME}: make it with kube-node create");
        };
        if self.wait {
            goal::follow(client, Goal::Ready, self.limit.timeout).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let waiting = match progress(Goal::Ready, Some(&set)) {
            Progress::Done(counts) => {
                print_line(counts);
                return Ok(ExitCode::SUCCESS);
            }
            Progress::Failed(reason) => bail!(reason),
            Progress::Waiting(waiting) => waiting,
        };
        print_line(waiting.line);
        if !waiting.is_observed {
            print_line(
                "The operator has not looked at the NodeSet as it is now: kube-node doctor finds out why.",
            );
        }
        waiting.delay.into_iter().for_each(print_line);
        others(&rows::read(client).await?).into_iter().for_each(print_line);
        Ok(ExitCode::FAILURE)
    }
}

/// Nodes that are not Ready, each with its reason.
fn others(rows: &[Row]) -> Vec<String> {
    let others = rows.iter().filter(|row| !row.ready).map(|row| {
        let Row { name, status, reason, message, .. } = row;
        format!("{name}: {status}: {reason}: {message}")
    });
    let mut lines: Vec<String> = others.collect();
    if let Some(more) = lines.len().checked_sub(NODES_MAX).filter(|more| *more > 0) {
        lines.truncate(NODES_MAX);
        lines.push(format!("… and {more} more: kube-node list shows all"));
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
