//! The rules of scale requests, checked on the server's objects and on the answers of the service:
//!
//! - The operator never raises the replicas beyond the number that was needed recently.
//! - It never lowers the replicas below the minimum, by more than the Nodes that a scale-down names, or below the Nodes
//!   that stay.
//! - It deletes no Node of the set that cluster-autoscaler has not named, except to replace it, or because a Node was
//!   created beside a scale-down or by a user. It deletes no Node that cluster-autoscaler drains and has not named.
//! - No write of a scale request is applied after its process has answered for the set, a scale request or a question.
//! - A process that has answered a scale request knows the new size.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use http::Method;
use kube_node_api::names::{ANNOTATION_VICTIMS, LABEL_REVISION, TAINT_TO_BE_DELETED};
use kube_node_testing::api_server::{ApiServer, Change};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    autoscaler::{SET, is_kept},
    objects::{is_ready, name, set_of, taints},
    sent::Sent,
};

/// Time for which a need of before may still be acted on: a loop, a call, and a write that is applied late.
const RECENT: Duration = Duration::from_secs(45);
/// Time after which no call is in progress in its process (`SCALE_LIMIT` of the writer).
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Time within which every cache shows a change, where nothing delays watches and requests.
const PROMPT: Duration = Duration::from_secs(1);

/// Calls that change the size of a group.
const CHANGES: [&str; 3] = ["IncreaseSize", "DecreaseTargetSize", "DeleteNodes"];

/// A call of the service.
pub struct Call {
    number: u64,
    process: String,
    what: &'static str,
    /// Replicas that the process has written and answered for.
    known: Option<i64>,
}

/// State of the checks.
#[derive(Default)]
pub struct ScalingChecks {
    /// Time for which the operator may act on an old state of the server.
    pub delay: Duration,
    /// True if watches freeze.
    pub freezes: bool,
    /// True if nothing delays watches and requests.
    pub is_prompt: bool,
    /// True if no random fault keeps cluster-autoscaler from hearing what its deletions have brought.
    pub counts_deletions: bool,
    needed: i32,
    /// Needs of before, and until when they count.
    needs: Vec<(Instant, i32)>,
    /// Number of deletions that may be accepted before the need changes: the Nodes of then that are not needed, those that
    /// cluster-autoscaler drained, the surge of a rollout, all Nodes that a change of the class replaces, and those of scale-ups.
    deletable: usize,
    /// Names of the Nodes that cluster-autoscaler has named.
    named: BTreeSet<String>,
    /// Nodes whose taint was removed again.
    spared: BTreeMap<String, Instant>,
    /// When Nodes above the replicas were named, whose replicas stay: as long as no watch shows this, each takes its replica
    /// along.
    named_above: Vec<Instant>,
    /// When others deleted a Node that was drained.
    deleted_beside: Vec<Instant>,
    ready_since: BTreeMap<String, Instant>,
    unready_since: BTreeMap<String, Instant>,
    /// When each Node was created, and whether that may be one too many: by a user, or by a request that was carried out
    /// late, perhaps of a process that had ended.
    created: BTreeMap<String, (Instant, bool)>,
    /// Scale-downs: when they were sent, and when they were applied.
    lowered: Vec<(Instant, Instant)>,
    /// When the present set was created.
    set_created: Option<Instant>,
    class_changed: Option<Instant>,
    /// When a write was refused, which may have been a deletion.
    refused: Option<Instant>,
    /// Time of each process's last answer that settles its writes.
    settled: BTreeMap<String, Instant>,
    calls: u64,
    /// Scale requests in progress: process and begin.
    scaling: BTreeMap<u64, (String, Instant)>,
    /// When each process was asked to give up replicas that have no machine.
    given_up: Vec<(String, Instant)>,
    /// Scale-downs: when, the replicas that were left, and the Nodes that were to stay.
    lowered_to: VecDeque<(Instant, usize, Vec<String>)>,
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

