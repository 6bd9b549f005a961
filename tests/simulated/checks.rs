//! What must never happen, checked on the server's objects after each write; and the log of the writes.
//!
//! Inputs: each write with its process, as it is sent and as it was answered; the server's changes. Outputs: the first
//! violation, the log. Invariants: a change is judged once, with the write that made it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, StatusCode};
use kube_node_testing::api_server::{ApiServer, Change};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    autoscaler::SET,
    autoscaler_checks::{ScalingChecks, is_drained},
};

/// Time for which the replicas of before may still be acted on: watches lag and freeze.
const MEMORY: Duration = Duration::from_secs(150);
/// Lease duration of the operators' election.
const CLAIM: Duration = Duration::from_secs(15);
/// Longest time between two renewals of a Node's Lease under one leader (kubelet: 40 s).
const LEASE: Duration = Duration::from_secs(40);
/// Most requests within ten seconds.
const MOST: u64 = 3_000;
/// Lines of the log that a violation shows.
const SHOWN: usize = 40;

/// A write on its way.
#[derive(Clone, Debug)]
pub struct Sent {
    pub process: String,
    pub method: Method,
    pub path: String,
    pub body: Bytes,
    pub at: Instant,
}

impl Sent {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// The judge of one schedule.
pub struct Checks {
    state: Mutex<State>,
    scaling: Mutex<ScalingChecks>,
    begun: Instant,
}

/// Leader by the server's Lease.
#[derive(Clone, Debug)]
struct Leader {
    holder: String,
    since: Instant,
    renewed: Instant,
}

#[derive(Default)]
struct State {
    revision: u64,
    requests: u64,
    /// Writes of the operators other than heartbeats and Events.
    changing_writes: u64,
    /// All changes but those of Events, which kube's recorder names by the time of day.
    log: Vec<String>,
    violation: Option<String>,
    /// Ten seconds of the run, and the number of requests in them.
    lately: (u64, u64),
    leader: Option<Leader>,
    /// When the Lease of each Node was written last.
    renewed: BTreeMap<String, Instant>,
    /// Sizes that each set had lately: until when they count, replicas with surge, and the least available.
    sizes: BTreeMap<String, Vec<(Option<Instant>, i64, i64)>>,
    /// Until when an unavailable Node counts as available, since a watch may still show it so.
    excused: BTreeMap<String, Instant>,
    observed: BTreeMap<String, i64>,
    /// Names of all Nodes so far.
    names: BTreeSet<String>,
    /// Until when a Node counts that a request of before made a second time.
    strays: Vec<Instant>,
    /// When each Node was Ready last.
    ready: BTreeMap<String, Instant>,
    /// Number of Nodes whose replicas leave with them, of the set that cluster-autoscaler scales.
    drained: i64,
    /// Pod CIDRs of Nodes.
    cidrs: BTreeMap<String, String>,
}

impl Checks {
    pub fn new() -> Self {
        Self { state: Mutex::default(), scaling: Mutex::default(), begun: Instant::now() }
    }

    /// The rules of scale requests.
    pub fn scaling(&self) -> MutexGuard<'_, ScalingChecks> {
        self.scaling.lock()
    }

    pub fn count(&self, sent: &Sent) {
        let tens = self.begun.elapsed().as_secs() / 10;
        let lately = {
            let mut state = self.state.lock();
            state.requests += 1;
            state.lately = if state.lately.0 == tens { (tens, state.lately.1 + 1) } else { (tens, 1) };
            state.lately.1
        };
        if lately > MOST {
            self.violate(&format!(
                "{lately} requests within 10 s, the last of them {} {}",
                sent.method, sent.path
            ));
        }
        if std::env::var_os("KUBE_NODE_REQUESTS").is_some() {
            let (seconds, body) = (self.begun.elapsed().as_secs_f64(), sent.json());
            eprintln!("{seconds:>9.3} {} {} {} {body}", sent.process, sent.method, sent.path);
        }
    }

