//! A hollow machine: specification, Node, boot, fault injection and endpoint.

use std::sync::Arc;

use jiff::Timestamp;
use kube_node_api::machine_files::MachineSettings;
use kube_node_cache::NodeView;
use uuid::Uuid;

use super::{
    DedicatedClient, boot,
    clock::{Clock, to_seconds},
    cpu_counter::CpuCounter,
    endpoint::Endpoint,
    fault_injection::{self, Behaviour, Phase},
    shape::Shape,
};

/// A hollow machine. Keeps no copy of its Node: `view` is shared with the cache.
pub struct Machine {
    pub node: Arc<str>,
    pub shape: Arc<Shape>,
    pub settings: Arc<MachineSettings>,
    /// The machine's Node, while the cache shows it.
    pub view: Option<Arc<NodeView>>,
    pub endpoint: Endpoint,
    pub boot: Option<Uuid>,
    /// True if the machine was silent at the last sync of its node status.
    pub silent: bool,
    /// CPU time used by the machine.
    pub cpu: CpuCounter,
    /// Dedicated client, if the machine has one.
    pub dedicated: Option<DedicatedClient>,
}

impl Machine {
    /// Fault injection phase at `now`. A machine that has not booted yet is healthy.
    pub fn phase(&self, now: Clock) -> Phase {
        fault_injection::phase(self.settings.failures.as_ref(), boot::age(self.boot, now.wall))
    }

    /// Boot ID at `now` of a machine that has booted; differs from the recorded one after a later reboot.
    pub fn boot_at(&self, uid: &str, now: Clock) -> Option<Uuid> {
        Some(fault_injection::boot(self.settings.failures.as_ref(), uid, self.boot?, now.wall))
    }

    /// Time of the last boot at `now`; None for a machine that has not booted yet.
    pub fn booted(&self, uid: &str, now: Clock) -> Option<Timestamp> {
        let boot = self.boot_at(uid, now)?;
        boot::rebooted(uid, boot).or_else(|| boot::time(boot))
    }

    /// Time of the last reboot, in whole seconds; None for a machine that has booted once.
    pub fn rebooted(&self, uid: &str, now: Clock) -> Option<Timestamp> {
        boot::rebooted(uid, self.boot_at(uid, now)?).map(to_seconds)
    }

    /// Returns true if the machine writes nothing at `now`.
    pub fn is_silent(&self, now: Clock) -> bool {
        self.is_silent_in(self.phase(now))
    }

    /// Returns true if a machine in `phase` writes nothing.
    pub fn is_silent_in(&self, phase: Phase) -> bool {
        fault_injection::behaviour(self.settings.failures.as_ref(), phase) == Behaviour::Silent
    }
}
