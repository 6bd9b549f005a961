//! Changes to the Nodes of a test run while it goes on: adds a foreign taint to each new Node and removes the
//! start-up taint once a Node is initialized.

use std::{collections::HashSet, convert::Infallible, future::pending, time::Duration};

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use kube_node_api::names;
use serde_json::json;

use super::{
    checks::{has_taint, is_initialized},
    manifests::{MARK_TAINT, NOBODY, STARTUP_TAINT},
    record::existing,
    test_run::TestRun,
};

/// Pause before a refused change is made again, from the state at that time.
const AGAIN: Duration = Duration::from_millis(300);
/// Upper bound of a test run.
const LONGEST_RUN: Duration = Duration::from_hours(24);

/// Makes the changes for as long as it is polled.
pub(super) async fn run(run: &TestRun) -> Infallible {
    let mut marked = HashSet::new();
    loop {
        let due = run.seen.until(LONGEST_RUN, |all| {
            let due: Vec<Node> = existing(all).into_iter().filter(|node| is_due(node, &marked)).collect();
            (!due.is_empty()).then_some(due)
        });
        // A recorder that has ended shows no more Nodes.
        let Some(due) = due.await else { return pending().await };
        for node in due {
            if change(run, &node, marked.contains(&node.uid())).await {
                marked.insert(node.uid());
            } else {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Returns true if the Node needs a change.
fn is_due(node: &Node, marked: &HashSet<Option<String>>) -> bool {
    let is_ours = node.labels().get(names::LABEL_NODE_CONTROLLER).is_some_and(|provider| provider != NOBODY);
    let waits = is_initialized(node) && has_taint(node, STARTUP_TAINT, None);
    is_ours && (!marked.contains(&node.uid()) || waits)
}

/// Marks a new Node, or removes the start-up taint of a marked one. Returns true if that was done or the Node is gone.
async fn change(run: &TestRun, node: &Node, is_marked: bool) -> bool {
    let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    if is_marked {
        taints.retain(|taint| taint.key != STARTUP_TAINT);
    } else {
        let effect = "PreferNoSchedule".to_owned();
        taints.push(Taint { key: MARK_TAINT.to_owned(), effect, ..Taint::default() });
    }
    let change = json!({
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "spec": {"taints": taints},
    });
    let changed = run.patch(&run.nodes, &node.name_any(), change).await;
    changed.is_ok() || changed.is_err_and(|error| error.is_not_found())
}
