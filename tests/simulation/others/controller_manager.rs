//! Models of kube-controller-manager: node lifecycle, attached volumes, garbage collection of pods, Nodes, Leases and revisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use http::Method;
use kube_ext::environment;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{OUT_OF_SERVICE, Others, REVISIONS, is_leaving};
use crate::objects::{is_ready, name, taints};

/// Time without a sign of life after which a Node is Unknown (kube-controller-manager, `--node-monitor-grace-period`).
const GRACE: Duration = Duration::from_secs(50);
/// Time after which the pods of a Node that is Unknown are deleted (`DefaultTolerationSeconds`).
const TOLERATION: Duration = Duration::from_mins(5);
/// Time for which the Node of a pod has to be missing (podgc, `quarantineTime`).
const QUARANTINE: Duration = Duration::from_secs(40);
/// Time from the end of a pod until its volume is detached.
const DETACHES: Duration = Duration::from_secs(3);
/// Path of what attaches volumes to Nodes.
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
/// Taint of a Node whose kubelet is silent.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Taint of a Node that reports itself not ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

impl Others {
    /// Attaches the volume of each pod that is bound, and detaches it after the pod (attach-detach controller).
    pub(super) fn attach(&mut self) {
        let pods = self.all_pods();
        let bound = pods.iter().filter(|pod| self.has_volumes && pod["spec"]["nodeName"].is_string());
        let mut wanted: BTreeMap<String, &Value> =
            bound.map(|pod| (format!("csi-{}", name(pod)), &pod["spec"]["nodeName"])).collect();
        for attachment in self.server.objects("storage.k8s.io", "volumeattachments") {
            let name = name(&attachment);
            if wanted.remove(&name).is_some() {
                self.unused.remove(&name);
                continue;
            }
            let since = *self.unused.entry(name.clone()).or_insert_with(Instant::now);
            if since.elapsed() >= DETACHES {
                self.unused.remove(&name);
                self.call(Method::DELETE, &format!("{ATTACHMENTS}/{name}"), &Value::Null);
            }
        }
        for (name, node) in wanted {
            let attachment = json!({
                "metadata": { "name": name },
                "spec": { "attacher": "csi", "nodeName": node, "source": { "persistentVolumeName": name } },
            });
            self.call(Method::POST, ATTACHMENTS, &attachment);
        }
    }

    /// Marks Nodes by what their kubelets report, and evicts the pods of those that are silent (node lifecycle controller).
    pub(super) fn watch_nodes(&mut self) {
        let leases = self.server.objects("coordination.k8s.io", "leases");
        let renewed: BTreeMap<String, &Value> = leases
            .iter()
            .filter(|lease| lease["metadata"]["namespace"] == "kube-node-lease")
            .map(|lease| (name(lease), &lease["spec"]["renewTime"]))
            .collect();
        let now = environment::now();
        let nodes = self.server.objects("", "nodes");
        let names: BTreeSet<String> = nodes.iter().map(|node| name(node)).collect();
        self.unknown.retain(|node, _| names.contains(node));
        self.signs.retain(|node, _| names.contains(node));
        for node in nodes {
            let name = name(&node);
            let Some(conditions) = node["status"]["conditions"].as_array() else { continue };
            let heartbeats = conditions.iter().map(|one| &one["lastHeartbeatTime"]);
            let sign = heartbeats.chain(renewed.get(&name).copied());
            let last = self.signs.entry(name.clone()).or_insert_with(|| (Vec::new(), Instant::now()));
            if !sign.clone().eq(&last.0) {
                *last = (sign.cloned().collect(), Instant::now());
            }
            let silent = last.1.elapsed() > GRACE;
            let ready = conditions.iter().position(|one| one["type"] == "Ready");
            let status = ready.map(|at| conditions[at]["status"].as_str().unwrap_or_default().to_owned());
            if silent && status.as_deref().is_some_and(|status| status != "Unknown") {
                let mut conditions = conditions.clone();
                conditions[ready.unwrap()]["status"] = json!("Unknown");
                conditions[ready.unwrap()]["reason"] = json!("NodeStatusUnknown");
                conditions[ready.unwrap()]["lastTransitionTime"] =
                    json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
                let patch = json!({ "status": { "conditions": conditions } });
                self.call(Method::PATCH, &format!("/api/v1/nodes/{name}/status"), &patch);
                self.unknown.insert(name.clone(), Instant::now());
            }
            if !silent && status.as_deref() != Some("Unknown") {
                self.unknown.remove(&name);
            }
            let wanted = match status.as_deref() {
                Some("Unknown") => Some(UNREACHABLE),
                Some("False") => Some(NOT_READY),
                _ => None,
            };
            let is_ours = |key: &str| [UNREACHABLE, NOT_READY].contains(&key);
            if !taints(&node).filter(|key| is_ours(key)).eq(wanted) {
                let mut left = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
                left.retain(|taint| !taint["key"].as_str().is_some_and(is_ours));
                left.extend(wanted.map(|key| json!({ "key": key, "effect": "NoSchedule" })));
                self.call(
                    Method::PATCH,
                    &format!("/api/v1/nodes/{name}"),
                    &json!({ "spec": { "taints": left } }),
                );
            }
        }
        let lost = self.unknown.iter().filter(|(_, since)| since.elapsed() > TOLERATION);
        let lost: BTreeSet<&String> = lost.map(|(node, _)| node).collect();
        for pod in self.all_pods() {
            let on = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
            if lost.contains(&on) && !is_leaving(&pod) {
                self.delete_pod(&pod, None);
            }
        }
    }

