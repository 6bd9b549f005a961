//! Jobs of the coordinator: which is next, its requests, and what the answer changes.
//!
//! Inputs: the schedule, the parts, answers of the API server. Output: requests, for a machine's dedicated client if it has
//! one. Invariant: a job without requests is complete.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube_ext::transport::TransportError;

use super::{BATCH, Coordinator};
use crate::{
    DedicatedClient, boot,
    clock::Clock,
    kubelet::Kubelet,
    lookups,
    node_report::Report,
    pods::{Context, Host},
    request::Request,
    schedule::{Job, Pressure, Priority},
};

/// Longest wait before a machine without a free address is synced again.
const NO_ADDRESS: Duration = Duration::from_mins(1);

impl Coordinator {
    /// Next job with requests to send, and its machine's dedicated client if there is one. Jobs without requests
    /// complete on the way; after a batch of them None is returned, with the next job still due.
    pub fn next(
        &mut self,
        now: Clock,
        pressure: Pressure,
    ) -> Option<(Job, Vec<Request>, Option<DedicatedClient>)> {
        for _ in 0..BATCH {
            let job = self.schedule.next(now.at, pressure)?;
            if job.priority == Priority::Pod
                && (self.slow.has(|| self.pods.namespace_of(&job.uid))
                    || self.schedule.has(Priority::SlowPod, &job.uid))
            {
                self.schedule.done(job.priority, &job.uid);
                self.schedule.enqueue(Priority::SlowPod, &job.uid, now.at);
            } else if let Some(next) = self.prepared(job, now) {
                return Some(next);
            }
        }
        None
    }

    /// The same for pods in namespaces whose writes are not answered in time.
    pub fn next_slow(&mut self, now: Clock) -> Option<(Job, Vec<Request>, Option<DedicatedClient>)> {
        for _ in 0..BATCH {
            let job = self.schedule.next_slow(now.at)?;
            if let Some(next) = self.prepared(job, now) {
                return Some(next);
            }
        }
        None
    }

    /// A job with its requests; None for one without requests, which is complete.
    fn prepared(&mut self, job: Job, now: Clock) -> Option<(Job, Vec<Request>, Option<DedicatedClient>)> {
        let requests = self.prepare(&job, now).unwrap_or_default();
        if requests.is_empty() {
            self.schedule.done(job.priority, &job.uid);
            return None;
        }
        let dedicated = self.dedicated_client(&job);
        Some((job, requests, dedicated))
    }

    /// Completes a job whose requests, sent at `sent`, were answered at `now`.
    pub fn finish(&mut self, job: &Job, answer: Result<&str, &TransportError>, sent: Timestamp, now: Clock) {
        self.conclude(job, answer, sent, now);
        self.schedule.done(job.priority, &job.uid);
    }

    /// Requests of a job; None or empty if there is nothing to write.
    fn prepare(&mut self, Job { priority, uid, .. }: &Job, now: Clock) -> Option<Vec<Request>> {
        let request = match priority {
            Priority::Prompt | Priority::Lease | Priority::Renewal => {
                let Kubelet { machine, lease, .. } = self.kubelets.get(uid)?;
                lease.prepare(uid, machine, &mut self.schedule, now)
            }
            Priority::Status => self.prepare_status(uid, now),
            Priority::CsiNode => {
                let Kubelet { machine, csi_node, .. } = self.kubelets.get(uid)?;
                let is_wanted = self.csi_nodes.is_some() || machine.settings.csi_node;
                is_wanted.then(|| csi_node.prepare(uid, machine, &mut self.schedule, now))?
            }
            Priority::Pod | Priority::SlowPod => return self.prepare_pod(uid, now),
            Priority::Lookup => self.pods.prepare_lookup(uid, &mut self.schedule, now),
            Priority::Event => {
                let is_silent = |node: &str| {
                    let kubelet = self.by_node.get(node).and_then(|uid| self.kubelets.get(uid));
                    kubelet.is_some_and(|kubelet| kubelet.machine.is_silent(now))
                };
                self.events.prepare(is_silent)
            }
        };
        request.map(|request| vec![request])
    }

