//! A machine: what is known of it, and what follows from that.

use std::{net::Ipv4Addr, sync::Arc};

use kube_node_cache::{Cache, NodeView, View, Written};
use kube_node_planner::{
    boot,
    disruptor::{self, Behaviour, Phase},
};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    DedicatedClient, Settings, node_lease::Lease, node_status::Shape, schedule::Priority, server::Counter,
    state::Clock,
};

/// A hollow machine. It keeps no copy of its Node: the view is the cache's.
#[derive(Debug)]
pub struct Machine {
    pub node: Arc<str>,
    pub shape: Arc<Shape>,
    pub settings: Arc<Settings>,
    /// Its Node, while the cache shows it.
    pub view: Option<Arc<NodeView>>,
    pub ip: Option<Ipv4Addr>,
    /// Port of its kubelet, whose door is open here; 0 for none.
    pub port: u16,
    pub boot: Option<Uuid>,
    pub lease: Lease,
    pub lease_failures: u8,
    pub status: Writes,
    /// When its status is to be written even if nothing changes.
    pub report_at: Option<Instant>,
    /// Whether it was silent at the last look.
    pub silent: bool,
    /// CPU time that it used.
    pub cpu: Counter,
    /// What it shares with no other machine, where there is such.
    pub own: Option<DedicatedClient>,
}

impl Machine {
    /// How it is to behave now. A machine that has not booted yet is healthy.
    #[must_use]
    pub fn phase(&self, now: Clock) -> Phase {
        disruptor::phase(self.settings.failures.as_ref(), boot::age(self.boot, now.wall))
    }

    /// Its boot now, where it has booted: not the recorded one if it came back since by a reboot.
    #[must_use]
    pub fn boot_at(&self, uid: &str, now: Clock) -> Option<Uuid> {
        Some(disruptor::boot(self.settings.failures.as_ref(), uid, self.boot?, now.wall))
    }

    /// What is next for its Lease. One that stands alone renews as a kubelet does, with no other, and makes room for none.
    #[must_use]
    pub fn lease_lane(&self) -> Priority {
        if self.own.is_some() { Priority::Prompt } else { self.lease.priority() }
    }

    /// Whether its whole status is to be written, changed or not.
    #[must_use]
    pub fn is_due(&self, now: Clock) -> bool {
        self.report_at.is_none_or(|at| at <= now.at)
    }

    /// Whether a machine in `phase` writes nothing.
    #[must_use]
    pub fn is_silent(&self, phase: Phase) -> bool {
        disruptor::behaviour(self.settings.failures.as_ref(), phase) == Behaviour::Silent
    }
}

/// What is remembered of the writes of one object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writes {
    /// The version that the last one made.
    version: Written,
    /// Failures in a row.
    pub failures: u8,
}

impl Writes {
    /// Whether they outrun what `cache` shows with `version`.
    #[must_use]
    pub fn outrun<V: View>(&self, version: &str, cache: &Cache<V>) -> bool {
        cache.is_outrun(version, self.version)
    }

    /// A write was taken.
    pub fn wrote(&mut self, version: Written) {
        *self = Self { version, failures: 0 };
    }
}
