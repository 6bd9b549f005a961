//! What must never happen to a Node, checked when it is made, when it changes and when it goes.
//!
//! Inputs: a change of a Node, the server's objects after it, the write that made it. Output: a violation. Invariant: each change
//! is noted for the later ones, unless it is a violation.

use std::{sync::Arc, time::Duration};

use kube_node_api::names::{LABEL_NODECLASS, LABEL_REVISION, OPERATOR_NAMESPACE};
use kube_node_planner::drain::LAST_GRACE;
use kube_node_testing::api_server::{ApiServer, Change};
use serde_json::Value;
use tokio::time::Instant;

use super::{Invariants, node_uid};
use crate::{
    actions::STARTUP,
    autoscaler::SET,
    autoscaler_checks::{is_drained, is_named},
    checks::LEASE,
    drains::{has_ended, is_drained_for, is_out_of_service},
    objects::{foreign, is_available, is_draining, is_ready, name, set_of, taints, uid},
    people::AGENT,
    preconditions,
    sent::Sent,
};

/// Time until a Node counts as available at the latest: the set's time, and that of a watch that freezes twice, or of a drain
/// that may have started and is tried again.
const YOUNG: Duration = Duration::from_secs(70);
/// The same where each write is answered, and each watch and clock shows what is.
const YOUNG_WITHOUT_FAULTS: Duration = Duration::from_secs(9);

/// A Node that a write has made, changed or removed.
#[derive(Clone, Copy)]
struct Written<'a> {
    server: &'a ApiServer,
    after: &'a Value,
    /// Its name.
    node: &'a str,
    /// The set that it belongs to.
    set: &'a str,
    /// All Nodes.
    nodes: &'a [Arc<Value>],
    /// The write; None: others did it.
    by: Option<&'a Sent>,
    /// True if an operator sent it.
    by_us: bool,
}

impl Invariants {
    /// Checks one change of a Node.
    pub(super) fn check_node(
        &mut self,
        server: &ApiServer,
        change: &Change,
        by: Option<&Sent>,
    ) -> Option<String> {
        let (after, before) = (&*change.after, change.before.as_deref());
        let (node, set, nodes) = (name(after), set_of(after), server.objects("", "nodes"));
        let by_us = by.is_some_and(|sent| sent.process.starts_with("operator"));
        let written = Written { server, after, node: &node, set: &set, nodes: &nodes, by, by_us };
        if before.is_some_and(counts) && (change.deleted || !counts(after)) && !by_us {
            self.excused.insert(node.clone(), Instant::now() + self.memory);
        }
        let Some(before) = before else {
            self.finalized.remove(&node);
            return if set.is_empty() { None } else { self.check_new_node(written) };
        };
        self.drains.note_node(change);
        if let Some(found) = by.filter(|_| by_us).and_then(|sent| self.permits.note_node(after, before, sent))
        {
            return Some(found);
        }
        if change.deleted { self.check_gone_node(written) } else { self.check_changed_node(written, before) }
    }

    /// Most Nodes that a set may have now, and the least that have to be available.
    fn bounds(&mut self, set: &str) -> (i64, i64) {
        let now = Instant::now();
        let sizes = self.sizes.entry(set.to_owned()).or_default();
        sizes.retain(|(until, ..)| until.is_none_or(|until| until > now));
        (
            sizes.iter().map(|size| size.1).max().unwrap_or_default(),
            sizes.iter().map(|size| size.2).min().unwrap_or_default(),
        )
    }

    fn check_new_node(&mut self, written: Written<'_>) -> Option<String> {
        let Written { server, after, node, set, nodes, by, by_us } = written;
        let now = Instant::now();
        let (most, _) = self.bounds(set);
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
        self.creators.remove(node);
        if let Some(sent) = by.filter(|sent| by_us && !sent.is_given_up) {
            self.creators.insert(node.to_owned(), sent.process.clone());
            let created = self.created.entry(set.to_owned()).or_default();
            *created += 1;
            if let Some(most) = self.most_created.filter(|most| *created > *most) {
                return Some(format!("{node} is the Node number {created} of {set}, and {most} are enough"));
            }
        }
        let is_stray = !self.names.insert(node.to_owned()) || is_late;
        if is_stray {
            self.strays.push(now + self.memory);
        }
        let count = nodes.iter().filter(|one| set_of(one) == set).count();
        let count = i64::try_from(count - self.strays.len().min(count)).unwrap();
        // Without an election, nothing keeps back the creations of a process that was killed.
        let is_elected = self.leader.is_some();
        if by_us && is_elected && count > most {
            return Some(format!("{node} is one of {count} Nodes of {set}, and {most} are allowed"));
        }
        // No client sees a Node, and its pod CIDR, at the moment that another one makes it, or a request that arrives late.
        if by.is_none() || is_late {
            self.made_by_others.insert(node.to_owned(), now);
        }
        let is_unseen =
            |node: &str| self.made_by_others.get(node).is_some_and(|at| at.elapsed() < self.memory);
        if let Some(cidr) = after["spec"]["podCIDR"].as_str()
            && let Some(other) = self.cidrs.insert(cidr.to_owned(), node.to_owned())
            && is_elected
            && !is_stray
            && other != node
            && !is_unseen(&other)
            && nodes.iter().any(|one| name(one) == other)
        {
            return Some(format!("{node} and {other} have the pod CIDR {cidr}"));
        }
        None
    }

