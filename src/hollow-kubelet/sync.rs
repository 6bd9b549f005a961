//! Syncs of all jobs: the requests of each, and the state changes that follow from the answer.

use std::{sync::Arc, time::Duration};

use http::Method;
use jiff::Timestamp;
use kube_ext::wire::{Body, WireError};
use kube_node_api::names;
use kube_node_planner::boot;
use tracing::warn;

use super::{
    REPORT,
    clock::Clock,
    node_status::Report,
    request::{Request, backoff, spread},
    schedule::{Job, Priority},
    state::State,
};

/// Interval of Lease renewals: a quarter of a Lease's lifetime, as in a kubelet.
pub(super) const RENEW: Duration = Duration::from_secs(10);
/// Longest wait before a machine without a free address is synced again.
const NO_ADDRESS: Duration = Duration::from_mins(1);

impl State {
    /// Requests of a job; empty if there is nothing to write.
    pub(super) fn prepare(&mut self, job: &Job, now: Clock) -> Vec<Request> {
        match job.priority {
            Priority::Prompt | Priority::Lease | Priority::Renewal => {
                self.prepare_lease(&job.uid, now).into_iter().collect()
            }
            Priority::Status => self.prepare_status(&job.uid, now).into_iter().collect(),
            Priority::Pod => self.prepare_pod(&job.uid, now),
            Priority::Event => self.prepare_event(now).into_iter().collect(),
        }
    }

    /// Applies the answer to a job's requests.
    pub(super) fn conclude(
        &mut self,
        job: &Job,
        answer: Result<&str, &WireError>,
        sent: Timestamp,
        now: Clock,
    ) {
        match job.priority {
            Priority::Prompt | Priority::Lease | Priority::Renewal => {
                self.conclude_lease(job, answer, sent, now);
            }
            Priority::Status => self.conclude_status(&job.uid, answer, now),
            Priority::Pod => self.conclude_pod(&job.uid, answer, now),
            Priority::Event => self.conclude_event(answer, now),
        }
    }

    fn prepare_lease(&mut self, uid: &Arc<str>, now: Clock) -> Option<Request> {
        let machine = self.machines.get(uid)?;
        // A machine without its Node needs no Lease.
        let view = machine.view.as_ref()?;
        // A kubemark machine, which is a pod, runs this code too, but with its own identity.
        let is_shared = machine.own.is_none() && view.label(names::LABEL_NODE_CONTROLLER) == Some("hollow");
        let phase = machine.phase(now);
        if machine.is_silent(phase) {
            if let Some(left) = phase.changes_in {
                self.schedule.ask(machine.lease_lane(), uid, now.at + left);
            }
            return None;
        }
        Some(machine.lease.request(&machine.node, uid, is_shared, now.wall))
    }

    fn conclude_lease(&mut self, job: &Job, answer: Result<&str, &WireError>, sent: Timestamp, now: Clock) {
        let Some(machine) = self.machines.get_mut(&job.uid) else { return };
        let is_first = !machine.lease.is_ours();
        let at_once = machine.lease.answered(answer, sent);
        let at = match answer {
            Ok(_) => {
                machine.lease_failures = 0;
                // The spread keeps machines created together apart. No renewal is due later than RENEW: a due
                // renewal gives way to other jobs until its Lease has reached the maximum age.
                now.since(sent) + spread(RENEW, if is_first { 0.5 } else { 0.96 })
            }
            Err(_) if at_once => now.at,
            Err(error) => {
                machine.lease_failures = machine.lease_failures.saturating_add(1);
                complain(&machine.node, "Lease", machine.lease_failures, error);
                now.at + backoff(machine.lease_failures)
            }
        };
        if machine.view.is_some() {
            self.schedule.ask(machine.lease_lane(), &job.uid, at);
        }
        if is_first && answer.is_ok() {
            let news = super::shown((&job.uid, machine));
            self.watchers.retain(|watcher| watcher.send(news.clone()).is_ok());
        }
    }

    fn prepare_status(&mut self, uid: &Arc<str>, now: Clock) -> Option<Request> {
        let machine = self.machines.get(uid)?;
        let view = Arc::clone(machine.view.as_ref()?);
        // A machine that got no port tries again as often as it writes its full status.
        if machine.ip.is_some() && machine.port == 0 && machine.is_due(now) {
            let node = Arc::clone(&machine.node);
            if self.open_door(uid) {
                self.ask_pods(&node, now);
            }
        }
        let Some((ip, port)) = self.address_of(uid) else {
            self.schedule.ask(Priority::Status, uid, now.at + NO_ADDRESS);
            return None;
        };
        let machine = self.machines.get_mut(uid)?;
        let before = *machine.boot.get_or_insert_with(|| boot::first(uid, now.wall));
        let phase = machine.phase(now);
        let silent = machine.is_silent(phase);
        let was_silent = std::mem::replace(&mut machine.silent, silent);
        if let Some(own) = machine.own.as_ref().filter(|_| silent != was_silent) {
            own.silent.send_replace(silent);
        }
        if let Some(left) = phase.changes_in {
            self.schedule.ask(Priority::Status, uid, now.at + left);
        }
        if silent {
            return None;
        }
        let boot = machine.boot_at(uid, now).unwrap_or(before);
        machine.boot = Some(boot);
        let node = Arc::clone(&machine.node);
        let report = Report {
            node: Arc::clone(&node),
            uid: Arc::clone(uid),
            shape: Arc::clone(&machine.shape),
            ip,
            port,
            boot,
            healthy: phase.healthy,
        };
        // The cached Node may be older than the last write; its next change queues another sync.
        let outrun = machine.status.outrun(&view.resource_version, &self.node_cache);
        let is_due = machine.is_due(now);
        let says_nothing_new = outrun || report.is_shown_by(&view);
        if let Some(at) = machine.report_at.filter(|_| !is_due && says_nothing_new) {
            self.schedule.ask(Priority::Status, uid, at);
        }
        if was_silent {
            self.schedule.ask(machine.lease_lane(), uid, machine.lease.due(now));
        }
        if was_silent || boot != before {
            self.ask_pods(&node, now);
        }
        // A machine seen for the first time has no earlier boot ID.
        if boot != before && view.boot_id.is_some() {
            self.tell_of_reboot(&node, boot, now);
        }
        (is_due || !says_nothing_new).then(|| Request {
            method: Method::PATCH,
            path: format!("/api/v1/nodes/{node}/status"),
            body: Body::StrategicPatch(report.patch(&view, now.wall)),
        })
    }

    fn conclude_status(&mut self, uid: &Arc<str>, answer: Result<&str, &WireError>, now: Clock) {
        let Some(machine) = self.machines.get_mut(uid) else { return };
        if machine.view.is_none() {
            return;
        }
        let at = match answer {
            Ok(version) => {
                machine.status.wrote(self.node_cache.written(version));
                let at = now.at + spread(REPORT.mul_f64(1.5), 1.0 / 3.0);
                machine.report_at = Some(at);
                at
            }
            Err(error) => {
                machine.status.failures = machine.status.failures.saturating_add(1);
                complain(&machine.node, "status", machine.status.failures, error);
                now.at + backoff(machine.status.failures)
            }
        };
        self.schedule.ask(Priority::Status, uid, at);
    }
}

/// Logs the first of consecutive write failures. Overload or absence of the API server concerns every machine
/// and is not logged here.
pub(super) fn complain(name: &str, what: &str, failures: u8, error: &WireError) {
    if failures == 1 && !error.is_overload() {
        warn!(name, error = error as &dyn std::error::Error, "cannot write the {what}, trying again");
    }
}
