//! Leadership of this process: its fence, `/leader` on the admin port, and metrics.

use std::sync::Arc;

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use http::header::CONTENT_TYPE;
use parking_lot::RwLock;
use prometheus::{IntCounterVec, IntGauge, Registry};
use serde_json::json;

use super::fence::Fence;
use crate::metrics;

/// Name and help of two metrics: whether this process holds the Lease, and its writes of the Lease.
pub type Meters = [(&'static str, &'static str); 2];

/// Metrics of a leader-election Lease.
pub const LEADER: Meters = [
    ("kube_node_leader", "Whether this process leads"),
    ("kube_node_leader_renewals_total", "Writes of the Lease by which a leader is elected, by result"),
];

/// Metrics of a worker's membership Lease.
pub const MEMBER: Meters = [
    ("kube_node_host_present", "Whether this host is present, and carries machines"),
    ("kube_node_host_renewals_total", "Writes of the Lease by which this host is present, by result"),
];

/// Leadership state of this process.
#[derive(Debug)]
pub struct Leadership {
    fence: Fence,
    /// Identity of this process; None without an election.
    identity: Option<String>,
    /// Last known holder of the Lease.
    leader: RwLock<Option<String>>,
    leads: IntGauge,
    renewals: IntCounterVec,
}

impl Leadership {
    /// Registers the metrics. The fence starts closed; without an identity there is no election, and it stays
    /// open.
    pub fn register(
        [leads, renewals]: &Meters,
        identity: Option<String>,
        registry: &Registry,
    ) -> Result<Arc<Self>, prometheus::Error> {
        let leads = metrics::gauge(registry, *leads)?;
        leads.set(i64::from(identity.is_none()));
        let known = [["success"], ["conflict"], ["failure"]];
        let renewals = metrics::counters(registry, *renewals, ["result"], known)?;
        Ok(Arc::new(Self {
            fence: if identity.is_some() { Fence::closed() } else { Fence::open() },
            identity,
            leader: RwLock::default(),
            leads,
            renewals,
        }))
    }

    /// The fence for all writes of this process.
    pub const fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Sets the observed leader, and whether this process leads.
    pub(super) fn observed(&self, leader: Option<String>, leads: bool) {
        self.leads.set(i64::from(leads));
        *self.leader.write() = leader;
    }

    /// Counts a write of the Lease by result.
    pub(super) fn wrote(&self, result: &str) {
        self.renewals.with_label_values(&[result]).inc();
    }

    /// Router with `/leader`.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().route("/leader", get(leader)).with_state(Arc::clone(self))
    }
}

async fn leader(State(leadership): State<Arc<Leadership>>) -> impl IntoResponse {
    let body = json!({
        "identity": leadership.identity,
        "leader": *leadership.leader.read(),
        "leading": leadership.fence.check().is_ok(),
    });
    ([(CONTENT_TYPE, "application/json")], body.to_string())
}
