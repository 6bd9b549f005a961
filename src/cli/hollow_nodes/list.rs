//! `kube-node list`: the fleet's Nodes, as a table that fits the terminal, or as JSON or YAML.

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kube::{Client, ResourceExt};
use kube_ext::process::print_line;
use serde::Serialize;

use super::{Choice, NAME, Row};
use crate::{
    table::{Table, terminal_size},
    text::age_or_dash,
};

/// Arguments of `list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    choice: Choice,
    /// Output format; a table when absent
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Table with more columns, not limited to the width of the terminal
    Wide,
    /// JSON for programs
    Json,
    /// YAML for programs
    Yaml,
}

/// The printed report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    node_sets: Vec<String>,
    /// Number of wanted nodes of all NodeSets; `None` without one.
    wanted: Option<i32>,
    ready: usize,
    nodes: Vec<Row>,
}

impl List {
    /// Prints the Nodes.
    pub async fn run(self, client: &Client) -> anyhow::Result<()> {
        let (sets, nodes) = (self.choice.sets(client).await?, self.choice.rows(client).await?);
        let ready = nodes.iter().filter(|row| row.ready).count();
        let wanted = (!sets.is_empty()).then(|| sets.iter().map(|set| set.spec.replicas).sum());
        let node_sets = sets.iter().map(ResourceExt::name_any).collect();
        let report = Report { node_sets, wanted, ready, nodes };
        match self.output {
            Some(Output::Json) => print_line(serde_json::to_string_pretty(&report)?),
            Some(Output::Yaml) => print_line(serde_norway::to_string(&report)?.trim_end()),
            Some(Output::Wide) => print_line(text(&report, true, None, Timestamp::now())),
            None => print_line(text(&report, false, terminal_size().unzip().0, Timestamp::now())),
        }
        Ok(())
    }
}

fn text(report: &Report, wide: bool, width: Option<usize>, now: Timestamp) -> String {
    let Report { node_sets, wanted, ready, nodes } = report;
    let summary = match (node_sets.as_slice(), wanted) {
        ([name], Some(wanted)) => format!("NodeSet {name}: {ready} of {wanted} nodes are Ready"),
        ([_, ..], Some(wanted)) => {
            format!("{} NodeSets: {ready} of {wanted} nodes are Ready", node_sets.len())
        }
        _ => format!("There is no NodeSet {NAME}: kube-node create makes one"),
    };
    if nodes.is_empty() {
        return summary;
    }
    let mut headings = vec!["NAME", "STATUS", "AGE", "VERSION"];
    if wide {
        headings.extend(["NODESET", "NODECONTROLLER", "ADDRESS", "RUNTIME"]);
    }
    headings.push("WHY");
    let mut table = Table::new(&headings);
    for row in nodes {
        let (age, reason, message) = (age_or_dash(row.created, now), &row.reason, &row.message);
        let mut cells = vec![row.name.clone(), row.status.clone(), age, row.version.clone()];
        if wide {
            let more = [&row.node_set, &row.node_controller, &row.address, &row.runtime];
            cells.extend(more.map(String::clone));
        }
        cells.push(if message.is_empty() { reason.clone() } else { format!("{reason}: {message}") });
        table.row(cells.into_iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }));
    }
    format!("{}\n\n{summary}", table.text(width))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Report {
        let node = |name: &str, status: &str| {
            super::super::rows::tests::of(json!({
                "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z",
                    "labels": {"kube-node.io/node-controller": "hollow"}},
                "status": {
                    "conditions": [{"type": "Ready", "status": status, "reason": "KubeletNotReady", "message": "an unhealthy phase"}],
                    "nodeInfo": {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.0",
                        "architecture": "", "bootID": "", "kernelVersion": "", "kubeProxyVersion": "",
                        "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""},
                },
            }))
        };
        let nodes = vec![node("hollow-nodes-b", "True"), node("hollow-nodes-c", "False")];
        Report { node_sets: vec![NAME.to_owned()], wanted: Some(3), ready: 1, nodes }
    }

    fn at() -> Timestamp {
        "2026-01-01T00:01:00Z".parse().unwrap()
    }

    #[test]
    fn the_table_says_who_is_ready_and_why_others_are_not() {
        assert_eq!(
            text(&report(), false, None, at()),
            "NAME             STATUS     AGE   VERSION   WHY\n\
             hollow-nodes-b   Ready      60s   v1.36.3   -\n\
             hollow-nodes-c   NotReady   60s   v1.36.3   KubeletNotReady: an unhealthy phase\n\
             \n\
             NodeSet hollow-nodes: 1 of 3 nodes are Ready"
        );
        let wide = text(&report(), true, None, at());
        assert!(wide.contains("NODECONTROLLER") && wide.contains("containerd://2.1.0"), "{wide}");
        let two = Report { node_sets: ["a", "b"].map(str::to_owned).to_vec(), wanted: Some(8), ..report() };
        assert!(text(&two, false, None, at()).ends_with("2 NodeSets: 1 of 8 nodes are Ready"));
        let narrow = text(&report(), false, Some(60), at());
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    }

    #[test]
    fn without_a_set_the_next_step_is_named() {
        let none = Report { node_sets: Vec::new(), wanted: None, ready: 0, nodes: Vec::new() };
        assert!(text(&none, false, None, at()).contains("kube-node create"));
    }
}
