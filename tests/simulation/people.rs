//! People at the edges of the API: times of a clock that is ahead, pauses, pinned revisions, finalizers taken away, Nodes
//! marked and deleted by hand, an agent whose startup taint comes back, a webhook that fails or is slow for one Node, a class
//! that is deleted and made again, a newer release of the operator that comes and goes.
//!
//! Inputs: an act. Outputs: writes to the API server. Invariant: an act that lasts is undone when its time is over, or
//! when users stop acting.

use std::time::Duration;

use http::Method;
use kube_ext::environment;
use kube_node_api::names::{
    ANNOTATION_DELETE_FIRST, ANNOTATION_RESTARTED_AT, ANNOTATION_RESUMED_AT, LABEL_NODECLASS,
};
use kube_node_testing::api_server::Random;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    actions::{CLASSES, SETS},
    desired_state::DesiredState,
    faults::{Faults, Webhook},
    objects::{name, set_of},
    others::{Others, is_leaving},
    schedule::Action,
};

/// Startup taint that an agent removes from each Ready Node, and gives back while it is down (as Cilium's operator does).
pub const AGENT: &str = "agent.test/not-ready";
/// A time that no run reaches, in seconds from now.
const YEARS: u64 = 300_000_000;

/// What one person does, to set `a` or to one of its Nodes that stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Restarts the set at a time that is so many seconds ahead.
    Restart(u64),
    /// Resumes the rollout at a time that is so many seconds ahead.
    Resume(u64),
    /// Pauses the rollout for so many seconds.
    Pause(u64),
    /// Pins the set to the n-th revision for so many seconds.
    Pin(usize, u64),
    /// Takes all finalizers from the n-th Node.
    Strip(usize),
    /// Marks the n-th Node to be deleted first, and deletes it.
    MarkAndDelete(usize),
    /// Takes all finalizers from a Node that leaves, and makes it again with its annotations.
    RemakeLeaving,
    /// The agent of the n-th Node is down for so many seconds.
    AgentDown(usize, u64),
    /// A webhook answers each write to the n-th Node with an error for so many seconds.
    FailWrites(usize, u64),
    /// A webhook takes seconds for each write to the n-th Node for so many seconds.
    DelayWrites(usize, u64),
    /// Deletes the class and all sets; once the class is gone, makes all of them again.
    RemakeClass,
    /// For so many seconds, the Nodes of the set go at an age of 40 s, and a rollout leaves outdated ones alone.
    Expire(u64),
    /// For so many seconds, a newer release writes the revisions: they have a field that this one does not know.
    Upgrade(u64),
}

/// What ends an act.
#[derive(Debug)]
pub struct Undo {
    at: Instant,
    path: String,
    change: Value,
}

impl Act {
    /// A random act.
    pub fn draw(random: &mut Random) -> Self {
        let (which, seconds) = (random.below(6), 5 + random.number() % 60);
        let ahead = [seconds, 4 * seconds, YEARS][random.below(3)];
        match random.number() % 10 {
            0 | 1 => Self::Restart(ahead),
            2 => Self::Resume(ahead),
            3 => Self::Pause(2 * seconds),
            4 => Self::Pin(which, 2 * seconds),
            5 => Self::Strip(which),
            6 | 7 => Self::MarkAndDelete(which),
            8 => Self::AgentDown(which, seconds),
            _ => Self::FailWrites(which, seconds),
        }
    }

    /// A random act of those that came later: the draws of known seeds stay as they are.
    fn draw_later(random: &mut Random) -> Self {
        let (which, seconds) = (random.below(6), 5 + random.number() % 60);
        match random.number() % 5 {
            0 | 1 => Self::DelayWrites(which, seconds),
            2 => Self::RemakeClass,
            3 => Self::Expire(3 * seconds),
            _ => Self::Upgrade(2 * seconds),
        }
    }

