//! A machine: its state, and the values derived from it.

use std::{net::Ipv4Addr, sync::Arc};

use kube_node_cache::{Cache, NodeView, View, Written};
use kube_node_planner::{
    boot,
    fault_injection::{self, Behaviour, Phase},
};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    DedicatedClient, Settings, clock::Clock, cpu_counter::CpuCounter, node_lease::Lease, node_status::Shape,
    schedule::Priority,
};

/// A hollow machine. Keeps no copy of its Node: `view` is shared with the cache.
#[derive(Debug)]
pub struct Machine {
    pub node: Arc<str>,
    pub shape: Arc<Shape>,
    pub settings: Arc<Settings>,
    /// The machine's Node, while the cache shows it.
    pub view: Option<Arc<NodeView>>,
    pub ip: Option<Ipv4Addr>,
    /// Port of the kubelet's listener in this process; 0 for none.
    pub port: u16,
    pub boot: Option<Uuid>,
    pub lease: Lease,
    pub lease_failures: u8,
    pub status: Writes,
    /// Due time of the next write of an unchanged status.
    pub report_at: Option<Instant>,
    /// True if the machine was silent at the last sync.
    pub silent: bool,
    /// CPU time used by the machine.
    pub cpu: CpuCounter,
    /// Dedicated client, if the machine has one.
    pub own: Option<DedicatedClient>,
}

impl Machine {
    /// Fault injection phase at `now`. A machine that has not booted yet is healthy.
    #[must_use]
    pub fn phase(&self, now: Clock) -> Phase {
        fault_injection::phase(self.settings.failures.as_ref(), boot::age(self.boot, now.wall))
    }

    /// Boot ID at `now` of a machine that has booted; differs from the recorded one after a later reboot.
    #[must_use]
    pub fn boot_at(&self, uid: &str, now: Clock) -> Option<Uuid> {
        Some(fault_injection::boot(self.settings.failures.as_ref(), uid, self.boot?, now.wall))
    }

    /// Priority of the next Lease write. A machine with a dedicated client renews as a kubelet does:
    /// unbatched, and without giving way to other jobs.
    #[must_use]
    pub fn lease_lane(&self) -> Priority {
        if self.own.is_some() { Priority::Prompt } else { self.lease.priority() }
    }

    /// Returns true if the full status is due, changed or not.
    #[must_use]
    pub fn is_due(&self, now: Clock) -> bool {
        self.report_at.is_none_or(|at| at <= now.at)
    }

    /// Returns true if a machine in `phase` writes nothing.
    #[must_use]
    pub fn is_silent(&self, phase: Phase) -> bool {
        fault_injection::behaviour(self.settings.failures.as_ref(), phase) == Behaviour::Silent
    }
}

/// State of the writes to one object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writes {
    /// Version made by the last write.
    version: Written,
    /// Consecutive failures.
    pub failures: u8,
}

impl Writes {
    /// Returns true if the last write is newer than the object that `cache` shows with `version`.
    #[must_use]
    pub fn outrun<V: View>(&self, version: &str, cache: &Cache<V>) -> bool {
        cache.is_stale(version, self.version)
    }

    /// Records a successful write.
    pub fn wrote(&mut self, version: Written) {
        *self = Self { version, failures: 0 };
    }
}