    fn check_gone_node(&mut self, written: Written<'_>) -> Option<String> {
        let Written { server, after, node, by, by_us, .. } = written;
        self.named.remove(node);
        self.cidrs.retain(|_, owner| *owner != node);
        self.finalized.extend(by.filter(|_| by_us).map(|sent| (node.to_owned(), sent.process.clone())));
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
        let attached = attachments.iter().find(|one| one["spec"]["nodeName"] == node);
        // Where the machine is lost, nothing unmounts it.
        if self.has_machine(node, by)
            && let Some(volume) = attached
            && !self.may_seem_lost(node)
            && !is_drained_for(server, after, self.time)
        {
            return Some(format!("{node} goes, and {} is attached to it", name(volume)));
        }
        let left = pods.iter().find(|pod| pod["spec"]["nodeName"] == node && !has_ended(pod));
        left.filter(|_| by_us && !self.may_seem_lost(node))
            .filter(|_| !is_drained_for(server, after, self.time - LAST_GRACE))
            .map(|pod| format!("{node} goes, and pod {} is on it", name(pod)))
    }

    fn check_changed_node(&mut self, written: Written<'_>, before: &Value) -> Option<String> {
        let Written { server, after, node, set, nodes, by, by_us } = written;
        let now = Instant::now();
        let (_, least) = self.bounds(set);
        if is_out_of_service(after)
            && !is_out_of_service(before)
            && (self.has_machine(node, by) || self.is_made_again(before))
            && !self.may_seem_lost(node)
            && !is_drained_for(server, after, self.time)
            && let Some(pod) = self.drains.forgotten(server, node)
        {
            return Some(format!("{node} loses its machine, and pod {pod} was not evicted"));
        }
        if by_us && foreign(before) != foreign(after) {
            return Some(format!("{node} loses what others gave it: {:?}", foreign(before)));
        }
        if is_ready(before) {
            self.ready.insert(node.to_owned(), now);
        }
        let was_ready = self.ready.get(node).is_some_and(|at| at.elapsed() < self.memory.max(LEASE));
        let has_taint = |object: &Value| taints(object).any(|key| key == "kube-node.io/uninitialized");
        if has_taint(before) && !has_taint(after) {
            // A Lease of the Node before it, of the same name, counts: kube-controller-manager reads no more than the name.
            let exists =
                server.object("coordination.k8s.io", "leases", Some("kube-node-lease"), node).is_some();
            let is_fresh = |at: &Instant| at.elapsed() < self.memory.max(LEASE);
            let has_lease = exists && self.renewed.get(node).is_some_and(is_fresh);
            if !has_lease || !was_ready {
                return Some(format!("{node} is initialized: Ready {was_ready}, Lease {has_lease}"));
            }
        }
        // Nor does a Node count that becomes available while it is being deleted.
        let is_leaving = |node: &Value| node["metadata"]["deletionTimestamp"].is_string();
        if is_leaving(after) && !is_leaving(before) {
            if !counts(after) {
                self.excused.insert(node.to_owned(), now + self.memory);
            }
            if is_named(server, after) {
                self.named.insert(node.to_owned());
            }
            if by_us {
                self.deleted.insert(uid(after).to_owned());
            }
        }
        let waits = |one: &Arc<Value>| name(one) == set && one["spec"]["minReadyTime"] == "7s";
        let waits = || server.objects("kube-node.io", "nodesets").iter().any(waits);
        if !is_ready(before) && is_ready(after) && !has_taint(before) {
            self.found.insert(node.to_owned(), now + self.memory.min(YOUNG));
        }
        if !counts(before) && counts(after) && (self.freezes || waits()) {
            let young = if self.is_certain { YOUNG_WITHOUT_FAULTS } else { YOUNG };
            self.young.insert(node.to_owned(), now + young);
        }
        let is_young = self.young.get(node).is_some_and(|until| *until > now);
        // A Node that never starts is available for schedulers of pods that tolerate its taint, and not for its set.
        let is_started = taints(before).all(|key| key != STARTUP && key != AGENT);
        let is_deleted = by_us && is_leaving(after) && !is_leaving(before);
        let goes = is_deleted || !is_draining(before) && is_draining(after);
        // A Node that was unavailable lately may have been so when its drain was decided.
        let seemed_lost =
            self.excused.get(node).is_some_and(|until| *until > now) || self.was_found_lately(node);
        let counted = counts(before) && is_started && !is_young && !seemed_lost;
        if goes && by_us && counted && !self.named.contains(node) {
            // A Node that cluster-autoscaler has named goes by itself, whenever that is. One that users delete works until its
            // turn comes, and so does one whose drain was refused.
            let has_permit =
                |one: &Value| self.deleted.contains(uid(one)) && !self.permits.was_refused(uid(one));
            let is_left =
                |one: &Value| counts(one) && !is_named(server, one) && !(is_deleted && has_permit(one));
            let of_set = || nodes.iter().filter(|one| set_of(one) == set);
            let left = of_set().filter(|one| is_left(one)).count();
            let excused = self.excused.iter().filter(|(name, until)| {
                **until > now
                    && **name != *node
                    && !of_set().any(|one| crate::objects::name(one) == **name && counts(one))
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

    /// Returns true if a watch may still show that a Node, whose kubelet reports again, does not work.
    fn was_found_lately(&self, node: &str) -> bool {
        self.found.get(node).is_some_and(|until| *until > Instant::now())
    }

    /// Returns true if an operator may have taken the machine of a Node for lost.
    pub(super) fn may_seem_lost(&self, node: &str) -> bool {
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

/// Returns true if a Node counts for the budget of its set.
fn counts(node: &Value) -> bool {
    is_available(node) && !is_drained(node) && taints(node).all(|key| key != AGENT)
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