    fn prepare_status(&mut self, uid: &Arc<str>, now: Clock) -> Option<Request> {
        let Kubelet { machine, lease, status, .. } = self.kubelets.get_mut(uid)?;
        let view = Arc::clone(machine.view.as_ref()?);
        // A machine that got no port tries again as often as it writes its full status.
        if machine.endpoint.is_unserved()
            && status.is_due(now)
            && self.endpoints.open(uid, &mut machine.endpoint)
        {
            self.pods.enqueue_of(&machine.node, &mut self.schedule, now);
        }
        let Some((ip, port)) = self.endpoints.assign(uid, &mut machine.endpoint, &self.nodes) else {
            self.schedule.enqueue(Priority::Status, uid, now.at + NO_ADDRESS);
            return None;
        };
        let before = *machine.boot.get_or_insert_with(|| boot::first(uid, now.wall));
        let phase = machine.phase(now);
        let silent = machine.is_silent_in(phase);
        let was_silent = std::mem::replace(&mut machine.silent, silent);
        if let Some(client) = machine.dedicated.as_ref().filter(|_| silent != was_silent) {
            client.silent.send_replace(silent);
        }
        if let Some(left) = phase.changes_in {
            self.schedule.enqueue(Priority::Status, uid, now.at + left);
        }
        if silent {
            return None;
        }
        let boot = machine.boot_at(uid, now).unwrap_or(before);
        machine.boot = Some(boot);
        if was_silent {
            lease.enqueue(uid, machine, &mut self.schedule, now);
        }
        if was_silent || boot != before {
            self.pods.enqueue_of(&machine.node, &mut self.schedule, now);
        }
        // A machine seen for the first time has no earlier boot ID.
        if boot != before && view.boot_id.is_some() {
            self.events.record_reboot(&machine.node, boot, &mut self.schedule, now);
        }
        let (node, shape, healthy) = (&*machine.node, &*machine.shape, phase.healthy);
        let report = Report { node, uid, shape, ip, port, boot, healthy };
        status.prepare(&report, (&view, &self.nodes), &mut self.schedule, now)
    }

    fn prepare_pod(&mut self, uid: &Arc<str>, now: Clock) -> Option<Vec<Request>> {
        let host = Arc::clone(self.by_node.get(self.pods.node_of(uid)?)?);
        let Kubelet { machine, .. } = self.kubelets.get_mut(&host)?;
        let Some((ip, _)) = self.endpoints.assign(&host, &mut machine.endpoint, &self.nodes) else {
            self.schedule.enqueue(Priority::Pod, uid, now.at + NO_ADDRESS);
            return None;
        };
        let context = Context {
            schedule: &mut self.schedule,
            events: &mut self.events,
            addresses: &mut self.endpoints.addresses,
            now,
        };
        self.pods.prepare(uid, Host { uid: &host, machine, ip }, context)
    }

    /// Applies the answer to a job's requests.
    fn conclude(&mut self, job: &Job, answer: Result<&str, &TransportError>, sent: Timestamp, now: Clock) {
        let (uid, schedule) = (&job.uid, &mut self.schedule);
        match job.priority {
            Priority::Prompt | Priority::Lease | Priority::Renewal => {
                let Some(kubelet) = self.kubelets.get_mut(uid) else { return };
                if kubelet.lease.conclude(uid, &kubelet.machine, schedule, (answer, sent), now) {
                    let state = kubelet.state(uid);
                    self.notify(&state);
                }
            }
            Priority::Status => {
                let Some(Kubelet { machine, status, .. }) = self.kubelets.get_mut(uid) else { return };
                if machine.view.is_some() {
                    status.conclude((uid, &machine.node), &self.nodes, schedule, answer, now);
                }
            }
            Priority::CsiNode => {
                let Some(Kubelet { machine, csi_node, .. }) = self.kubelets.get_mut(uid) else { return };
                csi_node.conclude(uid, machine, schedule, answer, now);
            }
            Priority::Pod | Priority::SlowPod => {
                let is_late = matches!(answer, Err(TransportError::Late));
                self.slow.answered(|| self.pods.namespace_of(uid), is_late);
                self.pods.conclude(uid, answer, schedule, now);
            }
            Priority::Lookup => self.pods.lookups.conclude(uid, answer, schedule, now.at),
            Priority::Event => self.events.conclude(answer, schedule, now),
        }
    }

    /// Dedicated client for a job's requests; None if its machine uses the shared client.
    fn dedicated_client(&self, job: &Job) -> Option<DedicatedClient> {
        let uid: &str = match job.priority {
            Priority::Pod | Priority::SlowPod => self.by_node.get(self.pods.node_of(&job.uid)?)?,
            Priority::Lookup => lookups::machine_of(&job.uid)?,
            Priority::Event => self.by_node.get(self.events.node_under_way()?)?,
            _ => &job.uid,
        };
        self.kubelets.get(uid)?.machine.dedicated.clone()
    }
}