    /// Deletes what its Node, set or class has left (podgc, garbage collector).
    pub(super) fn collect(&mut self) {
        let nodes: BTreeSet<String> =
            self.server.objects("", "nodes").iter().map(|node| name(node)).collect();
        let pods = self.all_pods();
        let names: BTreeSet<String> = pods.iter().map(|pod| name(pod)).collect();
        self.missing.retain(|pod, _| names.contains(pod));
        for pod in pods {
            let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
            if nodes.contains(node) {
                self.missing.remove(&name(&pod));
                continue;
            }
            let since = *self.missing.entry(name(&pod)).or_insert_with(Instant::now);
            if since.elapsed() > QUARANTINE {
                self.delete_pod(&pod, Some(0));
            }
        }
        self.collect_out_of_service();
        self.collect_orphans();
        // The Lease of a Node goes with it.
        for lease in self.server.objects("coordination.k8s.io", "leases") {
            let owner = &lease["metadata"]["ownerReferences"][0];
            if lease["metadata"]["namespace"] == "kube-node-lease"
                && owner["kind"] == "Node"
                && !nodes.contains(owner["name"].as_str().unwrap_or_default())
            {
                let path = format!(
                    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}",
                    name(&lease)
                );
                self.call(Method::DELETE, &path, &Value::Null);
            }
        }
    }

    /// Nodes whose set is gone (garbage collector, `absentOwnerCache`): a creation that is carried out late brings one back.
    /// Revisions whose class is gone.
    fn collect_orphans(&self) {
        for (owners, of, path) in [
            ("nodesets", ("", "nodes"), "/api/v1/nodes"),
            ("nodeclasses", ("apps", "controllerrevisions"), REVISIONS),
        ] {
            let owners = self.server.objects("kube-node.io", owners);
            let exists = |owner: &Value| owners.iter().any(|own| own["metadata"]["uid"] == owner["uid"]);
            for object in self.server.objects(of.0, of.1) {
                let named = object["metadata"]["ownerReferences"].as_array();
                let named = named.filter(|named| !named.is_empty());
                let is_orphan = named.is_some_and(|named| !named.iter().any(exists));
                if is_orphan && !is_leaving(&object) {
                    self.call(Method::DELETE, &format!("{path}/{}", name(&object)), &Value::Null);
                }
            }
        }
    }

    /// Pods of Nodes whose machines are gone: evicted for the taint, then deleted by force (podgc, `gcTerminating`).
    fn collect_out_of_service(&self) {
        let nodes = self.server.objects("", "nodes");
        let is_lost = |node: &Value| !is_ready(node) && taints(node).any(|key| key == OUT_OF_SERVICE);
        let lost: BTreeSet<String> =
            nodes.iter().filter(|node| is_lost(node)).map(|node| name(node)).collect();
        if lost.is_empty() {
            return;
        }
        for pod in self.all_pods() {
            if pod["spec"]["nodeName"].as_str().is_some_and(|node| lost.contains(node)) {
                self.delete_pod(&pod, is_leaving(&pod).then_some(0));
            }
        }
    }
}
