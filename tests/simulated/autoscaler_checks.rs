//! The rules of scale requests, checked on the server's objects and on the answers of the service:
//!
//! - The operator never raises the replicas beyond the number that was needed recently.
//! - It never lowers the replicas below the minimum.
//! - It deletes no Node of the set that cluster-autoscaler has not named, except to replace it, or because a Node was
//!   created beside a scale-down or by a user. It deletes no Node that cluster-autoscaler drains and has not named.
//! - No write of a scale request is applied after its process has answered for the set.
//! - A process that has answered a scale request knows the new size.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use http::Method;
use kube_node_api::names::{ANNOTATION_VICTIMS, LABEL_REVISION, TAINT_TO_BE_DELETED};
use kube_node_testing::api_server::{ApiServer, Change};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    autoscaler::SET,
    checks::Sent,
    objects::{is_ready, name, set_of, taints},
};

/// Time for which a need of before may still be acted on: a loop, a call, and a write that is applied late.
const RECENT: Duration = Duration::from_secs(45);
/// Time after which no call is in progress in its process (`SCALE_LIMIT` of the writer).
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// A call of the service.
pub struct Call {
    number: u64,
    process: String,
    is_scale: bool,
    /// Replicas that the process has written and answered for.
    known: Option<i64>,
}

/// State of the checks.
#[derive(Default)]
pub struct ScalingChecks {
    /// Time for which the operator may act on an old state of the server.
    pub delay: Duration,
    needed: i32,
    /// Needs of before, and until when they count.
    needs: Vec<(Instant, i32)>,
    /// Names of the Nodes that cluster-autoscaler has named.
    named: BTreeSet<String>,
    /// Nodes whose taint was removed again.
    spared: BTreeMap<String, Instant>,
    ready_since: BTreeMap<String, Instant>,
    unready_since: BTreeMap<String, Instant>,
    /// When each Node was created, and whether a user did it.
    created: BTreeMap<String, (Instant, bool)>,
    /// Scale-downs: when they were sent, and when they were applied.
    lowered: Vec<(Instant, Instant)>,
    class_changed: Option<Instant>,
    /// When a policy refused a write to a Node.
    refused: Option<Instant>,
    /// Time of each process's last answer that settles its writes.
    settled: BTreeMap<String, Instant>,
    calls: u64,
    /// Scale requests in progress: process and begin.
    scaling: BTreeMap<u64, (String, Instant)>,
    /// Last change of the replicas: by whom, and whether that process has answered since.
    written: Option<(String, i64, bool)>,
    /// Replicas that the next target may not be below.
    expected: Option<i64>,
}

impl ScalingChecks {
    /// Number of Nodes that pods need now.
    pub fn needed(&self) -> i32 {
        self.needed
    }

    pub fn need(&mut self, needed: i32) {
        self.needs.push((Instant::now() + RECENT, self.needed));
        self.needed = needed;
    }

    /// cluster-autoscaler is about to name this Node.
    pub fn name_victim(&mut self, node: &str) {
        self.named.insert(node.to_owned());
    }

    /// A policy refuses a write to a Node. The replacement of a Node that cannot go is one Node too many.
    pub fn refuse(&mut self) {
        self.refused = Some(Instant::now());
    }

    /// A call arrives at a process.
    pub fn begin(&mut self, process: &str, what: &str) -> Call {
        self.calls += 1;
        let is_scale = ["IncreaseSize", "DecreaseTargetSize", "DeleteNodes"].contains(&what);
        if is_scale {
            self.scaling.insert(self.calls, (process.to_owned(), Instant::now()));
        }
        let known = self.written.as_ref().filter(|(by, _, answered)| by == process && *answered);
        let known = known.filter(|_| what == "TargetSize").map(|(_, replicas, _)| *replicas);
        Call { number: self.calls, process: process.to_owned(), is_scale, known }
    }

    /// The process answers a call.
    pub fn end(&mut self, call: Call, is_ok: bool) {
        let Call { number, process, is_scale, known } = call;
        self.scaling.remove(&number);
        self.scaling.retain(|_, (_, since)| since.elapsed() < CALL_LIMIT);
        let written = self.written.as_mut().filter(|(by, ..)| *by == process);
        self.expected = known.filter(|known| written.as_ref().is_some_and(|written| written.1 == *known));
        if is_scale && is_ok {
            // A scale request waits for the one before, and settles what that left open.
            self.settled.insert(process, Instant::now());
            if let Some(written) = written {
                written.2 = true;
            }
        }
    }

    /// Checks a target size that was answered.
    pub fn check_target(&mut self, target: i64) -> Option<String> {
        let expected = self.expected.take()?;
        (target < expected).then(|| {
            format!("a target of {target} is answered, and its process has written {expected} replicas")
        })
    }

    /// Checks a change of an object. `by` is the write that made it; None: others did.
    pub fn check(&mut self, server: &ApiServer, change: &Change, by: Option<&Sent>) -> Option<String> {
        let by = by.filter(|sent| sent.process.starts_with("operator"));
        match change.after["kind"].as_str() {
            Some("NodeClass") => {
                self.class_changed = Some(Instant::now());
                None
            }
            Some("NodeSet") if name(&change.after) == SET => self.check_set(server, change, by),
            Some("Node") if set_of(&change.after) == SET => self.check_node(server, change, by),
            _ => None,
        }
    }

