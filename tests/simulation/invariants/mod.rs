//! What must never happen, checked on each change of an object.
//!
//! Inputs: a change, the server's objects after it, the write that made it. Output: a violation. Invariants: the state
//! is what earlier changes showed, so each change is checked once and in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use kube_node_api::names::{
    LABEL_NODE_UID, LABEL_NODECLASS, LABEL_REVISION, MACHINE_NAMESPACE, OPERATOR_NAMESPACE,
};
use kube_node_planner::drain::LAST_GRACE;
use kube_node_testing::api_server::{ApiServer, Change};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    actions::STARTUP,
    autoscaler::SET,
    autoscaler_checks::{is_drained, is_named},
    checks::{CLAIM, LEASE, Sent},
    drains::{Drains, has_ended, is_drained_for, is_out_of_service},
    objects::{foreign, is_available, is_draining, is_ready, name, set_of, taints, uid},
    people::AGENT,
    permits::Permits,
    preconditions,
    reasons::Reasons,
    statuses::Statuses,
    waits::Waits,
};

/// Time until a Node counts as available at the latest: the set's time, and that of a watch that freezes twice, or of a drain
/// that may have started and is tried again.
const YOUNG: Duration = Duration::from_secs(70);
/// The same where each write is answered, and each watch and clock shows what is.
const YOUNG_WITHOUT_FAULTS: Duration = Duration::from_secs(9);

/// Longest time after which a pod counts as made at once.
const PROMPT: Duration = Duration::from_millis(100);

/// Path of the Leases of Nodes.
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/";

/// Leader by the server's Lease.
#[derive(Clone, Debug)]
pub struct Leader {
    pub holder: String,
    pub since: Instant,
    pub renewed: Instant,
}

/// What the changes so far showed.
#[derive(Default)]
pub struct Invariants {
    pub leader: Option<Leader>,
    /// When the Lease of each Node was written last.
    pub renewed: BTreeMap<String, Instant>,
    /// Holder of each worker's Lease, and when it was renewed last.
    workers: BTreeMap<String, (Value, Instant)>,
    /// When a worker's Lease got another holder.
    pub workers_changed: Option<Instant>,
    /// Sizes that each set had lately: until when they count, replicas with surge, and the least available.
    sizes: BTreeMap<String, Vec<(Option<Instant>, i64, i64)>>,
    /// Until when a Node that has become available counts as one that is not, where a set waits for it to last, or where a
    /// watch may not show it yet.
    young: BTreeMap<String, Instant>,
    /// Until when an unavailable Node counts as available, since a watch may still show it so.
    excused: BTreeMap<String, Instant>,
    statuses: Statuses,
    /// Names of all Nodes so far.
    names: BTreeSet<String>,
    /// Until when a Node counts that a request of before made a second time.
    strays: Vec<Instant>,
    /// When each Node was Ready last.
    ready: BTreeMap<String, Instant>,
    /// Number of Nodes whose replicas leave with them, of the set that cluster-autoscaler scales.
    pub drained: i64,
    /// True if watches freeze.
    pub freezes: bool,
    /// True if each write is answered, and each watch and clock shows what is.
    pub is_certain: bool,
    /// True time.
    pub time: Timestamp,
    /// Time for which what was so before may still be acted on.
    pub memory: Duration,
    /// Nodes that were deleted after cluster-autoscaler had named them.
    named: BTreeSet<String>,
    /// UIDs of the Nodes that operators deleted.
    deleted: BTreeSet<String>,
    /// When others made each Node that they have made.
    made_by_others: BTreeMap<String, Instant>,
    /// Until when a watch may not show yet that the kubelet of a Node reports again.
    found: BTreeMap<String, Instant>,
    /// Pod CIDRs of Nodes.
    cidrs: BTreeMap<String, String>,
    pub permits: Permits,
    pub reasons: Reasons,
    pub waits: Waits,
    /// Process that made each Node by a request that it did not give up.
    creators: BTreeMap<String, String>,
    /// Most Nodes that a set may make; None if Nodes may have to be made again.
    pub most_created: Option<usize>,
    /// Number of Nodes that each set has made.
    created: BTreeMap<String, usize>,
    /// Process that made the pod of each machine at once, by the UID of its Node.
    machines: BTreeMap<String, String>,
    drains: Drains,
    /// Process that ran the machine of each Node last.
    runs: BTreeMap<String, String>,
    /// Process that took the finalizer from each Node that is gone.
    finalized: BTreeMap<String, String>,
}

