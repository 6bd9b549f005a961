//! Kubernetes objects: written as JSON, deleted, and read.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};
use kube::{
    Api,
    api::{DeleteParams, PostParams, PropagationPolicy},
};
use serde_json::{Value, json};

/// Creates an object written as JSON.
pub async fn create<K>(api: &Api<K>, object: Value) -> Result<K, kube::Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let mut object = object;
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    let request = kube::core::Request::new(api.resource_url())
        .create(&PostParams::default(), serde_json::to_vec(&object).unwrap())
        .unwrap();
    api.clone().into_client().request(request).await
}

/// Deletes an object; one that is gone is fine.
pub async fn delete<K>(api: &Api<K>, name: &str, cascade: PropagationPolicy)
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + serde::de::DeserializeOwned,
{
    let params = DeleteParams { propagation_policy: Some(cascade), ..DeleteParams::default() };
    match api.delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => drop(other.unwrap()),
    }
}

/// Whether the condition Ready is True.
pub fn is_ready(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|ready| ready.status == "True")
}

/// The condition of this type.
pub fn condition<'a>(node: &'a Node, r#type: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == r#type)
}

/// A Node in one line, for what a wait saw.
pub fn summary(node: &Node) -> String {
    let conditions: Vec<String> = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .filter(|condition| condition.type_ == "Ready" || condition.type_.contains("kube-node.io/"))
        .map(|condition| {
            let reason = condition.reason.as_deref().unwrap_or_default();
            format!("{}={} ({reason})", condition.type_, condition.status)
        })
        .collect();
    let leaves = if node.metadata.deletion_timestamp.is_some() { ", deleted" } else { "" };
    format!("{}: {}, taints {:?}{leaves}", name(node), conditions.join(", "), taints(node))
}

/// The name of a Node.
pub fn name(node: &Node) -> String {
    node.metadata.name.clone().unwrap()
}

/// Keys and effects of the Node's taints.
pub fn taints(node: &Node) -> Vec<(String, String)> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    taints.into_iter().map(|taint| (taint.key, taint.effect)).collect()
}

/// The phase of a pod, empty where it has none.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}