    fn check_set(&mut self, server: &ApiServer, change: &Change, by: Option<&Sent>) -> Option<String> {
        let now = Instant::now();
        let after = &change.after;
        let Some(before) = &change.before else {
            // Another set of this name.
            self.written = None;
            return None;
        };
        let sent = by?;
        let victims = after["metadata"]["annotations"][ANNOTATION_VICTIMS].as_str().unwrap_or_default();
        let nodes = nodes(server);
        for node in &nodes {
            let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
            let young = self.ready_since.get(&name(node)).is_none_or(|since| since.elapsed() < RECENT);
            // A scale-up that is given up names Nodes that have not worked yet.
            if victims.split(',').any(|victim| victim == uid) && young {
                self.named.insert(name(node));
            }
        }
        let replicas = |set: &Value| set["spec"]["replicas"].as_i64().unwrap_or_default();
        let (old, new) = (replicas(before), replicas(after));
        if old == new {
            return None;
        }
        self.written = Some((sent.process.clone(), new, false));
        if let Some(settled) = self.settled.get(&sent.process)
            && sent.at < *settled
        {
            return Some(format!("{} changes {old} to {new} replicas after it has answered", sent.process));
        }
        let min = after["spec"]["autoscaling"]["minReplicas"].as_i64().unwrap_or_default();
        if new < old {
            self.lowered.push((sent.at, now));
            return (new < min).then(|| format!("{new} replicas, and the minimum is {min}"));
        }
        self.needs.retain(|(until, _)| *until > now);
        let most =
            self.needs.iter().map(|(_, needed)| *needed).chain([self.needed]).max().unwrap_or_default();
        let most = i64::from(most).max(min);
        let drained = self.drained_since(server, RECENT);
        (new - drained > most).then(|| {
            format!("scaled up twice: from {old} to {new} replicas, {most} are needed and {drained} drained")
        })
    }

    /// Number of Nodes that cluster-autoscaler drains, or drained lately, and that take their replicas along.
    pub fn drained(&self, server: &ApiServer) -> i64 {
        self.drained_since(server, self.delay)
    }

    fn drained_since(&self, server: &ApiServer, recent: Duration) -> i64 {
        let victims = victims(server);
        let drained = nodes(server).into_iter().filter(|node| {
            let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
            let spared = self.spared.get(&name(node)).is_some_and(|at| at.elapsed() < recent);
            (is_drained(node) || spared)
                && node["metadata"]["deletionTimestamp"].is_null()
                && !victims.split(',').any(|victim| victim == uid)
        });
        i64::try_from(drained.count()).unwrap()
    }

    fn check_node(&mut self, server: &ApiServer, change: &Change, by: Option<&Sent>) -> Option<String> {
        let now = Instant::now();
        let (after, node) = (&change.after, name(&change.after));
        let Some(before) = &change.before else {
            self.created.insert(node, (now, by.is_none()));
            return None;
        };
        match (is_ready(before), is_ready(after)) {
            (false, true) => drop(self.ready_since.insert(node.clone(), now)),
            (true, false) => drop(self.unready_since.insert(node.clone(), now)),
            _ => {}
        }
        if is_drained(before) && !is_drained(after) {
            self.spared.insert(node.clone(), now);
        }
        let is_leaving = |node: &Value| node["metadata"]["deletionTimestamp"].is_string();
        let deletes = by.is_some_and(|sent| sent.method == Method::DELETE)
            && !is_leaving(before)
            && (change.deleted || is_leaving(after));
        if !deletes || self.named.contains(&node) {
            return None;
        }
        let sets = server.objects("kube-node.io", "nodesets");
        let set = sets.iter().find(|set| name(set) == SET).filter(|set| !is_leaving(set))?;
        if set["spec"]["autoscaling"].is_null() {
            return None;
        }
        if is_drained(before) {
            return Some(format!("{node} goes while cluster-autoscaler drains it, and it was not named"));
        }
        let recently = |at: Option<&Instant>| at.is_some_and(|at| at.elapsed() < self.delay);
        let is_updated = set["status"]["updateRevision"] == before["metadata"]["labels"][LABEL_REVISION]
            && !recently(self.class_changed.as_ref());
        let is_well = is_ready(before) && !recently(self.unready_since.get(&node));
        if !is_updated || !is_well || recently(self.refused.as_ref()) {
            return None;
        }
        let stray = nodes(server).iter().find_map(|node| {
            let (created, by_user) = self.created.get(&name(node))?;
            let beside =
                |(sent, applied): &(Instant, Instant)| created >= sent && *created <= *applied + self.delay;
            (*by_user || self.lowered.iter().any(beside)).then(|| name(node))
        });
        match stray {
            // One too many, and the oldest may go for it.
            Some(stray) => {
                self.created.remove(&stray);
                None
            }
            None => Some(format!("{node} goes, and nobody has named it")),
        }
    }
}

/// UIDs of the Nodes that scale requests have named, and whose replicas are gone.
fn victims(server: &ApiServer) -> String {
    let sets = server.objects("kube-node.io", "nodesets");
    let set = sets.iter().find(|set| name(set) == SET);
    let text =
        set.and_then(|set| set["metadata"]["annotations"][ANNOTATION_VICTIMS].as_str().map(str::to_owned));
    text.unwrap_or_default()
}

/// Nodes of the set.
fn nodes(server: &ApiServer) -> Vec<std::sync::Arc<Value>> {
    server.objects("", "nodes").into_iter().filter(|node| set_of(node) == SET).collect()
}

/// Returns true if cluster-autoscaler drains the Node.
pub fn is_drained(node: &Value) -> bool {
    taints(node).any(|key| key == TAINT_TO_BE_DELETED)
}
