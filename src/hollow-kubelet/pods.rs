//! Pods of all machines: pod admission, pod syncs and the requests that follow.

use std::{collections::BTreeMap, net::Ipv4Addr, ops::Bound, sync::Arc, time::Duration};

use http::Method;
use jiff::Timestamp;
use kube_ext::transport::{Body, TransportError};
use kube_node_api::PodEvents;
use kube_node_cache::{Cache, InternedStr, NodeView, PodView, View as _};
use serde_json::json;
use tokio::time::Instant;

use super::{
    addresses::{Addresses, Block, parse},
    clock::Clock,
    event_recorder::EventRecorder,
    lookups::Lookups,
    machine::Machine,
    node_status::REPAIR_INTERVAL,
    pod::{
        self, SyncContext, SyncResult,
        admission::{self, AdmitResult, AdmittedPod, NodeInfo},
        events, patch, script,
    },
    request::{Request, Writes},
    schedule::{Priority, Schedule},
};

/// Time for which the cached Node may be stale: a pod can be seen before the Node change that admitted it.
const DOUBT: Duration = Duration::from_secs(2);
/// Interval between checks for room or addresses that other pods have freed.
const ROOM_POLL: Duration = Duration::from_secs(1);
/// Event reason for an unreadable annotation.
const INVALID: &str = "InvalidAnnotation";
/// Event reason for a pod that gets no address.
const NO_SANDBOX: &str = "FailedCreatePodSandBox";

/// A pod bound to a machine.
struct Pod {
    /// The pod in the cache.
    view: Arc<PodView>,
    /// Address assigned here; the pod status may not show it yet.
    ip: Option<Ipv4Addr>,
    writes: Writes,
    /// Fingerprint of the last status written, and when it was sent; None if that write failed.
    sent: Option<(u64, Instant)>,
    /// True once the deletion was sent: nothing is left to do, even if finalizers keep the pod.
    deletion_sent: bool,
    admission: Admission,
    /// True once the event about the missing address was recorded.
    without_ip: bool,
}

/// Pod admission state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// Not decided here.
    New,
    /// Does not fit the Node in the cache, since this first check.
    Unfit(Timestamp),
    Admitted,
    /// Admitted, and being preempted since this time.
    Preempted(Timestamp),
}

impl Pod {
    /// Returns true if the pod was admitted, here or by an earlier process.
    fn is_admitted(&self) -> bool {
        self.view.status.start_time.is_some()
            || matches!(self.admission, Admission::Admitted | Admission::Preempted(_))
    }

    fn preempted(&self) -> Option<Timestamp> {
        match self.admission {
            Admission::Preempted(since) => Some(since),
            _ => None,
        }
    }

    /// Time from which on the status may be written again, if that is later than `now`: another process, which runs the same
    /// machine, has written over the last status.
    fn repaired_from(&self, now: Instant) -> Option<Instant> {
        let (sent, at) = self.sent?;
        let later = Some(at + REPAIR_INTERVAL).filter(|at| *at > now)?;
        (sent != pod::fingerprint(&self.view.status)).then_some(later)
    }
}

/// Parts of the process that pods share with machines.
pub struct Context<'a> {
    pub schedule: &'a mut Schedule,
    pub events: &'a mut EventRecorder,
    pub addresses: &'a mut Addresses,
    pub now: Clock,
}

/// Machine of a pod.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    pub uid: &'a str,
    pub machine: &'a Machine,
    pub ip: Ipv4Addr,
}

/// Pods of all machines of the process.
pub struct Pods {
    by_uid: BTreeMap<Arc<str>, Pod>,
    pub lookups: Lookups,
    /// Cache of the pods of all machines.
    pub cache: Arc<Cache<PodView>>,
}

impl Pods {
    /// Creates a part without pods; `cache` has the pods of all machines.
    pub fn new(cache: Arc<Cache<PodView>>) -> Self {
        Self { by_uid: BTreeMap::new(), lookups: Lookups::default(), cache }
    }

