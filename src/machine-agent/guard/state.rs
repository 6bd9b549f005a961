//! What the guard knows, and what it makes of it. One lock, no I/O.

use std::time::Duration;

use jiff::Timestamp;
use kube_node_api::Failures;
use kube_node_planner::{
    boot,
    disruptor::{self, Behaviour},
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::rewrite::{Leaves, ReportedStatus, Shown, cover, is_posted};
use crate::machine_dir::Machine;

/// How long after its last sign a kubelet is taken for alive: the life of its Lease.
const LIFE: Duration = Duration::from_secs(40);

/// The Node is not this machine's any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// It does not exist.
    #[error("Node {node} was deleted: this machine has nothing to do any more, and does not create it again")]
    Deleted {
        /// Its name.
        node: String,
    },
    /// The name belongs to another Node.
    #[error(
        "Node {node} has UID {found} and not {wanted}: it was deleted and made anew, and is another machine's"
    )]
    Another {
        /// Its name.
        node: String,
        /// UID of the machine's Node.
        wanted: String,
        /// UID of the Node that there is.
        found: String,
    },
}

/// How the machine stands at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// What the cluster is to hear of it.
    pub behaviour: Behaviour,
    /// How long from now until that changes; None when it never does.
    pub changes_in: Option<Duration>,
    /// Whether its kubelet lives. Nothing is said for a dead one.
    pub is_alive: bool,
}

/// What becomes of a status that kubemark writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// It goes to the API server, so.
    Goes(Value),
    /// The machine is silent.
    Stays,
}

/// Everything.
#[derive(Debug)]
pub struct State {
    machine: Machine,
    failures: Option<Failures>,
    boot: Option<Uuid>,
    claims: ReportedStatus,
    shown: Option<Shown>,
    heard: Option<Timestamp>,
    /// What a silent machine kept to itself while its Node had no status yet.
    withheld: Option<Value>,
    gone: Option<Gone>,
}

impl State {
    /// Of a machine nothing is known of.
    #[must_use]
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            failures: None,
            boot: None,
            claims: ReportedStatus::default(),
            shown: None,
            heard: None,
            withheld: None,
            gone: None,
        }
    }

    /// Other failures, in place.
    pub fn set_failures(&mut self, failures: Option<Failures>) {
        self.failures = failures;
    }

    /// Why the machine has nothing to do any more.
    #[must_use]
    pub fn gone(&self) -> Option<&Gone> {
        self.gone.as_ref()
    }

    /// How the machine stands.
    #[must_use]
    pub fn look(&self, now: Timestamp) -> Look {
        let phase = disruptor::phase(self.failures.as_ref(), boot::age(self.boot, now));
        let quiet = self.heard.map(|heard| Duration::try_from(now.duration_since(heard)).unwrap_or_default());
        Look {
            behaviour: disruptor::behaviour(self.failures.as_ref(), phase),
            // Before the boot no time passes.
            changes_in: phase.changes_in.filter(|_| self.boot.is_some()),
            is_alive: quiet.is_some_and(|quiet| quiet < LIFE),
        }
    }

    /// Kubemark gives a sign of life.
    pub fn heard(&mut self, now: Timestamp) {
        self.heard = Some(now);
    }

    /// Kubemark writes the status of its Node: a patch, or the whole Node.
    pub fn says(&mut self, mut body: Value, now: Timestamp) -> Said {
        self.heard(now);
        let mut wear = None;
        if let Some(status) = body.get("status") {
            // The first status is the boot, unless the Node has one on record.
            let boot = *self.boot.get_or_insert_with(|| boot::first(&self.machine.uid, now));
            self.claims.learn(status, wear.insert(worn(&self.machine, boot)));
        }
        let behaviour = self.look(now).behaviour;
        if behaviour == Behaviour::Silent {
            merge(self.withheld.get_or_insert_default(), body);
            return Said::Stays;
        }
        if let Some((status, wear)) = body.get_mut("status").zip(wear) {
            cover(status, &wear, behaviour, self.shown.as_ref(), now);
        }
        Said::Goes(body)
    }

    /// Kubemark is about to read `object`: a Node, a list of Nodes, or what an event of a watch carries.
    pub fn reads(&mut self, object: &mut Value, now: Timestamp) {
        for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
            self.reads(item, now);
        }
        if self.saw(object) {
            self.claims.uncover(object, self.look(now).behaviour);
        }
    }

    /// Kubemark is about to read this event of a watch.
    pub fn follows(&mut self, event: &mut Value, now: Timestamp) {
        let is_deletion = event["type"] == "DELETED";
        let Some(object) = event.get_mut("object") else { return };
        let is_own = object["metadata"]["uid"] == *self.machine.uid;
        if is_deletion && is_own {
            self.is_missing();
        } else if !is_deletion {
            self.reads(object, now);
        }
    }

    /// The API server shows an object; whether it is the machine's own Node.
    pub fn saw(&mut self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        if metadata["name"] != *self.machine.node {
            return false;
        }
        if metadata["uid"] != *self.machine.uid {
            self.gone.get_or_insert_with(|| Gone::Another {
                node: self.machine.node.clone(),
                wanted: self.machine.uid.clone(),
                found: metadata["uid"].as_str().unwrap_or_default().to_owned(),
            });
            return false;
        }
        self.shown = Shown::by(object);
        if self.boot.is_none() {
            self.boot = boot::recorded(object["status"]["nodeInfo"]["bootID"].as_str());
        }
        true
    }

    /// The API server says that there is no such Node.
    pub fn is_missing(&mut self) {
        self.gone.get_or_insert_with(|| Gone::Deleted { node: self.machine.node.clone() });
    }

    /// What is to be written onto `node`, just read, for a machine that behaves so.
    pub fn correction(&mut self, node: &Value, behaviour: Behaviour, now: Timestamp) -> Correction {
        if is_posted(node) {
            self.withheld = None;
            let patch = self.claims.correction(node, behaviour, now);
            return patch.map_or(Correction::Needless, Correction::Patch);
        }
        let Some((mut patch, boot)) = self.withheld.clone().zip(self.boot) else { return Correction::NotYet };
        if let Some(status) = patch.get_mut("status") {
            cover(status, &worn(&self.machine, boot), behaviour, self.shown.as_ref(), now);
        }
        Correction::Patch(patch)
    }
}

/// What is to be written onto a Node.
#[derive(Clone, Debug, PartialEq)]
pub enum Correction {
    /// It shows all that is to be said.
    Needless,
    /// This strategic merge patch.
    Patch(Value),
    /// Its kubelet has said nothing yet.
    NotYet,
}

/// Two patches, one after the other, as one.
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

/// What the Node of a machine shows instead of what kubemark says.
fn worn(machine: &Machine, boot: Uuid) -> Leaves {
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