    /// Pods need this number of Nodes from now on.
    pub fn need(&mut self, needed: i32, server: &ApiServer) {
        self.needs.push((Instant::now() + RECENT, self.needed));
        self.needed = needed;
        let nodes = nodes(server);
        let drained = nodes.iter().filter(|node| is_drained(node)).count();
        // A rollout of just before, which is still to begin, makes its surge again for each of its Nodes that is named, as one
        // of later does.
        // Nodes of a rollout that has begun are chosen no more.
        let is_replaced = |node: &&Arc<Value>| {
            let created = self.created.get(&name(node)).map(|(at, _)| *at);
            let changed = self.class_changed.filter(|changed| changed.elapsed() < RECENT);
            let is_older = created.zip(changed).is_some_and(|(created, changed)| created < changed);
            is_older && !is_kept(node)
        };
        let replaced = nodes.iter().filter(is_replaced).count();
        let sets = server.objects("kube-node.io", "nodesets");
        let replicas = sets.iter().find(|set| name(set) == SET).map_or(0, |set| replicas(set));
        let size = nodes.len().max(usize::try_from(replicas).unwrap_or(0));
        self.deletable = size.saturating_sub(usize::try_from(needed).unwrap_or(0)) + drained + replaced + 2;
    }

    /// The deletion of a Node has been accepted. For one need, none of them brings another Node that is not needed either.
    pub fn accept_deletion(&mut self, node: &str) -> Option<String> {
        // A Node of a former set is gone, and another set of the same name answers for it.
        let created = self.created.get(node).map(|(at, _)| *at);
        if created.zip(self.set_created).is_some_and(|(node, set)| node < set) {
            return None;
        }
        let left = self.deletable.checked_sub(1);
        self.deletable = left.unwrap_or_default();
        let is_one_too_many = self.counts_deletions && left.is_none();
        is_one_too_many
            .then(|| format!("each Node that is named is made again, and {} are needed", self.needed))
    }

    /// cluster-autoscaler is about to name this Node.
    pub fn name_victim(&mut self, node: &str) {
        self.named.insert(node.to_owned());
    }

    /// A write is refused, which a deletion may be. The replacement of a Node that cannot go is one Node too many.
    pub fn refuse(&mut self) {
        self.refused = Some(Instant::now());
    }

    /// A call arrives at a process.
    pub fn begin(&mut self, process: &str, what: &'static str) -> Call {
        self.calls += 1;
        if CHANGES.contains(&what) {
            self.scaling.insert(self.calls, (process.to_owned(), Instant::now()));
        }
        if what == "DecreaseTargetSize" {
            self.given_up.push((process.to_owned(), Instant::now()));
        }
        let known = self.written.as_ref().filter(|(by, _, answered)| by == process && *answered);
        let known = known.filter(|_| what == "TargetSize").map(|(_, replicas, _)| *replicas);
        Call { number: self.calls, process: process.to_owned(), what, known }
    }

