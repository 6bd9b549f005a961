//! Changes to the Nodes of a test run while it goes on: adds a foreign taint to each new Node and removes the
//! start-up taint once a Node is initialized.

use std::{collections::HashSet, time::Duration};

use http::Method;
use k8s_openapi::api::core::v1::Node;
use kube::{Client, ResourceExt};
use kube_ext::wire::{self, AnyObject, Body};
use kube_node_api::names;
use serde_json::{Value, json};

use super::{
    checks::{has_taint, is_initialized},
    manifests::{MARK_TAINT, NOBODY, STARTUP_TAINT},
    record::{AbortOnDrop, Shared, existing},
};
use crate::FIELD_MANAGER;

/// Pause before a refused change is made again, from the state at that time.
const AGAIN: Duration = Duration::from_millis(300);

/// Upper bound of a test run.
const LONGEST_RUN: Duration = Duration::from_hours(24);

/// Starts the changes; they end with the returned task.
pub(super) fn start(client: Client, nodes: Shared<Node>) -> AbortOnDrop {
    AbortOnDrop::spawn(async move {
        let mut marked = HashSet::new();
        loop {
            let due = nodes.until(LONGEST_RUN, |all| {
                let due: Vec<Node> = existing(all).into_iter().filter(|node| is_due(node, &marked)).collect();
                (!due.is_empty()).then_some(due)
            });
            let Some(due) = due.await else { return };
            for node in due {
                let change = if marked.contains(&node.uid()) { without_startup(&node) } else { marking() };
                if patch(&client, &node.name_any(), &change).await {
                    marked.insert(node.uid());
                } else {
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    })
}

/// Returns true if the Node needs a change.
fn is_due(node: &Node, marked: &HashSet<Option<String>>) -> bool {
    let is_ours = node.labels().get(names::LABEL_NODE_CONTROLLER).is_some_and(|provider| provider != NOBODY);
    let waits = is_initialized(node) && has_taint(node, STARTUP_TAINT, None);
    is_ours && (!marked.contains(&node.uid()) || waits)
}

fn marking() -> Value {
    json!([{"op": "add", "path": "/spec/taints/-", "value": {"key": MARK_TAINT, "effect": "PreferNoSchedule"}}])
}

fn without_startup(node: &Node) -> Value {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let left: Vec<_> = taints.iter().filter(|taint| taint.key != STARTUP_TAINT).collect();
    json!([
        {"op": "test", "path": "/spec/taints", "value": taints},
        {"op": "replace", "path": "/spec/taints", "value": left},
    ])
}

/// Returns true if the change was made or the Node is gone.
async fn patch(client: &Client, node: &str, change: &Value) -> bool {
    let body = Body::JsonPatch(change.to_string().into_bytes());
    let url = format!("/api/v1/nodes/{node}?fieldManager={FIELD_MANAGER}");
    let sent = wire::send::<AnyObject>(client, None, Method::PATCH, &url, body).await;
    sent.is_ok() || sent.is_err_and(|error| error.code() == Some(404))
}