    /// Number of writes of the operators other than heartbeats and Events.
    pub fn changing_writes(&self) -> u64 {
        self.state.lock().changing_writes
    }

    /// Number of requests of the processes.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// All changes and notes so far, in their order.
    pub fn log(&self) -> Vec<String> {
        self.state.lock().log.clone()
    }

    pub fn violation(&self) -> Option<String> {
        self.state.lock().violation.clone()
    }

    /// Notes what must not happen; the first counts.
    pub fn violate(&self, what: &str) {
        let at = self.begun.elapsed().as_secs_f64();
        let mut state = self.state.lock();
        if state.violation.is_none() {
            let changes = state.log.iter().filter(|line| !line.contains(" changes Lease "));
            let mut shown: Vec<&str> = changes.rev().take(SHOWN).map(String::as_str).collect();
            shown.reverse();
            state.violation = Some(format!("after {at:.3} s: {what}\n{}", shown.join("\n")));
        }
    }

    pub fn note(&self, what: &str) {
        let line = format!("{:>9.3} {what}", self.begun.elapsed().as_secs_f64());
        if std::env::var_os("KUBE_NODE_LOG").is_some() {
            eprintln!("{line}");
        }
        self.state.lock().log.push(line);
    }

    /// A process sends a write: it must have the right to, and say which object it means.
    pub fn sent(&self, server: &ApiServer, sent: &Sent) {
        let is_heartbeat = sent.path.contains("/leases")
            || sent.path.starts_with("/api/v1/nodes/") && sent.path.ends_with("/status");
        // Revisions that no Node names any more are deleted once a minute.
        let is_tidying = sent.method == Method::DELETE && sent.path.contains("/controllerrevisions/");
        if !is_heartbeat && !is_tidying && !sent.path.contains("/events") {
            self.state.lock().changing_writes += 1;
        }
        if sent.process.starts_with("operator")
            && !sent.path.contains("/leases")
            && !sent.path.contains("/events")
        {
            let leader = self.state.lock().leader.clone();
            if let Some(leader) =
                leader.filter(|leader| leader.holder == sent.process && leader.renewed.elapsed() > CLAIM)
            {
                let ago = leader.renewed.elapsed();
                self.violate(&format!(
                    "{} {} {}: its Lease was renewed {ago:?} ago",
                    sent.process, sent.method, sent.path
                ));
            }
            let lease = server
                .objects("coordination.k8s.io", "leases")
                .into_iter()
                .find(|lease| lease["metadata"]["name"] == "kube-node-operator");
            let holder = lease.map(|lease| lease["spec"]["holderIdentity"].clone()).unwrap_or_default();
            if let Some(holder) =
                holder.as_str().filter(|holder| !holder.is_empty() && *holder != sent.process)
            {
                self.violate(&format!(
                    "{} writes {} {}, and {holder} leads",
                    sent.process, sent.method, sent.path
                ));
            }
        }
        let body = sent.json();
        if sent.path.ends_with("/eviction") && !body["deleteOptions"]["preconditions"]["uid"].is_string() {
            self.violate(&format!("{} {} does not say which pod: {body}", sent.method, sent.path));
        }
        let is_ours = ["/nodes/", "/nodesets/", "/nodeclasses/"].iter().any(|part| sent.path.contains(part));
        if !is_ours || sent.path.ends_with("/status") || sent.path.contains("/leases/") {
            return;
        }
        let named = match sent.method {
            Method::PATCH => {
                let metadata = &body["metadata"];
                let tests = body.as_array().into_iter().flatten().any(|step| step["op"] == "test");
                // A merge patch replaces lists whole.
                let has_list = ["finalizers", "ownerReferences"].iter().any(|list| metadata[list].is_array())
                    || body["spec"]["taints"].is_array();
                let is_versioned = metadata["resourceVersion"].is_string();
                is_versioned || tests || metadata["uid"].is_string() && !has_list
            }
            Method::DELETE => {
                let known = &body["preconditions"];
                known["uid"].is_string() && known["resourceVersion"].is_string()
            }
            _ => true,
        };
        if !named {
            self.violate(&format!("{} {} has no precondition: {body}", sent.method, sent.path));
        }
    }

