//! Each Node that an operator deletes has a reason, and one of few at a time a repair; one that has expired goes. A Node keeps its
//! revision as long as its machine lives, and a rollout halts if its new Nodes never start, and only then.
//!
//! Inputs: changes of Nodes, sets and classes. Output: a violation. Invariant: a reason that was there lately counts, since an
//! operator may not have seen its end; all of this is checked only where each write is answered, and each watch and clock
//! shows the truth.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube_node_api::names::{ANNOTATION_RESTARTED_AT, LABEL_NODECLASS, LABEL_REVISION, OPERATOR_NAMESPACE};
use kube_node_testing::api_server::{ApiServer, Change};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    actions::{SICK, STARTUP},
    autoscaler_checks::is_named,
    objects::{is_available, name, set_of, taints},
    others::is_leaving,
    people::AGENT,
    schedule::HALTS,
    sent::Sent,
};

/// Age up to which a Node may still start.
const YOUNG: Duration = Duration::from_mins(1);
/// Time after which nothing is under way in a set that nobody changes.
const CALM: Duration = Duration::from_secs(40);
/// Time by which a halt may come later than the progress deadline.
const LATE: Duration = Duration::from_secs(40);
/// Time by which a halt may come earlier: times in a status have whole seconds, and an operator counts from its first sight.
const EARLY: Duration = Duration::from_secs(10);

/// What changes showed so far.
#[derive(Default)]
pub struct Reasons {
    /// Since when each Node has been available, initialized once and Ready.
    available: BTreeMap<String, Instant>,
    /// When each Node was created.
    seen: BTreeMap<String, Instant>,
    /// Since when each Node has not counted as started.
    waiting: BTreeMap<String, Instant>,
    /// When the spec, the annotations or the deletion of each set or class changed last.
    changed: BTreeMap<String, Instant>,
    /// When each Node was deleted, and by which process.
    deleted: BTreeMap<String, (Instant, Option<String>)>,
    /// When a Node of each set came, was deleted or went.
    moved: BTreeMap<String, Instant>,
}

impl Reasons {
    /// Notes a change of a set or a class.
    pub fn note(&mut self, change: &Change) {
        let (after, before) = (&change.after, change.before.as_deref());
        let parts = [
            "/metadata/generation",
            "/metadata/annotations",
            "/metadata/deletionTimestamp",
            "/status/revision",
        ];
        let differs = |path: &&str| before.and_then(|before| before.pointer(path)) != after.pointer(path);
        if parts.iter().any(differs) {
            self.changed.insert(key(after), Instant::now());
        }
    }

    /// Notes a change of a Node.
    pub fn note_node(&mut self, change: &Change, by: Option<&Sent>) {
        let (node, now) = (&change.after, Instant::now());
        let was_leaving = change.before.as_deref().is_some_and(is_leaving);
        if change.before.is_none() || change.deleted || is_leaving(node) != was_leaving {
            self.moved.insert(set_of(node), now);
        }
        if change.deleted {
            self.deleted.remove(&name(node));
        } else if is_leaving(node) && !was_leaving {
            self.deleted.insert(name(node), (now, by.map(|sent| sent.process.clone())));
        }
        let keep = |times: &mut BTreeMap<String, Instant>, holds: bool| {
            if holds && !change.deleted {
                times.entry(name(node)).or_insert(now);
            } else {
                times.remove(&name(node));
            }
        };
        keep(&mut self.seen, true);
        // Nobody removes this taint: the Node never starts.
        let works = is_available(node) && taints(node).all(|key| key != STARTUP);
        keep(&mut self.available, works);
        let has_started = works && taints(node).all(|key| key != AGENT);
        keep(&mut self.waiting, !has_started);
    }

