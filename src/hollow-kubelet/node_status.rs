//! Node status of a machine: content only; other modules write it.
//!
//! Condition types other than a kubelet's belong to other writers: the patch does not name them.

use std::{net::Ipv4Addr, sync::Arc};

use jiff::Timestamp;
use kube_node_api::Resources;
use kube_node_cache::NodeView;
use kube_node_planner::health::{KubeletCondition, conditions};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{clock::to_seconds, pod::admission::Allocatable};

/// OS image of the node status.
const OS_IMAGE: &str = "kube-node hollow";
/// Kernel version of the node status; parsable by programs that parse kernel versions.
const KERNEL_VERSION: &str = "6.12.0-hollow";

/// Properties of all machines of one revision, shared between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Capacity of the Node.
    pub capacity: Resources,
    /// Allocatable resources of the Node.
    pub allocatable: Resources,
    /// Allocatable resources in the form that pod admission counts with.
    pub room: Allocatable,
    /// Kubelet version.
    pub kubelet_version: String,
    /// Name and version of the container runtime.
    pub container_runtime: String,
}

/// Current node status of a machine.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the Node.
    pub node: Arc<str>,
    /// UID of the Node.
    pub uid: Arc<str>,
    /// Properties shared with other machines.
    pub shape: Arc<Shape>,
    /// Internal IP address.
    pub ip: Ipv4Addr,
    /// Kubelet port at that address; 0 for none.
    pub port: u16,
    /// Boot ID: a UUID of version 7, which carries the boot time.
    pub boot: Uuid,
    /// True to report the conditions of a healthy machine.
    pub healthy: bool,
}

