//! The Node object: marked Unknown before a start, awaited after it, deleted if the cluster starts without a
//! real node.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use kube_ext::{
    call::call,
    objects::{self, wait_for},
};
use serde_json::json;

use super::description::NAME;
use crate::manifests::unless_gone;

/// Time limit for the Node to become Ready after its kubelet is healthy.
const LIMIT: Duration = Duration::from_mins(2);
/// Taints that kube-controller-manager removes some moments after the Node is Ready; no pod is scheduled before that.
const NOT_READY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Sets Ready to Unknown on the Node of an earlier start. Otherwise the last kubelet's status would stand: a
/// kubelet writes the status when it changes and else every five minutes, so the new one would leave it unchanged.
pub async fn unknown(client: &Client) -> anyhow::Result<()> {
    let now = Timestamp::now().to_string();
    let condition = json!({
        "type": "Ready", "status": "Unknown", "reason": "NodeStarting", "message": "the real node starts",
        "lastTransitionTime": now, "lastHeartbeatTime": now,
    });
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    let nodes = Api::<Node>::all(client.clone());
    let action = format_args!("write the status of the Node {NAME}");
    unless_gone(call(action, nodes.patch_status(NAME, &PatchParams::default(), &patch)).await)?;
    Ok(())
}

/// Waits until the Node is Ready and untainted, so that it takes pods.
pub async fn wait_ready(client: &Client) -> anyhow::Result<()> {
    let problem = format!(
        "the Node {NAME} is not Ready: kube-node status says how its processes stand, logs/kubelet.log in the data folder why"
    );
    let condition = |node: Option<&Node>| node.is_some_and(is_ready);
    wait_for(Api::all(client.clone()), NAME, condition, LIMIT, &problem).await
}

/// Deletes the Node of an earlier start. Its pods are garbage-collected later.
pub async fn forget(client: &Client) -> anyhow::Result<()> {
    objects::delete(&Api::<Node>::all(client.clone()), NAME).await?;
    Ok(())
}

fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    let ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let mut taints = node.spec.iter().filter_map(|spec| spec.taints.as_ref()).flatten();
    ready && !taints.any(|taint| NOT_READY.contains(&taint.key.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn node(status: &str, taints: &Value) -> Node {
        let conditions = json!([{"type": "Ready", "status": status}]);
        serde_json::from_value(json!({"spec": {"taints": taints}, "status": {"conditions": conditions}}))
            .unwrap()
    }

    #[test]
    fn ready_is_open_to_pods() {
        let taint = |key: &str| json!([{"key": key, "effect": "NoSchedule"}]);
        assert!(is_ready(&node("True", &json!([]))));
        assert!(is_ready(&node("True", &taint("example.com/mine"))));
        assert!(!is_ready(&node("Unknown", &json!([]))));
        assert!(!is_ready(&node("True", &taint("node.kubernetes.io/not-ready"))));
        assert!(!is_ready(&node("True", &taint("node.kubernetes.io/unreachable"))));
        assert!(!is_ready(&Node::default()));
    }
}