    /// Checks a Node that an operator has created, given another revision, or begun to delete. A state of up to `memory` ago may
    /// still count.
    pub fn check(
        &self,
        server: &ApiServer,
        change: &Change,
        by: Option<&Sent>,
        memory: Duration,
        now: Timestamp,
    ) -> Option<String> {
        let (after, node, set) = (&change.after, name(&change.after), set_of(&change.after));
        let before = change.before.as_deref();
        if let Some(before) = before.filter(|before| !change.deleted && !revision(before).is_empty())
            && revision(before) != revision(after)
        {
            let (old, new) = (revision(before), revision(after));
            return Some(format!(
                "{node} of revision {old} is said to have {new}, and its machine is the same"
            ));
        }
        let is_created = before.is_none();
        let goes = before.is_some_and(|before| is_leaving(after) && !is_leaving(before));
        if !is_created && !goes || is_named(server, after) {
            return None;
        }
        let is_lasting = |since: Option<&Instant>| since.is_some_and(|since| since.elapsed() > memory);
        let sets = server.objects("kube-node.io", "nodesets");
        let owner = sets.iter().find(|one| name(one) == set && !is_leaving(one))?;
        let classes = server.objects("kube-node.io", "nodeclasses");
        let class =
            classes.iter().find(|class| class["metadata"]["name"] == owner["spec"]["nodeClassName"])?;
        if !is_lasting(self.changed.get(&key(owner))) || !is_lasting(self.changed.get(&key(class))) {
            return None;
        }
        let wanted = owner["spec"]["revision"].as_str().or(class["status"]["revision"].as_str());
        let restart = owner["metadata"]["annotations"][ANNOTATION_RESTARTED_AT].as_str().and_then(time);
        let expires = expires(owner);
        let is_due = |node: &Value| {
            let created = node["metadata"]["creationTimestamp"].as_str().and_then(time);
            wanted != Some(revision(node))
                || restart.is_some_and(|restart| created < Some(restart) && restart <= now)
                // By the Node's name, up to a tenth earlier.
                || expires.is_some_and(|age| created.is_none_or(|created| now >= created + age.mul_f64(0.89)))
        };
        let has_reason = |node: &Value| is_due(node) || is_sick(node);
        let nodes = server.objects("", "nodes");
        let (going, staying): (Vec<_>, Vec<_>) =
            nodes.iter().filter(|one| set_of(one) == set).partition(|one| is_leaving(one));
        let replicas = owner["spec"]["replicas"].as_u64().unwrap_or_default();
        if is_created {
            let works = |node: &Value| is_lasting(self.available.get(&name(node))) && !has_reason(node);
            let working = staying.iter().filter(|node| works(node)).count() as u64;
            return (working >= replicas && going.is_empty()).then(|| {
                format!("{node} is created, and {working} of {replicas} Nodes work and are up to date")
            });
        }
        let is_young = self.seen.get(&node).is_none_or(|seen| seen.elapsed() <= YOUNG);
        let is_surplus = staying.len() as u64 + 1 > replicas;
        let most = owner["spec"]["remediation"]["maxInFlight"].as_u64();
        let is_known = |other: &&&Arc<Value>| {
            let deleted = self.deleted.get(&name(other));
            deleted.is_some_and(|(at, process)| {
                at.elapsed() > memory || process.is_some() && process.as_ref() == by.map(|sent| &sent.process)
            })
        };
        let repaired = going.iter().filter(|other| is_sick(other) && name(other) != node);
        let repaired = repaired.filter(is_known).count() as u64;
        if most.is_some_and(|most| repaired >= most) && is_sick(after) && !is_due(after) && !is_surplus {
            return Some(format!("{node} is repaired beside {repaired} others, and {most:?} may be at once"));
        }
        ((is_young || is_lasting(self.available.get(&node))) && !is_surplus && !has_reason(after))
            .then(|| format!("{node} goes: it is up to date, works or starts, and is no surplus"))
    }

