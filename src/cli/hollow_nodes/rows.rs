//! Nodes as table rows: reading needs the API, formatting no I/O.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::{Api, Client, ResourceExt, api::ListParams};
use kube_ext::objects::list;
use kube_node_api::names::{CONDITION_DRAINED, CONDITION_MACHINE, LABEL_NODE_CONTROLLER, LABEL_NODESET};
use serde::Serialize;

use super::objects::NodeController;

/// A Node as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Status in kubectl's words: `Ready` or `NotReady`, and further states.
    pub(crate) status: String,
    /// True if pods may run on the Node.
    pub(crate) ready: bool,
    pub(super) created: Option<Timestamp>,
    pub(super) version: String,
    pub(super) runtime: String,
    pub(super) node_controller: String,
    /// NodeSet of the Node; empty for a Node without one.
    pub(super) node_set: String,
    pub(super) address: String,
    /// Reason why the Node is not Ready or is delayed; empty if neither.
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// All hollow and kubemark Nodes, sorted by name.
pub(super) async fn read(client: &Client) -> anyhow::Result<Vec<Row>> {
    let api = Api::<Node>::all(client.clone());
    let [hollow, kubemark] = [NodeController::Hollow, NodeController::Kubemark].map(NodeController::name);
    let ours = ListParams::default().labels(&format!("{LABEL_NODE_CONTROLLER} in ({hollow}, {kubemark})"));
    let nodes = list(&api, "Nodes", &ours).await?;
    let mut rows: Vec<Row> = nodes.iter().map(row).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(rows)
}

/// Formats a Node.
pub(crate) fn row(node: &Node) -> Row {
    let status = node.status.clone().unwrap_or_default();
    let condition = |r#type: &str| status.conditions.iter().flatten().find(|own| own.type_ == r#type);
    let ready = condition("Ready");
    let is_ready = ready.is_some_and(|ready| ready.status == "True");
    let is_leaving = node.metadata.deletion_timestamp.is_some();
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let schedulable = match (is_leaving, is_cordoned) {
        (true, _) => ",Leaving",
        (false, true) => ",SchedulingDisabled",
        (false, false) => "",
    };
    let is_false = |condition: &&NodeCondition| condition.status == "False";
    let cause = condition(CONDITION_DRAINED)
        .filter(|drained| is_leaving && is_false(drained))
        .or_else(|| condition(CONDITION_MACHINE).filter(is_false))
        .or_else(|| ready.filter(|_| !is_ready));
    let info = status.node_info.as_ref();
    let address = status.addresses.iter().flatten().find(|address| address.type_ == "InternalIP");
    Row {
        name: node.name_any(),
        status: format!("{}{schedulable}", if is_ready { "Ready" } else { "NotReady" }),
        ready: is_ready,
        created: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
        version: info.map(|info| info.kubelet_version.clone()).unwrap_or_default(),
        runtime: info.map(|info| info.container_runtime_version.clone()).unwrap_or_default(),
        node_controller: node.labels().get(LABEL_NODE_CONTROLLER).cloned().unwrap_or_default(),
        node_set: node.labels().get(LABEL_NODESET).cloned().unwrap_or_default(),
        address: address.map(|address| address.address.clone()).unwrap_or_default(),
        reason: cause.and_then(|cause| cause.reason.clone()).unwrap_or_default(),
        message: cause.and_then(|cause| cause.message.clone()).unwrap_or_default(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(in crate::hollow_nodes) fn of(node: Value) -> Row {
        row(&serde_json::from_value(node).unwrap())
    }

    fn node(ready: &str, more: &[Value]) -> Value {
        let ready = json!({"type": "Ready", "status": ready, "reason": "KubeletNotReady", "message": "unhealthy phase"});
        let conditions: Vec<Value> = more.iter().cloned().chain([ready]).collect();
        json!({"metadata": {"name": "a"}, "status": {"conditions": conditions}})
    }

    #[test]
    fn a_status_reads_as_kubectl_has_it() {
        assert_eq!(of(node("True", &[])).status, "Ready");
        assert_eq!(of(node("Unknown", &[])).status, "NotReady");
        let mut cordoned = node("True", &[]);
        cordoned["spec"] = json!({"unschedulable": true});
        assert_eq!(of(cordoned.clone()).status, "Ready,SchedulingDisabled");
        cordoned["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(of(cordoned).status, "Ready,Leaving");
        assert_eq!(of(json!({"metadata": {"name": "a"}})).status, "NotReady");
    }

    #[test]
    fn the_nearest_cause_is_named() {
        let machine = json!({"type": CONDITION_MACHINE, "status": "False", "reason": "ImagePull", "message": "no such image"});
        let drain = json!({"type": CONDITION_DRAINED, "status": "False", "reason": "DrainBlocked", "message": "a budget"});
        assert_eq!(of(node("True", &[])).reason, "");
        assert_eq!(of(node("False", &[])).message, "unhealthy phase");
        assert_eq!(of(node("False", std::slice::from_ref(&machine))).reason, "ImagePull");
        let mut leaving = node("False", &[machine, drain]);
        assert_eq!(of(leaving.clone()).reason, "ImagePull", "a drain that was given up says nothing");
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(of(leaving).reason, "DrainBlocked");
    }
}
