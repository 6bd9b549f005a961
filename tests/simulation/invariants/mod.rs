//! What must never happen, checked on each change of an object; [`nodes`] has what concerns Nodes.
//!
//! Inputs: a change, the server's objects after it, the write that made it. Output: a violation. Invariants: the state
//! is what earlier changes showed, so each change is checked once and in order.

mod nodes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use kube_node_api::names::{LABEL_NODE_UID, MACHINE_NAMESPACE};
use kube_node_testing::api_server::{ApiServer, Change};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    checks::CLAIM,
    drains::{Drains, has_ended, is_drained_for},
    objects::name,
    permits::Permits,
    reasons::Reasons,
    sent::Sent,
    statuses::Statuses,
    waits::Waits,
};

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
                reason.or_else(|| self.check_node(server, change, by))
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

/// UID of the Node whose machine a pod is.
fn node_uid(pod: &Value) -> String {
    pod["metadata"]["labels"][LABEL_NODE_UID].as_str().unwrap_or_default().to_owned()
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
