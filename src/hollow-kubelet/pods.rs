//! Pods of all machines: pod admission, pod syncs and the requests that follow.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use http::Method;
use jiff::Timestamp;
use kube_ext::wire::{Body, WireError};
use kube_node_api::PodEvents;
use kube_node_cache::PodView;
use kube_node_planner::boot;
use serde_json::json;

use super::{
    addresses::Block,
    clock::{Clock, to_seconds},
    endpoint::address,
    machine::Writes,
    pod::{
        self, Place, Step,
        admission::{self, Neighbour, Verdict},
        events, patch, script,
    },
    request::{Request, backoff},
    schedule::Priority,
    state::State,
    sync::complain,
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
#[derive(Debug)]
pub struct Pod {
    /// The pod in the cache.
    pub view: Arc<PodView>,
    /// Address assigned here; the pod status may not show it yet.
    pub ip: Option<Ipv4Addr>,
    writes: Writes,
    /// True once the deletion was sent: nothing is left to do, even if finalizers keep the pod.
    dismissed: bool,
    standing: PodAdmission,
    /// True once the event about the missing address was recorded.
    without_ip: bool,
}

/// Pod admission state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodAdmission {
    /// Not decided here.
    New,
    /// Does not fit the Node in the cache, since this first check.
    Doubted(Timestamp),
    Admitted,
    /// Admitted, and being preempted since this time.
    MakesRoom(Timestamp),
}

impl Pod {
    fn new(view: &Arc<PodView>) -> Self {
        Self {
            view: Arc::clone(view),
            ip: None,
            writes: Writes::default(),
            dismissed: false,
            standing: PodAdmission::New,
            without_ip: false,
        }
    }

    /// Returns true if the pod was admitted, here or by an earlier process.
    fn is_admitted(&self) -> bool {
        self.view.status.start_time.is_some()
            || matches!(self.standing, PodAdmission::Admitted | PodAdmission::MakesRoom(_))
    }
}

impl State {
    /// Handles a new or changed pod.
    pub fn saw_pod(&mut self, view: &Arc<PodView>, now: Clock) {
        if let Some(ip) = held(view) {
            self.addresses.claim(ip);
        }
        if self.machine_of(&view.node).is_none() {
            return;
        }
        let before = self.pods.get(&view.uid);
        if before.is_none_or(|before| before.view.spec.hollow_annotations != view.spec.hollow_annotations) {
            let mistake =
                |text: String| events::of_pod(true, INVALID, &format!("{text}; the default is used"));
            let notes = script::mistakes(&view.spec).map(mistake).collect();
            // The class's event setting does not apply: nothing else would report the mistake.
            self.tell_people(view, notes, PodEvents::Warnings, now);
        }
        let pod = self.pods.entry(Arc::clone(&view.uid)).or_insert_with(|| Pod::new(view));
        pod.view = Arc::clone(view);
        if let Some(ip) = pod.ip.take_if(|_| view.is_finished()) {
            self.addresses.release(ip);
        }
        self.schedule.ask(Priority::Pod, &view.uid, now.at);
    }

    /// Handles a changed pod. The address of a lost sandbox becomes free: the pod has finished and may still
    /// show the address, or it shows another one.
    pub fn changed_pod(&mut self, before: &PodView, now: &PodView) {
        if let Some(ip) = held(before)
            && (now.is_finished() || held(now).is_some_and(|other| other != ip))
        {
            self.addresses.release(ip);
        }
    }

    /// Handles a removed pod.
    pub fn lost_pod(&mut self, view: &PodView) {
        if let Some(ip) = held(view) {
            self.addresses.release(ip);
        }
        self.forget_pod(&view.uid);
    }

    /// Removes a pod that no machine of this process carries any more.
    pub(super) fn forget_pod(&mut self, uid: &Arc<str>) {
        self.schedule.cancel(Priority::Pod, uid);
        let Some(pod) = self.pods.remove(uid) else { return };
        if let Some(ip) = pod.ip.filter(|ip| held(&pod.view) != Some(*ip)) {
            self.addresses.release(ip);
        }
    }

