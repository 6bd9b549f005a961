//! Who has the Lease, for people and machines that look at this process: `/leader` on the admin port, and metrics.

use std::sync::{Arc, PoisonError, RwLock};

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use http::header::CONTENT_TYPE;
use prometheus::{IntCounterVec, IntGauge, Registry};
use serde_json::json;

use super::fence::Fence;
use crate::metrics;

/// Name and help of the metrics: of whether this process has the Lease, and of writes of it.
pub type Meters = [(&'static str, &'static str); 2];

/// Of a Lease by which a leader is elected.
pub const LEADER: Meters = [
    ("kube_node_leader", "Whether this process leads"),
    ("kube_node_leader_renewals_total", "Writes of the Lease by which a leader is elected, by result"),
];

/// Of a Lease by which a host is present.
pub const MEMBER: Meters = [
    ("kube_node_host_present", "Whether this host is present, and carries machines"),
    ("kube_node_host_renewals_total", "Writes of the Lease by which this host is present, by result"),
];

/// How this process stands.
#[derive(Debug)]
pub struct Leadership {
    fence: Fence,
    /// Who it is; None where there is no election.
    identity: Option<String>,
    /// Who leads, for all that is known here.
    leader: RwLock<Option<String>>,
    leads: IntGauge,
    renewals: IntCounterVec,
}

impl Leadership {
    /// Of one that wants to lead, or, without an identity, of the only one.
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

    /// What its writes go through.
    #[must_use]
    pub const fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Who was seen to lead, and whether that is this process.
    pub(super) fn shows(&self, leader: Option<String>, leads: bool) {
        self.leads.set(i64::from(leads));
        *self.leader.write().unwrap_or_else(PoisonError::into_inner) = leader;
    }

    /// The Lease was written, or not.
    pub(super) fn wrote(&self, result: &str) {
        self.renewals.with_label_values(&[result]).inc();
    }

    /// `/leader`.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().route("/leader", get(leader)).with_state(Arc::clone(self))
    }
}

async fn leader(State(standing): State<Arc<Leadership>>) -> impl IntoResponse {
    let said = json!({
        "identity": standing.identity,
        "leader": *standing.leader.read().unwrap_or_else(PoisonError::into_inner),
        "leading": standing.fence.check().is_ok(),
    });
    ([(CONTENT_TYPE, "application/json")], said.to_string())
}
