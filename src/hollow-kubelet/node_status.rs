//! What a machine's Node shows: decided here, written elsewhere.
//!
//! Conditions of other types than a kubelet's belong to others: the patch does not name them.

use std::{net::Ipv4Addr, sync::Arc};

use jiff::Timestamp;
use kube_node_api::Resources;
use kube_node_cache::NodeView;
use kube_node_planner::health::{Condition, conditions};
use serde_json::{Value, json};
use uuid::Uuid;

use super::pod::admission::Allocatable;

/// What a machine says it runs.
const OS_IMAGE: &str = "kube-node hollow";
/// A kernel version that programs which parse one can read.
const KERNEL_VERSION: &str = "6.12.0-hollow";

/// What machines of one revision have in common; shared between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// What the machine has.
    pub capacity: Resources,
    /// What pods may use of it.
    pub allocatable: Resources,
    /// The same, as pods are counted against it.
    pub room: Allocatable,
    /// Version of its kubelet.
    pub kubelet_version: String,
    /// Name and version of its container runtime.
    pub container_runtime: String,
}

/// What a machine has to say about itself now.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of its Node.
    pub node: Arc<str>,
    /// UID of its Node.
    pub uid: Arc<str>,
    /// What it is like.
    pub shape: Arc<Shape>,
    /// Its address.
    pub ip: Ipv4Addr,
    /// Port of its kubelet at that address; 0 where it has none.
    pub port: u16,
    /// Its boot: a UUID of version 7, which carries the time.
    pub boot: Uuid,
    /// Whether it is to look healthy.
    pub healthy: bool,
}

impl Report {
    /// Whether `node` shows all of it, heartbeats aside.
    #[must_use]
    pub fn is_shown_by(&self, node: &NodeView) -> bool {
        self.machine_is_shown_by(node)
            && conditions(self.healthy).iter().all(|wanted| {
                node.condition(wanted.r#type)
                    .is_some_and(|shown| &*shown.status == wanted.status && &*shown.reason == wanted.reason)
            })
    }

    /// Whether `node` shows what never changes in the life of a machine.
    fn machine_is_shown_by(&self, node: &NodeView) -> bool {
        node.kubelet_version.as_deref() == Some(&*self.shape.kubelet_version)
            && node.boot_id.as_deref() == Some(&*self.boot.to_string())
            && node.internal_ip.as_deref() == Some(&*self.ip.to_string())
            && node.kubelet_port == self.port
    }

    /// The strategic merge patch of `node`'s status that shows all of it.
    #[must_use]
    pub fn patch(&self, node: &NodeView, now: Timestamp) -> Vec<u8> {
        let now = to_seconds(now);
        let conditions: Vec<Value> = conditions(self.healthy)
            .into_iter()
            .map(|Condition { r#type, status, reason, message }| {
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
        // With another UID the API server refuses: the field cannot change.
        json!({ "metadata": { "uid": *self.uid }, "status": status }).to_string().into_bytes()
    }
}

/// The whole second: the API keeps no finer times in a status.
#[must_use]
pub fn to_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// This machine's architecture, in Go's words.
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
