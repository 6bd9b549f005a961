//! The Node object: waited for after a start, deleted when the cluster starts without a real node.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time};
use kube::{Api, Client, api::DeleteParams, runtime::wait::await_condition};
use tokio::time::timeout;

use super::NAME;

/// How long the node may take once its kubelet is healthy.
const LIMIT: Duration = Duration::from_mins(2);
/// Set by the API server, taken off by kube-controller-manager: until then no pod comes.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Why the Node is not Ready.
#[derive(Debug, thiserror::Error)]
pub enum ReadyError {
    /// It cannot be watched.
    #[error("cannot watch the Node {NAME}")]
    Watch(#[source] Box<kube::runtime::wait::Error>),
    /// It takes too long.
    #[error("the Node {NAME} is not Ready after {} s: kube-node status says how its processes stand, logs/kubelet.log in the data folder why", LIMIT.as_secs())]
    Slow,
    /// It cannot be deleted.
    #[error("cannot delete the Node {NAME} of an earlier start")]
    Forget(#[source] Box<kube::Error>),
}

/// Waits until the Node takes pods. What was reported before `since` is of an earlier start.
pub async fn wait_ready(client: &Client, since: Timestamp) -> Result<(), ReadyError> {
    let nodes = Api::<Node>::all(client.clone());
    let wait =
        await_condition(nodes, NAME, |node: Option<&Node>| node.is_some_and(|node| is_ready(node, since)));
    match timeout(LIMIT, wait).await {
        Err(_) => Err(ReadyError::Slow),
        Ok(Err(error)) => Err(ReadyError::Watch(Box::new(error))),
        Ok(Ok(_)) => Ok(()),
    }
}

/// Deletes the Node of an earlier start, and with it, in time, its pods.
pub async fn forget(client: &Client) -> Result<(), ReadyError> {
    match Api::<Node>::all(client.clone()).delete(NAME, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(ReadyError::Forget(Box::new(error))),
        Ok(_) => Ok(()),
    }
}

fn is_ready(node: &Node, since: Timestamp) -> bool {
    let conditions = node.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    let reported = |time: &Time| time.0 >= since;
    let ready = conditions.into_iter().any(|condition| {
        condition.type_ == "Ready"
            && condition.status == "True"
            && condition.last_heartbeat_time.as_ref().is_some_and(reported)
    });
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    ready && !taints.into_iter().flatten().any(|taint| taint.key == NOT_READY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(status: &str, heartbeat: &str, taints: &Value) -> Node {
        let conditions = json!([{"type": "Ready", "status": status, "lastHeartbeatTime": heartbeat}]);
        serde_json::from_value(json!({"spec": {"taints": taints}, "status": {"conditions": conditions}}))
            .unwrap()
    }

    #[test]
    fn only_what_this_kubelet_says_counts() {
        let since: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let taint = json!([{"key": NOT_READY, "effect": "NoSchedule"}]);
        assert!(is_ready(&node("True", "2026-11-21T12:00:00Z", &json!([])), since));
        assert!(!is_ready(&node("True", "2026-11-21T11:59:59Z", &json!([])), since));
        assert!(!is_ready(&node("False", "2026-11-21T12:00:01Z", &json!([])), since));
        assert!(!is_ready(&node("True", "2026-11-21T12:00:01Z", &taint), since));
        assert!(!is_ready(&Node::default(), since));
    }
}
