//! Node status of a machine: its content, and when it is written.
//!
//! Condition types other than a kubelet's belong to other writers: the patch does not name them.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use http::Method;
use jiff::Timestamp;
use kube_ext::transport::{Body, TransportError};
use kube_node_api::ARCHITECTURE;
use kube_node_cache::{Cache, NodeView};
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    clock::{Clock, to_seconds},
    health::{KubeletCondition, conditions},
    request::{Request, Writes, spread},
    schedule::{Priority, Schedule},
    shape::Shape,
};

/// OS image of the node status.
const OS_IMAGE: &str = "kube-node hollow";
/// Kernel version of the node status; parsable by programs that parse kernel versions.
const KERNEL_VERSION: &str = "6.12.0-hollow";

/// Mean interval between writes of an unchanged node status; each is drawn within ±50 %, as in a kubelet.
const REPORT_INTERVAL: Duration = Duration::from_mins(5);

/// Shortest time between two writes of one report, the second of which repairs what another client has written over the
/// first: a kubelet compares its status with the Node as often (`nodeStatusUpdateFrequency`), and those of its pods with the
/// API server's (`syncPeriod` of the status manager). Without it, two processes that run the same machine for a moment write
/// as fast as their watches show it.
pub(super) const REPAIR_INTERVAL: Duration = Duration::from_secs(10);

/// State of the writes of a machine's node status.
#[derive(Debug, Default)]
pub struct NodeStatus {
    writes: Writes,
    /// Due time of the next write of an unchanged status; None if the first one is due.
    due: Option<Instant>,
    /// The report of the last write, and when it was sent; None if that write failed.
    sent: Option<(Variable, Instant)>,
}

impl NodeStatus {
    /// Takes over a status that an earlier process wrote: it is valid until the next report.
    pub fn take_over(&mut self, now: Clock) {
        self.due = Some(now.at + spread(REPORT_INTERVAL, 0.0));
    }

    /// Returns true if the full status is due, changed or not.
    pub fn is_due(&self, now: Clock) -> bool {
        self.due.is_none_or(|at| at <= now.at)
    }

    /// The request that writes `report`; None if it is not due and `node`, the cached Node, shows it.
    pub fn prepare(
        &mut self,
        report: &Report<'_>,
        (node, cache): (&NodeView, &Cache<NodeView>),
        schedule: &mut Schedule,
        now: Clock,
    ) -> Option<Request> {
        // The cached Node may be older than the last write; its next change queues another sync.
        let outrun = self.writes.outrun(&node.resource_version, cache);
        let later = if self.is_due(now) {
            None
        } else if outrun || report.is_shown_by(node) {
            self.due
        } else {
            let sent = self.sent.filter(|(sent, _)| *sent == report.variable());
            sent.map(|(_, at)| at + REPAIR_INTERVAL).filter(|at| *at > now.at)
        };
        if let Some(later) = later {
            schedule.enqueue(Priority::Status, report.uid, later);
            return None;
        }
        self.sent = Some((report.variable(), now.at));
        Some(Request {
            method: Method::PATCH,
            path: format!("/api/v1/nodes/{}/status", report.node),
            body: Body::StrategicPatch(report.patch(node, now.wall)),
        })
    }

    /// Applies the answer to a request and queues the next sync.
    pub fn conclude(
        &mut self,
        (uid, node): (&Arc<str>, &str),
        cache: &Cache<NodeView>,
        schedule: &mut Schedule,
        answer: Result<&str, &TransportError>,
        now: Clock,
    ) {
        let wait = match answer {
            Ok(version) => {
                self.writes.succeeded(version, cache);
                let wait = spread(REPORT_INTERVAL.mul_f64(1.5), 1.0 / 3.0);
                self.due = Some(now.at + wait);
                wait
            }
            Err(error) => {
                self.sent = None;
                self.writes.failures.add_logged(node, "status", error)
            }
        };
        schedule.enqueue(Priority::Status, uid, now.at + wait);
    }
}

/// What changes between two reports of a machine: boot ID, endpoint, health.
type Variable = (Uuid, Ipv4Addr, u16, bool);

/// Content of a machine's node status.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Name of the Node.
    pub node: &'a str,
    /// UID of the Node.
    pub uid: &'a Arc<str>,
    /// Properties shared with other machines.
    pub shape: &'a Shape,
    /// Internal IP address.
    pub ip: Ipv4Addr,
    /// Kubelet port at that address; 0 for none.
    pub port: u16,
    /// Boot ID: a UUID of version 7, which carries the boot time.
    pub boot: Uuid,
    /// True to report the conditions of a healthy machine.
    pub healthy: bool,
}

impl Report<'_> {
    fn variable(&self) -> Variable {
        (self.boot, self.ip, self.port, self.healthy)
    }

    /// Returns true if `node` shows the whole report, heartbeats aside.
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
            let Shape { capacity, allocatable, kubelet_version, container_runtime, parsed: _ } = self.shape;
            status["capacity"] = json!(capacity);
            status["allocatable"] = json!(allocatable);
            status["addresses"] = json!([
                { "type": "InternalIP", "address": self.ip },
                { "type": "Hostname", "address": self.node },
            ]);
            status["daemonEndpoints"] = json!({ "kubeletEndpoint": { "Port": self.port } });
            status["nodeInfo"] = json!({
                "machineID": self.uid.replace('-', ""),
                "systemUUID": **self.uid,
                "bootID": self.boot.to_string(),
                "kernelVersion": KERNEL_VERSION,
                "osImage": OS_IMAGE,
                "containerRuntimeVersion": container_runtime,
                "kubeletVersion": kubelet_version,
                "operatingSystem": "linux",
                "architecture": ARCHITECTURE,
            });
        }
        // The API server refuses a patch with another UID: the field is immutable.
        json!({ "metadata": { "uid": **self.uid }, "status": status }).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::pod::allocatable::Allocatable;
    use kube_node_api::Resources;
    use kube_node_cache::ConditionView;

    static SHAPE: LazyLock<Shape> = LazyLock::new(|| Shape {
        capacity: Resources::new(),
        allocatable: Resources::new(),
        parsed: Allocatable::default(),
        kubelet_version: "v1.36.3".to_owned(),
        container_runtime: "containerd://2.1.0".to_owned(),
    });
    static UID: LazyLock<Arc<str>> = LazyLock::new(|| "u-1".into());

    fn report(healthy: bool) -> Report<'static> {
        Report {
            node: "a",
            uid: &UID,
            shape: &SHAPE,
            ip: Ipv4Addr::new(100, 64, 0, 1),
            port: 11_000,
            boot: Uuid::nil(),
            healthy,
        }
    }

    /// A Node that shows `report`, with all conditions since the epoch.
    fn shown(report: &Report<'_>) -> NodeView {
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
