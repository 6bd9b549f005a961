//! What people see of a running cluster: metrics, the dashboard and the alerts over them, logs, the table at a terminal;
//! and that docs/metrics.md says of them what is so.

mod exposition;
mod logs;
mod queries;
mod table;
mod top;
mod traces;

use kube_node_testing::{TestCluster, test_target};
use std::sync::LazyLock;

/// The cluster of this suite. With the server for cluster-autoscaler all metrics are there.
static CLUSTER: LazyLock<TestCluster> =
    LazyLock::new(|| TestCluster::shared(test_target!(), "observability", &["--autoscaler-server"]));
/// The page that is compared.
const PAGE: &str = include_str!("../../../docs/metrics.md");

/// The rows of a table of the page, between two marks, without its headings.
fn rows(mark: &str) -> Vec<Vec<String>> {
    let table = PAGE.split(&format!("<!-- {mark} -->")).nth(1).unwrap();
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    table.trim().lines().skip(2).map(cells).collect()
}

/// What a cell names in code.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}
