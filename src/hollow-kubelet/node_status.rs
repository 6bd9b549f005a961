//! Writes of a machine's node status: when a [`Report`] is sent.

use std::{sync::Arc, time::Duration};

use http::Method;
use kube_ext::transport::{Body, TransportError};
use kube_node_cache::{Cache, NodeView};
use tokio::time::Instant;

use super::{
    clock::Clock,
    node_report::{Report, Variable},
    request::{Request, Writes, spread},
    schedule::{Priority, Schedule},
};

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
