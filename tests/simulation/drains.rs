//! What must hold of pods, and of their Nodes' drains: pods leave by evictions, and before their machine.
//!
//! Inputs: changes of Nodes and pods, in order, the server's objects after each, the write that made it. Output: a violation.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use jiff::Timestamp;
use kube_node_api::names::ANNOTATION_DRAIN_STARTED;
use kube_node_testing::api_server::{ApiServer, Change};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    objects::{is_draining, name, set_of, taints},
    others::OUT_OF_SERVICE,
    sent::Sent,
};

/// When drains began, and when pods were bound.
#[derive(Default)]
pub struct Drains {
    /// When the drain of each Node began.
    begun: BTreeMap<String, Instant>,
    /// When each pod was bound to its Node, by its UID.
    bound: BTreeMap<String, Instant>,
}

impl Drains {
    /// Notes a change of a Node.
    pub fn note_node(&mut self, change: &Change) {
        let node = name(&change.after);
        if change.deleted {
            self.begun.remove(&node);
        } else if is_draining(&change.after)
            && change.before.as_deref().is_some_and(|node| !is_draining(node))
        {
            self.begun.insert(node, Instant::now());
        }
    }

    /// Notes a change of a pod, and checks it.
    pub fn check_pod(
        &mut self,
        server: &ApiServer,
        change: &Change,
        by: Option<&Sent>,
        time: Timestamp,
    ) -> Option<String> {
        let uid = change.after["metadata"]["uid"].as_str().unwrap_or_default();
        if change.deleted {
            self.bound.remove(uid);
        } else if change.after["spec"]["nodeName"].is_string() && !self.bound.contains_key(uid) {
            self.bound.insert(uid.to_owned(), Instant::now());
        }
        deleted_early(server, change, by, time).or_else(|| shared_address(server, change))
    }

    /// A pod that was bound to a Node before its drain began, and that nobody has asked to leave.
    pub fn forgotten(&self, server: &ApiServer, node: &str) -> Option<String> {
        let begun = self.begun.get(node)?;
        let pods = server.objects("", "pods");
        let is_forgotten = |pod: &&Arc<Value>| {
            let bound = pod["metadata"]["uid"].as_str().and_then(|uid| self.bound.get(uid));
            pod["spec"]["nodeName"] == node
                && pod["metadata"]["deletionTimestamp"].is_null()
                && !has_ended(pod)
                && bound.is_some_and(|bound| bound < begun)
        };
        pods.iter().find(is_forgotten).map(|pod| name(pod))
    }
}

/// Pods are deleted without an eviction only if their machine is gone, or the time limit of the drain is over.
fn deleted_early(server: &ApiServer, change: &Change, by: Option<&Sent>, time: Timestamp) -> Option<String> {
    let pod = &change.after;
    let by = by.filter(|sent| sent.process.starts_with("operator") && sent.method == Method::DELETE)?;
    // The kubelet removes a pod that has ended.
    let was_marked =
        change.before.as_ref().is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_string());
    if was_marked && by.json()["gracePeriodSeconds"] == 0 {
        return None;
    }
    // The machine of a Node that is out of service is gone.
    let runs = |node: &Value| pod["spec"]["nodeName"] == name(node) && !is_out_of_service(node);
    let nodes = server.objects("", "nodes");
    let running = nodes.iter().find(|node| runs(node))?;
    let is_early = !is_drained_for(server, running, time);
    is_early.then(|| format!("pod {} is deleted without an eviction", name(pod)))
}

/// No two pods of a Node have one address.
fn shared_address(server: &ApiServer, change: &Change) -> Option<String> {
    let (pod, before) = (&change.after, change.before.as_deref());
    let (node, address) = (&pod["spec"]["nodeName"], &pod["status"]["podIP"]);
    if change.deleted || address.is_null() || before.is_some_and(|pod| pod["status"]["podIP"] == *address) {
        return None;
    }
    let pods = server.objects("", "pods");
    let has_it = |other: &&Arc<Value>| {
        other["status"]["podIP"] == *address
            && other["metadata"]["uid"] != pod["metadata"]["uid"]
            && other["spec"]["nodeName"] == *node
            && !has_ended(other)
    };
    let (other, node) = (pods.iter().find(has_it)?, node.as_str().unwrap_or_default());
    Some(format!("pods {} and {} of {node} have the address {address}", name(pod), name(other)))
}

pub fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Returns true if a Node says that its machine is gone for ever.
pub fn is_out_of_service(node: &Value) -> bool {
    taints(node).any(|key| key == OUT_OF_SERVICE)
}

/// Returns true if the time limit of a Node's drain was over at this time. The drain counts from its deletion, or from the
/// time that its process has noted.
pub fn is_drained_for(server: &ApiServer, node: &Value, at: Timestamp) -> bool {
    let set = server.object("kube-node.io", "nodesets", None, &set_of(node)).unwrap_or_default();
    let limit =
        set["spec"]["drain"]["timeout"].as_str().and_then(|text| text.strip_suffix('s')?.parse().ok());
    let metadata = &node["metadata"];
    let time = |text: &Value| text.as_str().and_then(|text| text.parse().ok());
    let begun =
        time(&metadata["annotations"][ANNOTATION_DRAIN_STARTED]).max(time(&metadata["deletionTimestamp"]));
    limit.zip(begun).is_some_and(|(limit, begun): (u64, Timestamp)| at >= begun + Duration::from_secs(limit))
}