impl Report {
    /// Returns true if `node` shows the whole report, heartbeats aside.
    #[must_use]
    pub fn is_shown_by(&self, node: &NodeView) -> bool {
        self.machine_is_shown_by(node)
            && conditions(self.healthy).iter().all(|wanted| {
                node.condition(wanted.r#type)
                    .is_some_and(|shown| &*shown.status == wanted.status && &*shown.reason == wanted.reason)
            })
    }

    /// Returns true if `node` shows the fields that do not change between two boots.
    fn machine_is_shown_by(&self, node: &NodeView) -> bool {
        node.kubelet_version.as_deref() == Some(&*self.shape.kubelet_version)
            && node.boot_id.as_deref() == Some(&*self.boot.to_string())
            && node.internal_ip.as_deref() == Some(&*self.ip.to_string())
            && node.kubelet_port == self.port
    }

    /// Strategic merge patch of `node`'s status that shows the whole report.
    #[must_use]
    pub fn patch(&self, node: &NodeView, now: Timestamp) -> Vec<u8> {
        let now = to_seconds(now);
        let conditions: Vec<Value> = conditions(self.healthy)
            .into_iter()
            .map(|KubeletCondition { r#type, status, reason, message }| {
                let before = node.condition(r#type).filter(|before| &*before.status == status);
                let since = before.and_then(|before| before.since).unwrap_or(now);
                json!({
                    "type": r#type, "status": status, "reason": reason, "message": message,
                    "lastHeartbeatTime": now, "lastTransitionTime": since,
                })
            })
            .collect();
        let mut status = json!({ "conditions": conditions });
        if !self.machine_is_shown_by(node) {
            let Shape { capacity, allocatable, kubelet_version, container_runtime, room: _ } = &*self.shape;
            status["capacity"] = json!(capacity);
            status["allocatable"] = json!(allocatable);
            status["addresses"] = json!([
                { "type": "InternalIP", "address": self.ip },
                { "type": "Hostname", "address": *self.node },
            ]);
            status["daemonEndpoints"] = json!({ "kubeletEndpoint": { "Port": self.port } });
            status["nodeInfo"] = json!({
                "machineID": self.uid.replace('-', ""),
                "systemUUID": *self.uid,
                "bootID": self.boot.to_string(),
                "kernelVersion": KERNEL_VERSION,
                "osImage": OS_IMAGE,
                "containerRuntimeVersion": container_runtime,
                "kubeletVersion": kubelet_version,
                "operatingSystem": "linux",
                "architecture": architecture(),
            });
        }
        // The API server refuses a patch with another UID: the field is immutable.
        json!({ "metadata": { "uid": *self.uid }, "status": status }).to_string().into_bytes()
    }
}

/// Architecture of this machine, by its Go name.
const fn architecture() -> &'static str {
    match std::env::consts::ARCH.as_bytes() {
        b"x86_64" => "amd64",
        b"aarch64" => "arm64",
        _ => std::env::consts::ARCH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_node_cache::ConditionView;

    fn report(healthy: bool) -> Report {
        Report {
            node: "a".into(),
            uid: "u-1".into(),
            shape: Arc::new(Shape {
                capacity: Resources::new(),
                allocatable: Resources::new(),
                room: Allocatable::default(),
                kubelet_version: "v1.36.3".to_owned(),
                container_runtime: "containerd://2.1.0".to_owned(),
            }),
            ip: Ipv4Addr::new(100, 64, 0, 1),
            port: 11_000,
            boot: Uuid::nil(),
            healthy,
        }
    }

    /// A Node that shows `report`, with all conditions since the epoch.
    fn shown(report: &Report) -> NodeView {
        NodeView {
            kubelet_version: Some(report.shape.kubelet_version.clone()),
            boot_id: Some(report.boot.to_string()),
            internal_ip: Some(report.ip.to_string()),
            kubelet_port: report.port,
            conditions: conditions(report.healthy)
                .iter()
                .map(|wanted| ConditionView {
                    r#type: wanted.r#type.into(),
                    status: wanted.status.into(),
                    reason: wanted.reason.into(),
                    message: None,
                    since: Some(Timestamp::UNIX_EPOCH),
                })
                .collect(),
            ..NodeView::default()
        }
    }

    #[test]
    fn what_is_shown_is_not_written_again() {
        let healthy = report(true);
        let node = shown(&healthy);
        assert!(healthy.is_shown_by(&node));
        assert!(!report(false).is_shown_by(&node));
        assert!(!healthy.is_shown_by(&NodeView::default()));
        let moved = Report { ip: Ipv4Addr::new(100, 64, 0, 2), ..healthy.clone() };
        assert!(!moved.is_shown_by(&node));
        assert!(!Report { port: 11_001, ..healthy.clone() }.is_shown_by(&node));
    }

    #[test]
    fn a_transition_has_its_own_time_and_only_that() {
        let node = shown(&report(true));
        let now: Timestamp = "2026-01-01T00:00:00.7Z".parse().unwrap();
        let patch: Value = serde_json::from_slice(&report(false).patch(&node, now)).unwrap();
        assert_eq!(patch["metadata"]["uid"], "u-1");
        let conditions = &patch["status"]["conditions"];
        assert_eq!(conditions[0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert_eq!(conditions[0]["lastHeartbeatTime"], "2026-01-01T00:00:00Z");
        assert_eq!(conditions[3]["status"], "False");
        assert_eq!(conditions[3]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert!(patch["status"].get("capacity").is_none(), "a machine that is shown is not written again");
    }

    #[test]
    fn the_first_patch_takes_the_node_over() {
        let patch: Value =
            serde_json::from_slice(&report(true).patch(&NodeView::default(), Timestamp::UNIX_EPOCH)).unwrap();
        let status = &patch["status"];
        assert_eq!(status["addresses"][0]["address"], "100.64.0.1");
        assert_eq!(status["nodeInfo"]["machineID"], "u1");
        assert_eq!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"], 11_000);
        assert_eq!(status["nodeInfo"]["operatingSystem"], "linux");
        assert!(status.get("capacity").is_some() && status.get("allocatable").is_some());
    }
}