    /// Checks that a rollout halts once one of its Nodes has waited for the progress deadline, and not before.
    pub fn check_halts(&self, server: &ApiServer, now: Timestamp) -> Option<String> {
        let deadline = Duration::from_secs(HALTS);
        let (nodes, classes) = (server.objects("", "nodes"), server.objects("kube-node.io", "nodeclasses"));
        let lasts = |since: Option<&Instant>| since.is_some_and(|since| since.elapsed() > deadline + LATE);
        let is_calm = |object: &Value| lasts(self.changed.get(&key(object)));
        let sets = server.objects("kube-node.io", "nodesets");
        sets.iter().find_map(|set| {
            let rollout = &set["status"]["rollout"];
            let new = nodes.iter().filter(|node| {
                set_of(node) == name(set) && node["metadata"]["labels"][LABEL_REVISION] == rollout["revision"]
            });
            let waits = |node: &&Arc<Value>| self.waiting.get(&name(node)).map(Instant::elapsed);
            // One that leaves does not become available any more: it makes no rollout halt.
            let (going, staying): (Vec<_>, Vec<_>) = new.partition(|node| is_leaving(node));
            let waited_staying = staying.iter().filter_map(waits).max();
            let waited = going.iter().filter_map(waits).max().max(waited_staying);
            let progress = rollout["progressTime"].as_str().and_then(time)?;
            if set["spec"]["progressDeadline"].is_null() {
                return None;
            }
            if rollout["haltTime"].is_string() {
                // A pause takes no time of the deadline.
                let is_paused = set["spec"]["paused"] == true
                    && self.changed.get(&key(set)).is_some_and(|since| since.elapsed() > EARLY);
                let has_cause = waited.is_some_and(|waited| waited + EARLY >= deadline) && !is_paused;
                let has_just_halted =
                    rollout["haltTime"].as_str().and_then(time)? + Duration::from_secs(2) > now;
                return (has_just_halted && !has_cause).then(|| {
                    format!(
                        "the rollout of {} halts, and its new nodes have waited for {waited:?}: {rollout}",
                        name(set)
                    )
                });
            }
            let is_late = waited_staying.is_some_and(|waited| waited > deadline + LATE)
                && now.duration_since(progress).unsigned_abs() > deadline + LATE;
            (set["spec"]["paused"] != true
                && is_late
                && is_calm(set)
                && classes.iter().all(|class| is_calm(class)))
            .then(|| format!("the rollout of {} does not halt: {rollout}", name(set)))
        })
    }
}

impl Reasons {
    /// Checks that the Nodes of a set that has been left alone, whose budget is not used up and all of whose Nodes work, go at
    /// their age.
    pub fn check_expiry(&self, server: &ApiServer, now: Timestamp) -> Option<String> {
        let (nodes, classes) = (server.objects("", "nodes"), server.objects("kube-node.io", "nodeclasses"));
        let is_calm = |since: Option<&Instant>| since.is_some_and(|since| since.elapsed() > CALM);
        server.objects("kube-node.io", "nodesets").iter().find_map(|set| {
            let age = expires(set)?;
            let calm = is_calm(self.changed.get(&key(set))) && is_calm(self.moved.get(&name(set)));
            let own: Vec<_> = nodes.iter().filter(|node| set_of(node) == name(set)).collect();
            let works = |node: &&Arc<Value>| is_calm(self.available.get(&name(node))) && !is_leaving(node);
            let is_held = set["spec"]["paused"] == true || set["status"]["rollout"]["haltTime"].is_string();
            // Nodes that a set cannot create use up its budget. Without a revision for new Nodes there is no surge either.
            let class = set["spec"]["nodeClassName"].as_str().unwrap_or_default();
            let newest = classes.iter().find(|own| name(own) == class).map(|own| &own["status"]["revision"]);
            let revision = set["spec"]["revision"].as_str().or(newest.and_then(Value::as_str));
            let has_revision = revision.is_some_and(|revision| {
                let stored = format!("{class}-{revision}");
                let stored = server.object("apps", "controllerrevisions", Some(OPERATOR_NAMESPACE), &stored);
                stored.is_some_and(|stored| stored["metadata"]["labels"][LABEL_NODECLASS] == class)
            });
            let replicas = set["spec"]["replicas"].as_u64().unwrap_or_default();
            let unavailable = set["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"].as_u64();
            let missing = replicas.saturating_sub(own.len() as u64);
            let has_budget = missing == 0 && has_revision || missing < unavailable.unwrap_or_default();
            if is_held
                || !has_budget
                || !calm
                || !own.iter().all(works)
                || !classes.iter().all(|class| is_calm(self.changed.get(&key(class))))
            {
                return None;
            }
            let is_old = |node: &&&Arc<Value>| {
                let created = node["metadata"]["creationTimestamp"].as_str().and_then(time);
                created.is_some_and(|created| created + age + CALM < now)
            };
            let old = own.iter().find(is_old)?;
            Some(format!("{} stays, and its set lets no Node become older than {age:?}", name(old)))
        })
    }
}

/// Age at which a set replaces its Nodes.
fn expires(set: &Value) -> Option<Duration> {
    let seconds = set["spec"]["expireAfter"].as_str()?.strip_suffix('s')?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn is_sick(node: &Value) -> bool {
    node["status"]["conditions"].as_array().into_iter().flatten().any(|one| one["type"] == SICK)
}

fn revision(node: &Value) -> &str {
    node["metadata"]["labels"][LABEL_REVISION].as_str().unwrap_or_default()
}

fn key(object: &Value) -> String {
    format!("{} {}", object["kind"], name(object))
}

fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}