impl Invariants {
    /// Checks one change.
    pub fn check(&mut self, server: &ApiServer, change: &Change, by: Option<&Sent>) -> Option<String> {
        let now = Instant::now();
        let (after, before) = (&change.after, change.before.as_deref());
        match after["kind"].as_str() {
            Some("NodeSet") => {
                self.reasons.note(change);
                if change.deleted
                    && let Some(left) = self.left_behind(server, after, by)
                {
                    return Some(left);
                }
                let name = name(after);
                let size = if change.deleted { (0, 0) } else { size(after) };
                let sizes = self.sizes.entry(name).or_default();
                if sizes.last().is_none_or(|last| (last.1, last.2) != size) {
                    for old in &mut *sizes {
                        old.0.get_or_insert(now + self.memory);
                    }
                    sizes.push((None, size.0, size.1));
                }
                // A status that a late request brings back is about another time.
                let waits = if by.is_some_and(|sent| !sent.is_given_up) {
                    self.waits.check(after, self.memory)
                } else {
                    None
                };
                self.statuses.check(after, before, by, self.time).or(waits)
            }
            Some("NodeClass") => {
                self.reasons.note(change);
                self.statuses.note_class(after, before);
                None
            }
            Some("Node") => {
                let by_us = by.is_some_and(|sent| sent.process.starts_with("operator"));
                let reason = if by_us && self.is_certain {
                    self.reasons.check(server, change, by, self.memory, self.time)
                } else {
                    None
                };
                self.reasons.note_node(change, by);
                reason.or_else(|| self.check_node(server, change, before, by))
            }
            Some("Lease") if name(after) == "kube-node-operator" => {
                let holder = after["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
                let last = self.leader.take();
                let since = last.as_ref().filter(|last| last.holder == holder).map(|last| last.since);
                self.leader =
                    Some(Leader { holder: holder.clone(), since: since.unwrap_or(now), renewed: now });
                let early = last.filter(|last| {
                    !last.holder.is_empty() && last.holder != holder && last.renewed.elapsed() < CLAIM
                });
                early.map(|last| {
                    format!(
                        "{holder} takes the Lease that {} renewed {:?} ago",
                        last.holder,
                        last.renewed.elapsed()
                    )
                })
            }
            Some("Lease") if name(after).starts_with("hollow-host.") => {
                let holder = after["spec"]["holderIdentity"].clone();
                let last = self.workers.insert(name(after), (holder.clone(), now));
                if last.is_none_or(|(last, _)| last != holder) {
                    self.workers_changed = Some(now);
                }
                None
            }
            Some("Lease") => {
                self.renewed.insert(name(after), now);
                None
            }
            // A deletion that arrives late finds the revision in use again, which no client can prevent.
            Some("ControllerRevision") if change.deleted && !by.is_some_and(|sent| sent.is_given_up) => {
                let (revision, class) = (name(after), &after["metadata"]["labels"]["kube-node.io/nodeclass"]);
                let nodes = server.objects("", "nodes");
                let user = nodes.iter().find(|node| {
                    let labels = &node["metadata"]["labels"];
                    let names = labels["kube-node.io/revision"].as_str().filter(|name| !name.is_empty());
                    labels["kube-node.io/nodeclass"] == *class
                        && names.is_some_and(|name| revision.ends_with(name))
                });
                let sets = server.objects("kube-node.io", "nodesets");
                let names = |set: &&Arc<Value>| {
                    let is_old = self.statuses.is_brought_back(set);
                    let names = ["currentRevision", "updateRevision"].iter().any(|field| {
                        set["status"][field].as_str().is_some_and(|name| revision.ends_with(name))
                    });
                    names && !is_old
                };
                let user = user.or_else(|| {
                    let set = sets.iter().filter(|set| set["spec"]["nodeClassName"] == *class).find(names)?;
                    set["metadata"]["deletionTimestamp"].is_null().then_some(set)
                });
                user.map(|user| format!("{revision} is deleted, and {} names it", name(user)))
            }
            Some("Pod") if after["metadata"]["namespace"] == MACHINE_NAMESPACE => {
                if before.is_none() {
                    // One that is made late may come after another one has gone.
                    match by.filter(|sent| sent.at.elapsed() < PROMPT) {
                        Some(sent) => self.machines.insert(node_uid(after), sent.process.clone()),
                        None => self.machines.remove(&node_uid(after)),
                    };
                }
                self.check_machine(server, change, by)
            }
            Some("Pod") => self.drains.check_pod(server, change, by, self.time),
            _ => None,
        }
    }

    /// A machine that is a pod does not go before the pods on it were asked to leave.
    fn check_machine(&self, server: &ApiServer, change: &Change, by: Option<&Sent>) -> Option<String> {
        let (after, before) = (&change.after, change.before.as_deref()?);
        let is_leaving = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
        let by_us = by.is_some_and(|sent| sent.process.starts_with("operator"));
        if !by_us || is_leaving(before) || has_ended(before) || !(change.deleted || is_leaving(after)) {
            return None;
        }
        let (nodes, uid) = (server.objects("", "nodes"), node_uid(after));
        let node = nodes.iter().find(|node| node["metadata"]["uid"] == *uid && is_leaving(node))?;
        if self.may_seem_lost(&name(node)) || is_drained_for(server, node, self.time) {
            return None;
        }
        let pod = self.drains.forgotten(server, &name(node))?;
        Some(format!("{} loses its machine, and pod {pod} was not evicted", name(node)))
    }

    /// Returns true if no operator has renewed the Lease of the leader for this time.
    pub fn is_without_leader(&self, time: Duration) -> bool {
        let is_led = |leader: &Leader| !leader.holder.is_empty() && leader.renewed.elapsed() <= time;
        !self.leader.as_ref().is_some_and(is_led)
    }

    /// Leases of workers that have not been renewed for this time.
    pub fn absent_workers(&self, time: Duration) -> impl Iterator<Item = &str> {
        let late = self.workers.iter().filter(move |(_, (_, renewed))| renewed.elapsed() > time);
        late.map(|(lease, _)| lease.as_str())
    }

    /// Checks that a process does not run the machine of a Node from which it took the finalizer: the machine goes first.
    pub fn check_heartbeat(&mut self, sent: &Sent) -> Option<String> {
        // The NodeController reports conditions of its own.
        let of_status =
            sent.path.strip_prefix("/api/v1/nodes/").and_then(|path| path.strip_suffix("/status"));
        let of_status = of_status.filter(|_| sent.is_of_kubelet());
        let node = of_status.or_else(|| sent.path.strip_prefix(LEASES))?;
        if sent.method != Method::DELETE {
            self.runs.insert(node.to_owned(), sent.process.clone());
        }
        let by =
            self.finalized.get(node).filter(|by| **by == sent.process && sent.method != Method::DELETE)?;
        Some(format!("{by} runs the machine of {node}, from which it took the finalizer"))
    }

    fn check_node(
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
        if before.is_some_and(counts) && (change.deleted || !counts(after)) && !by_us {
            self.excused.insert(node.clone(), now + self.memory);
        }
        if before.is_none() {
            self.finalized.remove(&node);
        }
        if before.is_none() && !set.is_empty() {
            // A request that is carried out after its Node was made, and deleted, makes it again: no client can prevent that.
            self.strays.retain(|until| *until > now);
            // Nor can a leader prevent one that was on its way when the leader before it lost the Lease, or one that arrives
            // after it has asked for the Node and heard that there is none.
            let leads = |sent: &Sent| self.leader.as_ref().is_none_or(|leader| leader.holder == sent.process);
            let is_late = by.is_some_and(|sent| by_us && (sent.is_given_up || !leads(sent)));
            if by_us
                && !is_late
                && let Some(owner) = preconditions::unprotected(server, after)
            {
                return Some(format!("{node} is created, and {owner} has no finalizer"));
            }
            if by_us && let Some(problem) = wrong_revision(server, after, is_late) {
                return Some(problem);
            }
            self.creators.remove(&node);
            if let Some(sent) = by.filter(|sent| by_us && !sent.is_given_up) {
                self.creators.insert(node.clone(), sent.process.clone());
                let created = self.created.entry(set.clone()).or_default();
                *created += 1;
                if let Some(most) = self.most_created.filter(|most| *created > *most) {
                    return Some(format!(
                        "{node} is the Node number {created} of {set}, and {most} are enough"
                    ));
                }
            }
            let is_stray = !self.names.insert(node.clone()) || is_late;
            if is_stray {
                self.strays.push(now + self.memory);
            }
            let count = i64::try_from(of_set.len() - self.strays.len().min(of_set.len())).unwrap();
            // Without an election, nothing keeps back the creations of a process that was killed.
            let is_elected = self.leader.is_some();
            if by_us && is_elected && count > most {
                return Some(format!("{node} is one of {count} Nodes of {set}, and {most} are allowed"));
            }
            // No client sees a Node, and its pod CIDR, at the moment that another one makes it, or a request that arrives late.
            if by.is_none() || is_late {
                self.made_by_others.insert(node.clone(), now);
            }
            let is_unseen =
                |node: &str| self.made_by_others.get(node).is_some_and(|at| at.elapsed() < self.memory);
            if let Some(cidr) = after["spec"]["podCIDR"].as_str()
                && let Some(other) = self.cidrs.insert(cidr.to_owned(), node.clone())
                && is_elected
                && !is_stray
                && other != node
                && !is_unseen(&other)
                && nodes.iter().any(|one| name(one) == other)
            {
                return Some(format!("{node} and {other} have the pod CIDR {cidr}"));
            }
            return None;
        }
        let before = before?;
        self.drains.note_node(change);
        if let Some(found) = by.filter(|_| by_us).and_then(|sent| self.permits.note_node(after, before, sent))
        {
            return Some(found);
        }
        if change.deleted {
            self.named.remove(&node);
            self.cidrs.retain(|_, owner| *owner != node);
            self.finalized.extend(by.filter(|_| by_us).map(|sent| (node.clone(), sent.process.clone())));
            let pods = server.objects("", "pods");
            let uid = uid(after);
            // A pod that another process made, or that was made after its client gave up, may be unknown to this one.
            let made_by = self.machines.remove(uid);
            if by.is_some_and(|sent| by_us && made_by.as_ref() == Some(&sent.process))
                && pods.iter().any(|pod| node_uid(pod) == uid)
            {
                return Some(format!("{node} goes, and its machine is there"));
            }
            let attachments = server.objects("storage.k8s.io", "volumeattachments");
            let attached = attachments.iter().find(|one| one["spec"]["nodeName"] == node.as_str());
            // Where the machine is lost, nothing unmounts it.
            if self.has_machine(&node, by)
                && let Some(volume) = attached
                && !self.may_seem_lost(&node)
                && !is_drained_for(server, after, self.time)
            {
                return Some(format!("{node} goes, and {} is attached to it", name(volume)));
            }
            let left = pods.iter().find(|pod| pod["spec"]["nodeName"] == node.as_str() && !has_ended(pod));
            return left
                .filter(|_| by_us && !self.may_seem_lost(&node))
                .filter(|_| !is_drained_for(server, after, self.time - LAST_GRACE))
                .map(|pod| format!("{node} goes, and pod {} is on it", name(pod)));
        }
        if is_out_of_service(after)
            && !is_out_of_service(before)
            && (self.has_machine(&node, by) || self.is_made_again(before))
            && !self.may_seem_lost(&node)
            && !is_drained_for(server, after, self.time)
            && let Some(pod) = self.drains.forgotten(server, &node)
        {
            return Some(format!("{node} loses its machine, and pod {pod} was not evicted"));
        }
        if by_us && foreign(before) != foreign(after) {
            return Some(format!("{node} loses what others gave it: {:?}", foreign(before)));
        }
        if is_ready(before) {
            self.ready.insert(node.clone(), now);
        }
        let was_ready = self.ready.get(&node).is_some_and(|at| at.elapsed() < self.memory.max(LEASE));
        let has_taint = |object: &Value| taints(object).any(|key| key == "kube-node.io/uninitialized");
        if has_taint(before) && !has_taint(after) {
            // A Lease of the Node before it, of the same name, counts: kube-controller-manager reads no more than the name.
            let exists =
                server.object("coordination.k8s.io", "leases", Some("kube-node-lease"), &node).is_some();
            let is_fresh = |at: &Instant| at.elapsed() < self.memory.max(LEASE);
            let has_lease = exists && self.renewed.get(&node).is_some_and(is_fresh);
            if !has_lease || !was_ready {
                return Some(format!("{node} is initialized: Ready {was_ready}, Lease {has_lease}"));
            }
        }
        // Nor does a Node count that becomes available while it is being deleted.
        let is_leaving = |node: &Value| node["metadata"]["deletionTimestamp"].is_string();
        if is_leaving(after) && !is_leaving(before) {
            if !counts(after) {
                self.excused.insert(node.clone(), now + self.memory);
            }
            if is_named(server, after) {
                self.named.insert(node.clone());
            }
            if by_us {
                self.deleted.insert(uid(after).to_owned());
            }
        }
        let waits = |one: &Arc<Value>| name(one) == set && one["spec"]["minReadyTime"] == "7s";
        let waits = || server.objects("kube-node.io", "nodesets").iter().any(waits);
        if !is_ready(before) && is_ready(after) && !has_taint(before) {
            self.found.insert(node.clone(), now + self.memory.min(YOUNG));
        }
        if !counts(before) && counts(after) && (self.freezes || waits()) {
            let young = if self.is_certain { YOUNG_WITHOUT_FAULTS } else { YOUNG };
            self.young.insert(node.clone(), now + young);
        }
        let is_young = self.young.get(&node).is_some_and(|until| *until > now);
        // A Node that never starts is available for schedulers of pods that tolerate its taint, and not for its set.
        let is_started = taints(before).all(|key| key != STARTUP && key != AGENT);
        let is_deleted = by_us && is_leaving(after) && !is_leaving(before);
        let goes = is_deleted || !is_draining(before) && is_draining(after);
        // A Node that was unavailable lately may have been so when its drain was decided.
        let seemed_lost =
            self.excused.get(&node).is_some_and(|until| *until > now) || self.was_found_lately(&node);
        let counted = counts(before) && is_started && !is_young && !seemed_lost;
        if goes && by_us && counted && !self.named.contains(&node) {
            // A Node that cluster-autoscaler has named goes by itself, whenever that is. One that users delete works until its
            // turn comes, and so does one whose drain was refused.
            let has_permit =
                |one: &Value| self.deleted.contains(uid(one)) && !self.permits.was_refused(uid(one));
            let is_left =
                |one: &Value| counts(one) && !is_named(server, one) && !(is_deleted && has_permit(one));
            let left = of_set.iter().filter(|one| is_left(one)).count();
            let excused = self.excused.iter().filter(|(name, until)| {
                **until > now
                    && **name != node
                    && !of_set.iter().any(|one| crate::objects::name(one) == **name && counts(one))
            });
            let left = i64::try_from(left + excused.count()).unwrap();
            let least = if set == SET { least - self.drained } else { least };
            if left < least {
                let goes = if is_deleted { "deleted" } else { "drained" };
                return Some(format!(
                    "{node} is {goes}, which leaves {left} available, and {least} have to be"
                ));
            }
        }
        None
    }
}

impl Invariants {
    /// Returns true if a watch may still show that a Node, whose kubelet reports again, does not work.
    fn was_found_lately(&self, node: &str) -> bool {
        self.found.get(node).is_some_and(|until| *until > Instant::now())
    }

