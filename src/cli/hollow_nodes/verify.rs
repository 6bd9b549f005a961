//! `kube-node verify`: checks that all wanted nodes exist and are Ready.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::bail;
use clap::Args;
use kube::Client;
use kube_node_api::{GoDuration, NodeSet};

use super::{Choice, Goal, NAME, Row, Wait, goal, progress};
use crate::{print_line, progress::Progress, set_status::name};

/// Maximum number of Nodes in the output.
const NODES_MAX: usize = 10;

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct Verify {
    #[command(flatten)]
    choice: Choice,
    /// Wait until all nodes are Ready; without this flag, check once
    #[arg(short, long)]
    wait: bool,
    #[command(flatten)]
    limit: Wait,
}

impl Verify {
    /// Returns exit code 0 if all nodes of all sets are Ready, else 1.
    pub async fn run(self, client: &Client) -> anyhow::Result<ExitCode> {
        let mut sets = self.choice.sets(client).await?;
        if sets.is_empty() {
            bail!("there is no NodeSet {NAME}: make it with kube-node create");
        }
        if self.wait {
            self.wait_for(client, &sets).await?;
            sets = self.choice.sets(client).await?;
        }
        let rows = self.choice.rows(client).await?;
        let (lines, is_ready) = findings(&sets, &rows)?;
        // A wait has printed the same.
        if !(self.wait && is_ready) {
            lines.into_iter().for_each(print_line);
        }
        if is_ready {
            return Ok(ExitCode::SUCCESS);
        }
        others(&rows).into_iter().for_each(print_line);
        Ok(ExitCode::FAILURE)
    }

    /// Waits for one set after another, within the time limit for all.
    async fn wait_for(&self, client: &Client, sets: &[NodeSet]) -> anyhow::Result<()> {
        let (since, limit) = (Instant::now(), self.limit.timeout.0);
        for set in sets {
            // Zero would switch the limit off.
            let left = limit.saturating_sub(since.elapsed()).max(Duration::from_millis(1));
            let left = if limit.is_zero() { limit } else { left };
            goal::follow(client, name(set), Goal::Ready, GoDuration(left)).await?;
        }
        Ok(())
    }
}

/// What to print, and true if all nodes are Ready.
fn findings(sets: &[NodeSet], rows: &[Row]) -> anyhow::Result<(Vec<String>, bool)> {
    let (mut lines, mut is_ready) = (Vec::new(), true);
    for set in sets {
        let prefix = if sets.len() > 1 { format!("NodeSet {}: ", name(set)) } else { String::new() };
        let waiting = match progress(Goal::Ready, name(set), Some(set)) {
            Progress::Done(counts) => {
                lines.push(format!("{prefix}{counts}"));
                continue;
            }
            Progress::Failed(reason) => bail!(reason),
            Progress::Waiting(waiting) => waiting,
        };
        is_ready = false;
        lines.push(format!("{prefix}{}", waiting.line));
        if !waiting.is_observed {
            let unseen = "The operator has not observed the last change of the NodeSet: kube-node doctor finds out why.";
            lines.push(unseen.to_owned());
        }
        lines.extend(waiting.delay);
    }
    let single: Vec<&Row> = rows.iter().filter(|row| row.node_set.is_empty()).collect();
    let ready = single.iter().filter(|row| row.ready).count();
    if ready < single.len() {
        is_ready = false;
        lines.push(format!("Nodes without a NodeSet: {ready} of {} are Ready", single.len()));
    }
    Ok((lines, is_ready))
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
    fn every_set_and_every_node_without_a_set_counts() {
        let set = |name: &str, ready: i32| -> NodeSet {
            serde_json::from_value(json!({"metadata": {"name": name, "generation": 1},
                "spec": {"nodeClassName": "c", "replicas": 2},
                "status": {"observedGeneration": 1, "replicas": 2, "readyReplicas": ready}}))
            .unwrap()
        };
        let row = |status: &str| {
            super::super::rows::tests::of(
                json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": status}]}}),
            )
        };
        let found = |sets: &[NodeSet], rows: &[Row]| findings(sets, rows).unwrap();
        assert_eq!(found(&[set("a", 2)], &[]), (vec!["2 of 2 nodes are Ready".to_owned()], true));
        let (lines, is_ready) = found(&[set("a", 2), set("b", 1)], &[]);
        assert_eq!(lines, ["NodeSet a: 2 of 2 nodes are Ready", "NodeSet b: 1 of 2 nodes are Ready"]);
        assert!(!is_ready);
        let (lines, is_ready) = found(&[set("a", 2)], &[row("True"), row("False")]);
        assert_eq!(lines[1], "Nodes without a NodeSet: 1 of 2 are Ready");
        assert!(!is_ready);
    }

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