    /// The process answers a call.
    pub fn end(&mut self, call: Call, is_ok: bool) {
        let Call { number, process, what, known } = call;
        self.scaling.remove(&number);
        self.scaling.retain(|_, (_, since)| since.elapsed() < CALL_LIMIT);
        let written = self.written.as_mut().filter(|(by, ..)| *by == process);
        self.expected = known.filter(|known| written.as_ref().is_some_and(|written| written.1 == *known));
        if !is_ok {
            return;
        }
        if CHANGES.contains(&what) {
            // A scale request waits for the one before, and settles what that left open.
            if let Some(written) = written {
                written.2 = true;
            }
            self.settled.insert(process, Instant::now());
        } else if what != "NodeGroups" && self.scaling.values().all(|(by, _)| *by != process) {
            // A question is not answered while the end of a write is not known.
            self.settled.insert(process, Instant::now());
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
        if let Some(below) = self.check_staying(server) {
            return Some(below);
        }
        match change.after["kind"].as_str() {
            Some("NodeClass") => {
                let changes = |before: &Value| before["spec"] != change.after["spec"];
                if change.before.as_deref().is_some_and(changes) {
                    self.class_changed = Some(Instant::now());
                    // A rollout makes its surge again for each of its Nodes that is named.
                    self.deletable += nodes(server).len();
                }
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
            self.set_created = Some(now);
            return None;
        };
        if after["metadata"]["deletionTimestamp"].is_string() {
            // No group any more, although a watch may show it still.
            self.written = None;
            return None;
        }
        let sent = by?;
        let victims = after["metadata"]["annotations"][ANNOTATION_VICTIMS].as_str().unwrap_or_default();
        let nodes = nodes(server);
        for node in &nodes {
            let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
            // A scale-up that is given up names Nodes that have not worked yet, as far as the operator knows.
            let recent = RECENT + self.delay;
            let young = self.ready_since.get(&name(node)).is_none_or(|since| since.elapsed() < recent);
            if victims.split(',').any(|victim| victim == uid) && young {
                self.named.insert(name(node));
            }
        }
        let (old, new) = (replicas(before), replicas(after));
        let known = before["metadata"]["annotations"][ANNOTATION_VICTIMS].as_str().unwrap_or_default();
        let is_new = |uid: &&str| !uid.is_empty() && !known.split(',').any(|one| one == *uid);
        let added = victims.split(',').filter(is_new).count();
        if old == new {
            self.named_above.extend(std::iter::repeat_n(now, added));
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
            self.expect_staying(&nodes, victims, new);
            if new < min {
                return Some(format!("{new} replicas, and the minimum is {min}"));
            }
            let added = i64::try_from(added).unwrap();
            let gives_up = self.given_up.iter().any(|(process, at)| {
                *process == sent.process && *at <= sent.at && sent.at < *at + CALL_LIMIT
            });
            return (old - new > added && !gives_up)
                .then(|| format!("from {old} to {new} replicas, and {added} Nodes are named for it"));
        }
        self.deletable += usize::try_from(new - old).unwrap();
        self.needs.retain(|(until, _)| *until > now);
        let most =
            self.needs.iter().map(|(_, needed)| *needed).chain([self.needed]).max().unwrap_or_default();
        let most = i64::from(most).max(min);
        let drained = self.drained_since(server, RECENT) + self.deleted_beside();
        (new - drained > most).then(|| {
            format!("scaled up twice: from {old} to {new} replicas, {most} are needed and {drained} drained")
        })
    }

    /// Notes the Nodes that a scale-down leaves, where the process knew them.
    fn expect_staying(&mut self, nodes: &[Arc<Value>], victims: &str, replicas: i64) {
        if !self.is_prompt {
            return;
        }
        let is_known = |node: &str| self.created.get(node).is_none_or(|(at, _)| at.elapsed() > PROMPT);
        let staying = nodes.iter().filter(|node| stays(node, victims)).map(|node| name(node));
        let staying = staying.filter(|node| is_known(node)).collect();
        self.lowered_to.push_back((Instant::now(), usize::try_from(replicas).unwrap(), staying));
    }

    /// Checks the Nodes that scale-downs left, once deletions that were on their way have arrived.
    fn check_staying(&mut self, server: &ApiServer) -> Option<String> {
        let due = self.lowered_to.pop_front_if(|(at, ..)| at.elapsed() > PROMPT)?;
        let (_, replicas, names) = due;
        let victims = victims(server);
        let all = nodes(server);
        let staying = all.iter().filter(|node| stays(node, &victims) && names.contains(&name(node))).count();
        (staying > replicas).then(|| format!("lowered to {replicas} replicas, and {staying} Nodes stay"))
    }

    /// Number of Nodes that cluster-autoscaler drains, or drained lately, and that take their replicas along.
    pub fn drained(&self, server: &ApiServer) -> i64 {
        let lately = self.named_above.iter().filter(|at| at.elapsed() < self.delay).count();
        self.drained_since(server, self.delay) + i64::try_from(lately).unwrap()
    }

    fn drained_since(&self, server: &ApiServer, recent: Duration) -> i64 {
        let victims = victims(server);
        let drained = nodes(server).into_iter().filter(|node| {
            let spared = self.spared.get(&name(node)).is_some_and(|at| at.elapsed() < recent);
            (is_drained(node) || spared) && stays(node, &victims)
        });
        i64::try_from(drained.count()).unwrap()
    }

    /// Number of Nodes that others have deleted lately while cluster-autoscaler drained them: it counts on their replicas to
    /// go, and these stay.
    fn deleted_beside(&self) -> i64 {
        let recent = self.deleted_beside.iter().filter(|at| at.elapsed() < RECENT + self.delay);
        i64::try_from(recent.count()).unwrap()
    }

    fn check_node(&mut self, server: &ApiServer, change: &Change, by: Option<&Sent>) -> Option<String> {
        let now = Instant::now();
        let (after, node) = (&change.after, name(&change.after));
        let Some(before) = &change.before else {
            let is_late = by.is_none_or(|sent| sent.at.elapsed() > PROMPT);
            self.created.insert(node, (now, is_late));
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
        let goes = !is_leaving(before) && (change.deleted || is_leaving(after));
        // cluster-autoscaler may also begin to drain a Node that others have deleted before, as long as a watch shows it.
        let is_chosen_late = is_leaving(before) && is_drained(after) && !is_drained(before);
        let was_spared = self.spared.get(&node).is_some_and(|at| at.elapsed() < RECENT);
        if goes && (is_drained(before) || was_spared) && by.is_none() || is_chosen_late {
            self.deleted_beside.push(now);
        }
        let deletes = by.is_some_and(|sent| sent.method == Method::DELETE) && goes;
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
        let classes = server.objects("kube-node.io", "nodeclasses");
        let newest = classes.iter().find(|class| set["spec"]["nodeClassName"] == name(class).as_str());
        let is_newest = |class: &Arc<Value>| {
            class["status"]["observedGeneration"] == class["metadata"]["generation"]
                && class["status"]["revision"] == before["metadata"]["labels"][LABEL_REVISION]
        };
        let is_updated = newest.is_some_and(is_newest) && !recently(self.class_changed.as_ref());
        let is_well = is_ready(before) && !recently(self.unready_since.get(&node));
        if !is_updated || !is_well || recently(self.refused.as_ref()) {
            return None;
        }
        let stray = nodes(server).iter().find_map(|node| {
            let (created, is_late) = self.created.get(&name(node))?;
            let beside =
                |(sent, applied): &(Instant, Instant)| created >= sent && *created <= *applied + self.delay;
            (*is_late || self.lowered.iter().any(beside)).then(|| name(node))
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

/// Replicas of a set.
fn replicas(set: &Value) -> i64 {
    set["spec"]["replicas"].as_i64().unwrap_or_default()
}

/// UIDs of the Nodes that scale requests have named, and whose replicas are gone.
fn victims(server: &ApiServer) -> String {
    let sets = server.objects("kube-node.io", "nodesets");
    let set = sets.iter().find(|set| name(set) == SET);
    let text =
        set.and_then(|set| set["metadata"]["annotations"][ANNOTATION_VICTIMS].as_str().map(str::to_owned));
    text.unwrap_or_default()
}

/// Returns true if the Node is neither deleted nor one of the `victims`.
fn stays(node: &Value, victims: &str) -> bool {
    node["metadata"]["deletionTimestamp"].is_null() && !is_among(node, victims)
}

fn is_among(node: &Value, victims: &str) -> bool {
    let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
    victims.split(',').any(|victim| victim == uid)
}

/// Returns true if cluster-autoscaler has named the Node: its replica is gone already. It may have spared the Node since, where
/// it did not hear that.
pub fn is_named(server: &ApiServer, node: &Value) -> bool {
    is_among(node, &victims(server))
}

/// Nodes of the set.
fn nodes(server: &ApiServer) -> Vec<Arc<Value>> {
    server.objects("", "nodes").into_iter().filter(|node| set_of(node) == SET).collect()
}

/// Returns true if cluster-autoscaler drains the Node.
pub fn is_drained(node: &Value) -> bool {
    taints(node).any(|key| key == TAINT_TO_BE_DELETED)
}