    /// Does it.
    pub fn perform(self, others: &mut Others, wanted: &mut DesiredState, faults: &Faults) {
        let set = format!("{SETS}/a");
        let ahead = |seconds: u64| {
            let time = environment::now() + Duration::from_secs(seconds);
            json!(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
        };
        let annotated = |key: &str, value: Value| json!({ "metadata": { "annotations": { key: value } } });
        let spec = |key: &str, value: Value| json!({ "spec": { key: value } });
        let nodes = others.nodes();
        let staying: Vec<_> = nodes.iter().filter(|node| set_of(node) == "a" && !is_leaving(node)).collect();
        let nth = |n: usize| staying.get(n % staying.len().max(1)).map(|node| name(node));
        let (change, undo, seconds) = match self {
            Self::Restart(seconds) => {
                let key = ANNOTATION_RESTARTED_AT;
                (annotated(key, ahead(seconds)), annotated(key, Value::Null), YEARS)
            }
            Self::Resume(seconds) => {
                let key = ANNOTATION_RESUMED_AT;
                (annotated(key, ahead(seconds)), annotated(key, Value::Null), YEARS)
            }
            Self::Pause(seconds) => (spec("paused", json!(true)), spec("paused", Value::Null), seconds),
            Self::Expire(seconds) => {
                let with = |age: Value, r#type: Value| json!({ "spec": { "expireAfter": age, "strategy": { "type": r#type } } });
                (with(json!("40s"), json!("OnDelete")), with(Value::Null, Value::Null), seconds)
            }
            Self::Pin(n, seconds) => {
                let revisions = others.revisions();
                let Some(revision) = revisions.get(n % revisions.len().max(1)) else { return };
                (spec("revision", json!(revision)), spec("revision", Value::Null), seconds)
            }
            Self::Strip(n) => {
                let Some(node) = nth(n) else { return };
                let change = json!({ "metadata": { "finalizers": [] } });
                others.call(Method::PATCH, &format!("/api/v1/nodes/{node}"), &change);
                return;
            }
            Self::MarkAndDelete(n) => {
                let Some(node) = nth(n) else { return };
                let path = format!("/api/v1/nodes/{node}");
                others.call(Method::PATCH, &path, &annotated(ANNOTATION_DELETE_FIRST, json!("true")));
                others.call(Method::DELETE, &path, &Value::Null);
                return;
            }
            Self::RemakeLeaving => {
                others.remake_leaving();
                return;
            }
            Self::AgentDown(n, seconds) => {
                let Some(node) = nth(n) else { return };
                others.agents_down.insert(node, Instant::now() + Duration::from_secs(seconds));
                return;
            }
            Self::FailWrites(n, seconds) | Self::DelayWrites(n, seconds) => {
                let fails = matches!(self, Self::FailWrites(..));
                let webhook = if fails { Webhook::Fails } else { Webhook::IsSlow };
                if let Some(node) = nth(n) {
                    faults.call_webhook(node, webhook, Duration::from_secs(seconds));
                }
                return;
            }
            Self::RemakeClass => {
                wanted.remakes_class = true;
                others.call(Method::DELETE, &format!("{CLASSES}/small"), &Value::Null);
                return;
            }
            Self::Upgrade(seconds) => {
                faults.upgrade(Duration::from_secs(seconds));
                return;
            }
        };
        others.call(Method::PATCH, &set, &change);
        let at = Instant::now() + Duration::from_secs(seconds);
        // The last pause, pin or time of its kind counts.
        wanted.undo.retain(|before| before.change != undo);
        wanted.undo.push(Undo { at, path: set, change: undo });
    }
}

impl DesiredState {
    /// Ends the acts whose time is over; all of them once everything `is_over`.
    pub fn undo(&mut self, others: &Others, is_over: bool) {
        let ended = self.undo.extract_if(.., |undo| is_over || Instant::now() >= undo.at);
        for Undo { path, change, .. } in ended {
            others.call(Method::PATCH, &path, &change);
        }
    }
}

/// A revision of another class, whose object has the name that the revision `other-v1-0` of this class would have.
pub fn revision_of_another_class(controller: &str) -> Value {
    json!({
        "metadata": { "name": "small-other-v1-0", "labels": { LABEL_NODECLASS: "small-other" } },
        "revision": 0, "data": { "nodeController": controller, "capacity": { "cpu": "1" } },
    })
}

/// The acts of a schedule, each at a second before `active`.
pub fn draw(random: &mut Random, active: u64) -> Vec<(u64, Action)> {
    let mut later = random.apart(0xac7);
    let first = (0..2 + random.below(4)).map(|_| (5 + random.number() % active, Act::draw(random)));
    let mut acts: Vec<_> = first.collect();
    for _ in 0..later.below(3) {
        acts.push((5 + later.number() % active, Act::draw_later(&mut later)));
    }
    acts.into_iter().map(|(at, act)| (at, Action::Act(act))).collect()
}