    /// Checks that a leader whose requests arrive renews the Lease of each Node whose machine works.
    pub fn watch_leases(&self, server: &ApiServer) {
        let state = self.state.lock();
        let Some(leader) = state.leader.clone().filter(|leader| leader.renewed.elapsed() < CLAIM) else {
            return;
        };
        let late = server.objects("", "nodes").into_iter().find(|node| {
            let stays = node["metadata"]["deletionTimestamp"].is_null();
            let last = state.renewed.get(&name(node)).copied().max(Some(leader.since));
            stays && is_available(node) && last.is_none_or(|last| last.elapsed() > LEASE)
        });
        drop(state);
        if let Some(node) = late {
            self.violate(&format!(
                "{} has not renewed the Lease of {} for {LEASE:?}",
                leader.holder,
                name(&node)
            ));
        }
    }

    /// Judges the changes since the last call. `by` is the write that made them; None: others did.
    pub fn judge(&self, server: &ApiServer, by: Option<(&Sent, StatusCode)>) {
        let revision = self.state.lock().revision;
        for change in server.changes_since(revision) {
            self.record(&change, by.map(|(sent, _)| sent));
            let sent = by.map(|(sent, _)| sent);
            let found = {
                let mut state = self.state.lock();
                state.drained = self.scaling().drained(server);
                state.judge(server, &change, sent)
            };
            let of_scaling = self.scaling().judge(server, &change, sent);
            if let Some(found) = found.or(of_scaling) {
                self.violate(&found);
            }
        }
        self.state.lock().revision = server.revision();
        if let Some((sent, code)) = by
            && !code.is_success()
            && sent.method != Method::GET
        {
            self.note(&format!("{} {} {}: {code}", sent.process, sent.method, sent.path));
        }
    }

    fn record(&self, change: &Change, by: Option<&Sent>) {
        let object = &change.after;
        if object["kind"] == "Event" {
            return;
        }
        let verb = match (&change.before, change.deleted) {
            (_, true) => "deletes",
            (None, _) => "creates",
            (Some(_), _) => "changes",
        };
        let by = by.map_or("others", |sent| sent.process.as_str());
        let subject = format!("{} {}", object["kind"].as_str().unwrap_or_default(), name(object));
        self.note(&format!("{by} {verb} {subject}: {}", difference(change)));
    }
}