    /// Returns true if an operator may have taken the machine of a Node for lost.
    fn may_seem_lost(&self, node: &str) -> bool {
        self.excused.contains_key(node) || self.was_found_lately(node)
    }

    /// Returns true if the process that wrote this runs the machine of a Node.
    fn has_machine(&self, node: &str, by: Option<&Sent>) -> bool {
        by.is_some_and(|sent| self.runs.get(node) == Some(&sent.process))
    }

    /// Returns true if an operator that has lost the machine of a Node in a restart makes it again to drain it: a machine that
    /// operators run themselves, and that nobody has missed yet.
    fn is_made_again(&self, node: &Value) -> bool {
        let is_theirs = self.runs.get(&name(node)).is_some_and(|process| process.starts_with("operator"));
        is_theirs && self.workers.is_empty() && self.machines.is_empty() && is_ready(node)
    }
}

/// UID of the Node whose machine a pod is.
fn node_uid(pod: &Value) -> String {
    pod["metadata"]["labels"][LABEL_NODE_UID].as_str().unwrap_or_default().to_owned()
}

/// Returns true if a Node counts for the budget of its set.
fn counts(node: &Value) -> bool {
    is_available(node) && !is_drained(node) && taints(node).all(|key| key != AGENT)
}

/// Most Nodes and least available Nodes of a set.
pub fn size(set: &Value) -> (i64, i64) {
    let replicas = set["spec"]["replicas"].as_i64().unwrap_or_default();
    let rolling = &set["spec"]["strategy"]["rollingUpdate"];
    let surge = rolling["maxSurge"].as_i64().unwrap_or(1);
    let unavailable = rolling["maxUnavailable"].as_i64().unwrap_or_default();
    if set["metadata"]["deletionTimestamp"].is_string() {
        return (replicas + surge, 0);
    }
    (replicas + surge, replicas - unavailable)
}

impl Invariants {
    /// Says so if a set goes before a Node that the same process has made for it. One that arrives late comes after all.
    fn left_behind(&self, server: &ApiServer, set: &Value, by: Option<&Sent>) -> Option<String> {
        let process = by.filter(|sent| !sent.is_given_up).map(|sent| &sent.process)?;
        let nodes = server.objects("", "nodes");
        let left = nodes.iter().find(|node| {
            let owners = node["metadata"]["ownerReferences"].as_array();
            let is_own = owners.into_iter().flatten().any(|own| own["uid"] == set["metadata"]["uid"]);
            is_own && self.creators.get(&name(node)) == Some(process)
        })?;
        Some(format!("{} goes, and its Node {} is there", name(set), name(left)))
    }
}

/// Problem with the revision of a new Node: it belongs to another class, or is not stored. By the time of a late creation, the
/// revision may have been deleted.
fn wrong_revision(server: &ApiServer, node: &Value, is_late: bool) -> Option<String> {
    let label = |key: &str| node["metadata"]["labels"][key].as_str();
    let (class, revision) = (label(LABEL_NODECLASS)?, label(LABEL_REVISION)?);
    let stored = format!("{class}-{revision}");
    let Some(stored) = server.object("apps", "controllerrevisions", Some(OPERATOR_NAMESPACE), &stored) else {
        let problem = || format!("{} is created, and its revision {stored} is not stored", name(node));
        return (!is_late).then(problem);
    };
    let of = stored["metadata"]["labels"][LABEL_NODECLASS].as_str();
    (of != Some(class)).then(|| format!("{} of {class} has a revision of {of:?}: {revision}", name(node)))
}
