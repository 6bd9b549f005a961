//! State and decisions of the kubemark proxy. One lock, no I/O.

use std::time::Duration;

use hollow_kubelet::{
    boot,
    fault_injection::{self, Behaviour},
};
use jiff::Timestamp;
use kube_node_api::{Failures, machine_files::MachineDescription, node_lease, time::passed};
use serde_json::{Value, json};
use uuid::Uuid;

use super::rewrite::{Leaves, ReportedStatus, condition, is_posted, rewrite_written};

/// The Node is no longer this machine's: it was deleted, or another one has its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NodeGone(String);

/// Behaviour of the machine at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Behaviour that the cluster is to see.
    pub behaviour: Behaviour,
    /// Time until the behaviour changes; None if it never does.
    pub changes_in: Option<Duration>,
    /// True if the kubelet is alive. For a dead one nothing is written.
    pub is_alive: bool,
}

/// State of the proxy.
#[derive(Debug, Default)]
pub struct NodeState {
    machine: MachineDescription,
    /// Fault injection settings.
    pub failures: Option<Failures>,
    boot: Option<Uuid>,
    reported: ReportedStatus,
    /// Ready condition that the API server has.
    shown: Option<Value>,
    last_heartbeat: Option<Timestamp>,
    /// Status that a silent machine held back while its Node had none yet.
    withheld: Option<Value>,
    /// Reason why the Node is no longer this machine's.
    pub gone: Option<NodeGone>,
}

impl NodeState {
    /// State of a machine about which nothing is known.
    pub fn new(machine: MachineDescription) -> Self {
        Self { machine, ..Self::default() }
    }

    /// Behaviour of the machine at `now`.
    pub fn presence(&self, now: Timestamp) -> Presence {
        let phase = fault_injection::phase(self.failures.as_ref(), boot::age(self.boot, now));
        let quiet = self.last_heartbeat.map(|heard| passed(heard, now));
        Presence {
            behaviour: fault_injection::behaviour(self.failures.as_ref(), phase),
            // Before the boot no time passes.
            changes_in: phase.changes_in.filter(|_| self.boot.is_some()),
            // A kubelet counts as alive for the duration of its Lease after its last sign of life.
            is_alive: quiet.is_some_and(|quiet| quiet < node_lease::DURATION),
        }
    }

    /// Records a sign of life of kubemark.
    pub fn record_heartbeat(&mut self, now: Timestamp) {
        self.last_heartbeat = Some(now);
    }

    /// Takes a status that kubemark writes: a patch, or the whole Node. Returns the status to send to the API
    /// server; None while the machine is silent.
    pub fn write_status(&mut self, mut body: Value, now: Timestamp) -> Option<Value> {
        self.record_heartbeat(now);
        let mut own_values = None;
        if let Some(status) = body.get("status") {
            // The first status is the boot, unless the Node has a recorded one.
            let boot = *self.boot.get_or_insert_with(|| boot::first(&self.machine.uid, now));
            self.reported.learn(status, own_values.insert(overrides(&self.machine, boot)));
        }
        let behaviour = self.presence(now).behaviour;
        if behaviour == Behaviour::Silent {
            merge(self.withheld.get_or_insert_default(), body);
            return None;
        }
        if let Some((status, own_values)) = body.get_mut("status").zip(own_values) {
            rewrite_written(status, &own_values, behaviour, self.shown.as_ref(), now);
        }
        Some(body)
    }

    /// Rewrites an object that kubemark is about to read: a Node, a list of Nodes, or the object of a watch
    /// event.
    pub fn rewrite_read(&mut self, object: &mut Value, now: Timestamp) {
        for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
            self.rewrite_read(item, now);
        }
        if self.observe(object) {
            let overrides = self.boot.map(|boot| overrides(&self.machine, boot)).unwrap_or_default();
            self.reported.rewrite_read(object, &overrides, self.presence(now).behaviour);
        }
    }

    /// Rewrites a watch event that kubemark is about to read.
    pub fn rewrite_event(&mut self, event: &mut Value, now: Timestamp) {
        let is_deletion = event["type"] == "DELETED";
        let Some(object) = event.get_mut("object") else { return };
        let is_own = object["metadata"]["uid"] == *self.machine.uid;
        if is_deletion && is_own {
            self.mark_deleted();
        } else if !is_deletion {
            self.rewrite_read(object, now);
        }
    }

    /// Takes an object that the API server shows. Returns true if it is the machine's own Node.
    pub fn observe(&mut self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        if metadata["name"] != *self.machine.node {
            return false;
        }
        if metadata["uid"] != *self.machine.uid {
            let MachineDescription { node, uid, .. } = &self.machine;
            let found = metadata["uid"].as_str().unwrap_or_default();
            self.set_gone(format!(
                "Node {node} has UID {found} and not {uid}: it was deleted and made anew, and is another machine's"
            ));
            return false;
        }
        self.shown = condition(object, "Ready").cloned();
        if self.boot.is_none() {
            self.boot = boot::recorded(object["status"]["nodeInfo"]["bootID"].as_str());
        }
        true
    }

    /// Notes that the API server has no such Node.
    pub fn mark_deleted(&mut self) {
        let node = &self.machine.node;
        self.set_gone(format!(
            "Node {node} was deleted: this machine has nothing to do any more, and does not create it again"
        ));
    }

    fn set_gone(&mut self, reason: String) {
        self.gone.get_or_insert(NodeGone(reason));
    }

    /// Write that makes `node`, just read, show this behaviour.
    pub fn correction(&mut self, node: &Value, behaviour: Behaviour, now: Timestamp) -> Correction {
        if is_posted(node) {
            self.withheld = None;
            let patch = self.reported.correction(node, behaviour, now);
            return patch.map_or(Correction::Needless, Correction::Patch);
        }
        let Some((mut patch, boot)) = self.withheld.clone().zip(self.boot) else { return Correction::NotYet };
        if let Some(status) = patch.get_mut("status") {
            rewrite_written(status, &overrides(&self.machine, boot), behaviour, self.shown.as_ref(), now);
        }
        Correction::Patch(patch)
    }
}

/// Write to a Node.
#[derive(Clone, Debug, PartialEq)]
pub enum Correction {
    /// None: the Node shows the behaviour already.
    Needless,
    /// This strategic merge patch.
    Patch(Value),
    /// None yet: the kubelet has not reported a status.
    NotYet,
}

/// Merges a second patch into the first.
fn merge(first: &mut Value, second: Value) {
    match (first, second) {
        (Value::Object(first), Value::Object(second)) => {
            for (key, value) in second {
                merge(first.entry(key).or_insert(Value::Null), value);
            }
        }
        (first, second) => *first = second,
    }
}

/// Values that the Node shows in place of those that kubemark reports.
fn overrides(machine: &MachineDescription, boot: Uuid) -> Leaves {
    let amounts = [("capacity", &machine.capacity), ("allocatable", &machine.allocatable)];
    let amounts = amounts.into_iter().flat_map(|(section, amounts)| {
        amounts.iter().map(move |(name, amount)| ((section, name.clone()), json!(amount)))
    });
    let info = [
        (("nodeInfo", "bootID".to_owned()), json!(boot.to_string())),
        (("nodeInfo", "containerRuntimeVersion".to_owned()), json!(machine.container_runtime)),
    ];
    amounts.chain(info).collect()
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