    /// Queues a sync of all pods of a Node.
    pub(super) fn ask_pods(&mut self, node: &str, now: Clock) {
        for pod in self.pod_cache.by_index(node) {
            if self.pods.contains_key(&pod.uid) {
                self.schedule.ask(Priority::Pod, &pod.uid, now.at);
            }
        }
    }

    pub(super) fn prepare_pod(&mut self, uid: &Arc<str>, now: Clock) -> Vec<Request> {
        self.pod_requests(uid, now).unwrap_or_default()
    }

    fn pod_requests(&mut self, uid: &Arc<str>, now: Clock) -> Option<Vec<Request>> {
        let view = Arc::clone(&self.pods.get(uid)?.view);
        let owner = Arc::clone(self.machine_of(&view.node)?);
        let (host_ip, _) = self.address_of(&owner)?;
        let machine = self.machines.get(&owner)?;
        // A machine without a Node runs no pods. A silent machine syncs its pods when it speaks again.
        let cidr = machine.view.as_ref()?.pod_cidr.as_deref().and_then(Block::of_cidr);
        if machine.is_silent(machine.phase(now)) {
            return None;
        }
        let booted =
            machine.boot_at(&owner, now).and_then(|boot| boot::rebooted(&owner, boot)).map(to_seconds);
        let settings = Arc::clone(&machine.settings);
        let pod = self.pods.get(uid)?;
        if pod.dismissed || pod.writes.outrun(&view.resource_version, &self.pod_cache) {
            return None;
        }
        let is_new = !pod.is_admitted() && view.deleted_at.is_none() && !view.is_finished();
        let admission = if is_new { self.admission(uid, &view, &owner, now)? } else { Admission::Granted };
        let step = match admission {
            Admission::Later => return None,
            Admission::Refused { reason, message } => pod::rejected(&view, reason, message, now.wall),
            Admission::Granted => {
                let Some(ip) = self.ip_of(uid, &view, host_ip, (cidr, booted)) else {
                    self.waits_for_ip(uid, &view, cidr, now);
                    return None;
                };
                let preempted = match self.pods.get(uid)?.standing {
                    PodAdmission::MakesRoom(since) => Some(since),
                    _ => None,
                };
                pod::step(
                    &view,
                    Place { host_ip, ip, defaults: &settings.containers, booted, preempted },
                    now.wall,
                )
            }
        };
        let wanted = settings.containers.events.unwrap_or_default();
        if wanted != PodEvents::None {
            self.tell_people(&view, events::of(&view, &step, &settings.containers), wanted, now);
        }
        let Step { status, why, delete, again, stopping: _, sandbox_changed: _ } = step;
        self.pods.get_mut(uid)?.dismissed = delete;
        if let Some(again) = again {
            self.schedule.ask(Priority::Pod, uid, now.until(again));
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", view.namespace, view.name);
        let write = status.map(|status| Request {
            method: Method::PATCH,
            path: format!("{path}/status"),
            body: Body::StrategicPatch(patch::patch(&view, &status, why.as_ref())),
        });
        let delete = delete.then(|| Request {
            method: Method::DELETE,
            path: path.clone(),
            body: Body::Options(deletion(&view)),
        });
        Some(write.into_iter().chain(delete).collect())
    }

    /// Queues another sync of a pod without an address and records one event, as a kubelet does for its
    /// network plugin.
    fn waits_for_ip(&mut self, uid: &Arc<str>, view: &Arc<PodView>, cidr: Option<Block>, now: Clock) {
        if !self.pod_cache.in_sync() {
            return;
        }
        let told = self.pods.get_mut(uid).is_none_or(|pod| std::mem::replace(&mut pod.without_ip, true));
        if let Some(block) = cidr.filter(|_| !told) {
            let message =
                format!("Failed to create pod sandbox: no IP addresses available in range set: {block}");
            let note = events::of_pod(true, NO_SANDBOX, &message);
            self.tell_people(view, vec![note], PodEvents::Warnings, now);
        }
        self.schedule.ask(Priority::Pod, uid, now.at + ROOM_POLL);
    }

    /// Address that a pod has or gets; None if none is free, or while the addresses in use are not all known.
    fn ip_of(
        &mut self,
        uid: &Arc<str>,
        view: &PodView,
        host_ip: Ipv4Addr,
        (cidr, booted): (Option<Block>, Option<Timestamp>),
    ) -> Option<Ipv4Addr> {
        if view.spec.host_network {
            return Some(host_ip);
        }
        let pod = self.pods.get_mut(uid)?;
        let shown = address(view.status.pod_ip.as_deref());
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
        if self.pod_cache.in_sync() {
            pod.ip = self.addresses.for_pod(cidr);
        }
        pod.ip
    }

    /// Decides pod admission; None if the pod or its machine does not exist.
    fn admission(
        &mut self,
        uid: &Arc<str>,
        view: &Arc<PodView>,
        owner: &Arc<str>,
        now: Clock,
    ) -> Option<Admission> {
        let verdict = self.verdict(view, owner)?;
        let pod = self.pods.get_mut(uid)?;
        let again = match verdict {
            Verdict::Admitted => {
                pod.standing = PodAdmission::Admitted;
                return Some(Admission::Granted);
            }
            Verdict::Rejected { reason, message, by_node } => {
                let since = match pod.standing {
                    PodAdmission::Doubted(since) => since,
                    _ => now.wall,
                };
                let until = since + DOUBT;
                if !by_node || until <= now.wall {
                    return Some(Admission::Refused { reason, message });
                }
                pod.standing = PodAdmission::Doubted(since);
                now.until(until)
            }
            Verdict::Preempts(victims) => {
                for victim in victims {
                    if let Some(pod) = self.pods.get_mut(&victim) {
                        pod.standing = PodAdmission::MakesRoom(now.wall);
                        self.schedule.ask(Priority::Pod, &victim, now.at);
                    }
                }
                now.at + ROOM_POLL
            }
            Verdict::Waits => now.at + ROOM_POLL,
        };
        self.schedule.ask(Priority::Pod, uid, again);
        Some(Admission::Later)
    }

    /// Admission verdict of the pod's machine.
    fn verdict(&self, view: &PodView, owner: &Arc<str>) -> Option<Verdict> {
        let machine = self.machines.get(owner)?;
        let node = machine.view.as_ref()?;
        let all = self.pod_cache.by_index(&view.node);
        let known =
            all.iter().filter(|other| other.uid != view.uid).filter_map(|other| self.pods.get(&other.uid));
        let carried = known.filter(|pod| pod.is_admitted() && !pod.dismissed && !pod.view.is_finished());
        let neighbours: Vec<Neighbour> = carried
            .map(|pod| Neighbour {
                pod: Arc::clone(&pod.view),
                leaves: matches!(pod.standing, PodAdmission::MakesRoom(_)),
            })
            .collect();
        let room = &machine.shape.room;
        let machine = admission::Machine { labels: &node.labels, taints: &node.taints, allocatable: room };
        Some(admission::admit(view, machine, &neighbours))
    }

    pub(super) fn conclude_pod(&mut self, uid: &Arc<str>, answer: Result<&str, &WireError>, now: Clock) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        match answer {
            Ok(version) => pod.writes.wrote(self.pod_cache.written(version)),
            Err(error) => {
                pod.dismissed = false;
                pod.writes.failures = pod.writes.failures.saturating_add(1);
                // A deleted pod leaves the cache, and this state with it.
                if error.code() != Some(404) {
                    complain(&pod.view.name, "pod status", pod.writes.failures, error);
                }
                self.schedule.ask(Priority::Pod, uid, now.at + backoff(pod.writes.failures));
            }
        }
    }
}

/// Outcome of pod admission in one sync.
enum Admission {
    Granted,
    /// Undecided; another sync is queued.
    Later,
    Refused {
        reason: String,
        message: String,
    },
}

/// Address that a pod holds exclusively: none for a finished pod or one on the host network.
fn held(pod: &PodView) -> Option<Ipv4Addr> {
    address(pod.status.pod_ip.as_deref()).filter(|_| !pod.spec.host_network && !pod.is_finished())
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