impl State {
    fn judge(&mut self, server: &ApiServer, change: &Change, by: Option<&Sent>) -> Option<String> {
        let now = Instant::now();
        let (after, before) = (&change.after, change.before.as_deref());
        match after["kind"].as_str() {
            Some("NodeSet") => {
                let name = name(after);
                let size = if change.deleted { (0, 0) } else { size(after) };
                let sizes = self.sizes.entry(name).or_default();
                if sizes.last().is_none_or(|last| (last.1, last.2) != size) {
                    for old in &mut *sizes {
                        old.0.get_or_insert(now + MEMORY);
                    }
                    sizes.push((None, size.0, size.1));
                }
                let observed = after["status"]["observedGeneration"].as_i64().unwrap_or_default();
                let uid = after["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                let last = self.observed.insert(uid, observed).unwrap_or_default();
                (observed < last).then(|| format!("observedGeneration goes back from {last} to {observed}"))
            }
            Some("Node") => self.judge_node(server, change, before, by),
            Some("Lease") if name(after) == "kube-node-operator" => {
                let holder = after["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
                let since =
                    self.leader.as_ref().filter(|leader| leader.holder == holder).map(|leader| leader.since);
                self.leader = Some(Leader { holder, since: since.unwrap_or(now), renewed: now });
                None
            }
            Some("Lease") => {
                self.renewed.insert(name(after), now);
                None
            }
            Some("ControllerRevision") if change.deleted => {
                let (revision, class) = (name(after), &after["metadata"]["labels"]["kube-node.io/nodeclass"]);
                let nodes = server.objects("", "nodes");
                let user = nodes.iter().find(|node| {
                    let labels = &node["metadata"]["labels"];
                    let names = labels["kube-node.io/revision"].as_str().filter(|name| !name.is_empty());
                    labels["kube-node.io/nodeclass"] == *class
                        && names.is_some_and(|name| revision.ends_with(name))
                });
                user.map(|node| format!("{revision} is deleted, and {} names it", name(node)))
            }
            Some("Pod") => {
                let by_us = by.is_some_and(|sent| sent.process.starts_with("operator"));
                let deletes = by.is_some_and(|sent| sent.method == Method::DELETE);
                let was_marked = before.is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_string());
                let node = after["spec"]["nodeName"].as_str().unwrap_or_default();
                let there = server.objects("", "nodes").iter().any(|one| name(one) == node);
                (by_us && deletes && !was_marked && there)
                    .then(|| format!("pod {} is deleted without an eviction", name(after)))
            }
            _ => None,
        }
    }

    fn judge_node(
        &mut self,
        server: &ApiServer,
        change: &Change,
        before: Option<&Value>,
        by: Option<&Sent>,
    ) -> Option<String> {
        let now = Instant::now();
        let after = &change.after;
        let node = name(after);
        let set = set_of(after);
        let nodes = server.objects("", "nodes");
        let of_set: Vec<&Value> =
            nodes.iter().map(|node| &**node).filter(|node| set_of(node) == set).collect();
        let sizes = self.sizes.entry(set.clone()).or_default();
        sizes.retain(|(until, ..)| until.is_none_or(|until| until > now));
        let (most, least) = (
            sizes.iter().map(|size| size.1).max().unwrap_or_default(),
            sizes.iter().map(|size| size.2).min().unwrap_or_default(),
        );
        let by_us = by.is_some_and(|sent| sent.process.starts_with("operator"));
        if before.is_some_and(is_available) && (change.deleted || !is_available(after)) && !by_us {
            self.excused.insert(node.clone(), now + MEMORY);
        }
        if before.is_none() && !set.is_empty() {
            // A request that is carried out after its Node was made, and deleted, makes it again: no client can prevent that.
            self.strays.retain(|until| *until > now);
            if !self.names.insert(node.clone()) {
                self.strays.push(now + MEMORY);
            }
            let count = i64::try_from(of_set.len() - self.strays.len().min(of_set.len())).unwrap();
            if count > most {
                return Some(format!("{node} is one of {count} Nodes of {set}, and {most} are allowed"));
            }
            if let Some(cidr) = after["spec"]["podCIDR"].as_str()
                && let Some(other) = self.cidrs.insert(cidr.to_owned(), node.clone())
                && other != node
                && nodes.iter().any(|one| name(one) == other)
            {
                return Some(format!("{node} and {other} have the pod CIDR {cidr}"));
            }
            return None;
        }
        let before = before?;
        if change.deleted {
            self.cidrs.retain(|_, owner| *owner != node);
            let pods = server.objects("", "pods");
            let left = pods.iter().find(|pod| {
                pod["spec"]["nodeName"] == node.as_str()
                    && !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
            });
            return left
                .filter(|_| by_us && !self.excused.contains_key(&node))
                .map(|pod| format!("{node} goes, and pod {} is on it", name(pod)));
        }
        let foreign = |object: &Value| {
            let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
            let of_labels = labels.filter(|(key, _)| key.starts_with("example.com/"));
            let taints = object["spec"]["taints"].as_array().into_iter().flatten();
            let of_taints = taints.filter_map(|taint| taint["key"].as_str().map(str::to_owned));
            let of_taints = of_taints.filter(|key| key.starts_with("example.com/"));
            of_labels.map(|(key, _)| key.clone()).chain(of_taints).collect::<BTreeSet<_>>()
        };
        if by_us && foreign(before) != foreign(after) {
            return Some(format!("{node} loses what others gave it: {:?}", foreign(before)));
        }
        if is_ready(before) {
            self.ready.insert(node.clone(), now);
        }
        let was_ready = self.ready.get(&node).is_some_and(|at| at.elapsed() < MEMORY);
        let has_taint = |object: &Value| taints(object).any(|key| key == "kube-node.io/uninitialized");
        if has_taint(before) && !has_taint(after) {
            let leases = server.objects("coordination.k8s.io", "leases");
            let has_lease = leases
                .iter()
                .any(|lease| lease["metadata"]["namespace"] == "kube-node-lease" && name(lease) == node);
            if !has_lease || !was_ready {
                return Some(format!("{node} is initialized: Ready {was_ready}, Lease {has_lease}"));
            }
        }
        let starts_to_drain = !is_draining(before) && is_draining(after);
        // A Node that was unavailable lately may have been so when its drain was decided.
        let seemed_lost = self.excused.get(&node).is_some_and(|until| *until > now);
        if starts_to_drain && by_us && is_available(before) && !is_drained(before) && !seemed_lost {
            let left = of_set.iter().filter(|one| is_available(one) && !is_drained(one)).count();
            let excused = self.excused.iter().filter(|(name, until)| {
                **until > now
                    && **name != node
                    && !of_set.iter().any(|one| self::name(one) == **name && is_available(one))
            });
            let left = i64::try_from(left + excused.count()).unwrap();
            let least = if set == SET { least - self.drained } else { least };
            if left < least {
                return Some(format!(
                    "{node} is drained, which leaves {left} available, and {least} have to be"
                ));
            }
        }
        None
    }
}

/// Most Nodes and least available Nodes of a set.
fn size(set: &Value) -> (i64, i64) {
    let replicas = set["spec"]["replicas"].as_i64().unwrap_or_default();
    let rolling = &set["spec"]["strategy"]["rollingUpdate"];
    let surge = rolling["maxSurge"].as_i64().unwrap_or(1);
    let unavailable = rolling["maxUnavailable"].as_i64().unwrap_or_default();
    if set["metadata"]["deletionTimestamp"].is_string() {
        return (replicas + surge, 0);
    }
    (replicas + surge, replicas - unavailable)
}

pub fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

pub fn set_of(node: &Value) -> String {
    node["metadata"]["labels"]["kube-node.io/nodeset"].as_str().unwrap_or_default().to_owned()
}

/// Keys of the taints that keep pods away.
pub fn taints(node: &Value) -> impl Iterator<Item = &str> {
    let all = node["spec"]["taints"].as_array().into_iter().flatten();
    all.filter(|taint| taint["effect"] != "PreferNoSchedule").filter_map(|taint| taint["key"].as_str())
}

pub fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// A Node that a user has cordoned is available: its pods run.
fn is_available(node: &Value) -> bool {
    let initialized = taints(node).all(|key| key != "kube-node.io/uninitialized");
    initialized && is_ready(node) && !is_draining(node)
}

fn is_draining(node: &Value) -> bool {
    node["metadata"]["annotations"]["kube-node.io/drain-started"].is_string()
}

/// The parts of an object that a change replaced.
fn difference(change: &Change) -> String {
    let Some(before) = &change.before else { return String::new() };
    let mut parts = Vec::new();
    compare("", before, &change.after, &mut parts);
    parts.join(", ")
}

fn compare(path: &str, before: &Value, after: &Value, parts: &mut Vec<String>) {
    if before == after || path == ".metadata.resourceVersion" || path.ends_with(".managedFields") {
        return;
    }
    if let (Value::Object(old), Value::Object(new)) = (before, after) {
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            compare(&format!("{path}.{key}"), &before[key], &after[key], parts);
        }
        return;
    }
    let text: String = after.to_string().chars().take(160).collect();
    parts.push(format!("{}={text}", path.trim_start_matches('.')));
}