    /// Address assigned here to a pod.
    #[cfg(test)]
    pub fn assigned_ip(&self, uid: &str) -> Option<Ipv4Addr> {
        self.by_uid[uid].ip
    }

    /// Returns true if no machine has a pod.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }

    /// Name of a pod's Node.
    pub fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        Some(&self.by_uid.get(uid)?.view.node)
    }

    /// Namespace of a pod.
    pub fn namespace_of(&self, uid: &str) -> Option<&InternedStr> {
        Some(&self.by_uid.get(uid)?.view.namespace)
    }

    /// Handles a new or changed pod of a machine.
    pub fn update(&mut self, view: &Arc<PodView>, Context { schedule, events, addresses, now }: Context<'_>) {
        let before = self.by_uid.get(&view.uid);
        if before.is_none_or(|before| before.view.spec.hollow_annotations != view.spec.hollow_annotations) {
            let invalid =
                |text: String| events::of_pod(true, INVALID, format!("{text}; the default is used"));
            let warnings = script::invalid_annotations(&view.spec).map(invalid).collect();
            // The class's event setting does not apply: nothing else would report the mistake.
            events.record(view, warnings, PodEvents::Warnings, schedule, now);
        }
        let pod = self.by_uid.entry(Arc::clone(&view.uid)).or_insert_with(|| Pod {
            view: Arc::clone(view),
            ip: None,
            writes: Writes::default(),
            sent: None,
            deletion_sent: false,
            admission: Admission::New,
            without_ip: false,
        });
        pod.view = Arc::clone(view);
        if let Some(ip) = pod.ip.take_if(|_| view.is_finished()) {
            addresses.release(ip);
        }
        schedule.enqueue(Priority::Pod, &view.uid, now.at);
    }

    /// Removes a pod that no machine of this process runs any more.
    pub fn remove(&mut self, uid: &Arc<str>, schedule: &mut Schedule, addresses: &mut Addresses) {
        schedule.cancel(Priority::Pod, uid);
        schedule.cancel(Priority::SlowPod, uid);
        let Some(pod) = self.by_uid.remove(uid) else { return };
        if let Some(ip) = pod.ip.filter(|ip| held_ip(&pod.view) != Some(*ip)) {
            addresses.release(ip);
        }
    }

    /// Queues a sync of all pods of a Node.
    pub fn enqueue_of(&self, node: &str, schedule: &mut Schedule, now: Clock) {
        for pod in self.cache.by_index(node) {
            if self.by_uid.contains_key(&pod.uid) {
                schedule.enqueue(Priority::Pod, &pod.uid, now.at);
            }
        }
    }

    /// Queues a sync of the next `count` pods after the one with this UID; returns the last one, None if there is none.
    pub fn enqueue_after(
        &self,
        after: Option<&Arc<str>>,
        count: usize,
        schedule: &mut Schedule,
        now: Clock,
    ) -> Option<Arc<str>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (uid, _) in self.by_uid.range::<Arc<str>, _>((from, Bound::Unbounded)).take(count) {
            schedule.enqueue(Priority::Pod, uid, now.at);
            last = Some(uid);
        }
        last.cloned()
    }

    /// Requests that bring a pod's status up to date; None if there is nothing to write yet.
    pub fn prepare(
        &mut self,
        uid: &Arc<str>,
        host: Host<'_>,
        Context { schedule, events, addresses, now }: Context<'_>,
    ) -> Option<Vec<Request>> {
        // A machine without a Node runs no pods.
        let node = host.machine.view.as_ref()?;
        let phase = host.machine.phase(now);
        if host.machine.is_silent_in(phase) {
            // The sync of the node status that ends a phase may come too late to see a short one.
            if let Some(left) = phase.changes_in {
                schedule.enqueue(Priority::Pod, uid, now.at + left);
            }
            return None;
        }
        let pod = self.by_uid.get(uid)?;
        let view = Arc::clone(&pod.view);
        if pod.deletion_sent || pod.writes.outrun(&view.resource_version, &self.cache) {
            return None;
        }
        if let Some(later) = pod.repaired_from(now.at) {
            schedule.enqueue(Priority::Pod, uid, later);
            return None;
        }
        let is_new = !pod.is_admitted() && view.deleted_at.is_none() && !view.is_finished();
        let result = if is_new {
            let NodeView { labels, taints, .. } = &**node;
            let allocatable = host.machine.shape.allocatable_on(node);
            let info = NodeInfo { labels, taints, allocatable: &allocatable };
            self.admit(uid, &view, info, schedule, now)?
        } else {
            AdmitResult::Admitted
        };
        let defaults = &host.machine.settings.containers;
        let result = if let AdmitResult::Rejected { reason, message, .. } = result {
            pod::rejected(&view, reason, message, now.wall)
        } else {
            let cidr = node.pod_cidr.as_deref().and_then(Block::of_cidr);
            let booted = host.machine.rebooted(host.uid, now);
            let Some(ip) = self.ip_of(uid, host.ip, (cidr, booted), addresses) else {
                if let Some(warning) = self.without_ip(uid, cidr) {
                    events.record(&view, vec![warning], PodEvents::Warnings, schedule, now);
                }
                if self.cache.in_sync() {
                    schedule.enqueue(Priority::Pod, uid, now.at + ROOM_POLL);
                }
                return None;
            };
            let machine = host.machine.dedicated.as_ref().map(|_| host.uid);
            let missing = if view.deleted_at.is_none() && pod::is_starting(&view) {
                self.lookups.missing(&view, machine, schedule, now.at)?
            } else {
                Vec::new()
            };
            let preempted = self.by_uid.get(uid).and_then(Pod::preempted);
            let context =
                SyncContext { host_ip: host.ip, ip, defaults, booted, preempted, missing: &missing };
            pod::sync_pod(&view, context, now.wall)
        };
        let setting = defaults.events.unwrap_or_default();
        if setting != PodEvents::None {
            events.record(&view, events::of(&view, &result, defaults), setting, schedule, now);
        }
        let SyncResult { status, failure, delete, again, .. } = result;
        let pod = self.by_uid.get_mut(uid)?;
        pod.deletion_sent = delete;
        if let Some(status) = &status {
            pod.sent = Some((pod::fingerprint(status), now.at));
        }
        if let Some(again) = again {
            schedule.enqueue(Priority::Pod, uid, now.until(again));
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", view.namespace, view.name);
        let write = status.map(|status| Request {
            method: Method::PATCH,
            path: format!("{path}/status"),
            body: Body::StrategicPatch(patch::patch(&view, &status, failure.as_ref())),
        });
        let delete =
            delete.then(|| Request { method: Method::DELETE, path, body: Body::Options(deletion(&view)) });
        Some(write.into_iter().chain(delete).collect())
    }

    /// Applies the answer to the requests of a pod.
    pub fn conclude(
        &mut self,
        uid: &Arc<str>,
        answer: Result<&str, &TransportError>,
        schedule: &mut Schedule,
        now: Clock,
    ) {
        let Some(pod) = self.by_uid.get_mut(uid) else { return };
        let failures = &mut pod.writes.failures;
        let wait = match answer {
            Ok(version) => return pod.writes.succeeded(version, &self.cache),
            // A deleted pod leaves the cache, and this state with it.
            Err(error) if error.code() == Some(404) => failures.add(),
            Err(error) => failures.add_logged(&pod.view.key(), "pod status", error),
        };
        (pod.deletion_sent, pod.sent) = (false, None);
        schedule.enqueue(Priority::Pod, uid, now.at + wait);
    }

    /// Request of a lookup; None once no pod waits for the object.
    pub fn prepare_lookup(&mut self, key: &str, schedule: &mut Schedule, now: Clock) -> Option<Request> {
        let pods = &self.by_uid;
        let waits = |uid: &str| {
            pods.get(uid).is_some_and(|pod| pod.view.deleted_at.is_none() && pod::is_starting(&pod.view))
        };
        self.lookups.prepare(key, waits, schedule, now.at)
    }

    /// Event about a pod without an address, recorded once, as a kubelet does for its network plugin.
    fn without_ip(&mut self, uid: &str, cidr: Option<Block>) -> Option<events::PendingEvent> {
        let pod = self.by_uid.get_mut(uid).filter(|_| self.cache.in_sync())?;
        if std::mem::replace(&mut pod.without_ip, true) {
            return None;
        }
        let block = cidr?;
        let message =
            format!("Failed to create pod sandbox: no IP addresses available in range set: {block}");
        Some(events::of_pod(true, NO_SANDBOX, &message))
    }

    /// Address that a pod has or gets; None if none is free, or while the addresses in use are not all known.
    fn ip_of(
        &mut self,
        uid: &str,
        host_ip: Ipv4Addr,
        (cidr, booted): (Option<Block>, Option<Timestamp>),
        addresses: &mut Addresses,
    ) -> Option<Ipv4Addr> {
        let pod = self.by_uid.get_mut(uid)?;
        let view = &*pod.view;
        if view.spec.host_network {
            return Some(host_ip);
        }
        let shown = parse(view.status.pod_ip.as_deref());
        // A pod loses its address with its sandbox; no status shows yet the address assigned here since then.
        let known = if pod::needs_another_sandbox(view, booted) {
            pod.ip.filter(|ip| shown != Some(*ip))
        } else {
            shown.or(pod.ip)
        };
        if known.is_some() {
            return known;
        }
        if view.deleted_at.is_some() || view.is_finished() {
            // The pod never ran and never will, so it needs no address.
            return Some(Ipv4Addr::UNSPECIFIED);
        }
        if self.cache.in_sync() {
            pod.ip = addresses.for_pod(cidr);
        }
        pod.ip
    }

    /// Decides pod admission; None if another sync, which is queued, decides.
    fn admit(
        &mut self,
        uid: &Arc<str>,
        view: &PodView,
        node: NodeInfo<'_>,
        schedule: &mut Schedule,
        now: Clock,
    ) -> Option<AdmitResult> {
        let result = admission::admit(view, node, &self.admitted_beside(view));
        let pod = self.by_uid.get_mut(uid)?;
        let again = match &result {
            AdmitResult::Admitted => {
                pod.admission = Admission::Admitted;
                return Some(result);
            }
            AdmitResult::Rejected { by_node, .. } => {
                let since = match pod.admission {
                    Admission::Unfit(since) => since,
                    _ => now.wall,
                };
                let until = since + DOUBT;
                if !by_node || until <= now.wall {
                    return Some(result);
                }
                pod.admission = Admission::Unfit(since);
                now.until(until)
            }
            AdmitResult::Preempts(victims) => {
                for victim in victims {
                    if let Some(pod) = self.by_uid.get_mut(victim) {
                        pod.admission = Admission::Preempted(now.wall);
                        schedule.enqueue(Priority::Pod, victim, now.at);
                    }
                }
                now.at + ROOM_POLL
            }
            AdmitResult::Waits => now.at + ROOM_POLL,
        };
        schedule.enqueue(Priority::Pod, uid, again);
        None
    }

    /// Pods admitted on the machine of `view`, without that pod.
    fn admitted_beside(&self, view: &PodView) -> Vec<AdmittedPod> {
        let all = self.cache.by_index(&view.node);
        all.iter()
            .filter(|other| other.uid != view.uid)
            .filter_map(|other| self.by_uid.get(&other.uid))
            .filter(|pod| pod.is_admitted() && !pod.deletion_sent && !pod.view.is_finished())
            .map(|pod| AdmittedPod { pod: Arc::clone(&pod.view), is_preempted: pod.preempted().is_some() })
            .collect()
    }
}

/// Address that a pod holds exclusively: none for a finished pod or one on the host network.
pub fn held_ip(pod: &PodView) -> Option<Ipv4Addr> {
    parse(pod.status.pod_ip.as_deref()).filter(|_| !pod.spec.host_network && !pod.is_finished())
}

/// Options of the final deletion: immediate, and only with the same UID.
fn deletion(pod: &PodView) -> Vec<u8> {
    json!({
        "apiVersion": "v1", "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": { "uid": *pod.uid },
    })
    .to_string()
    .into_bytes()
}
