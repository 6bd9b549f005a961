//! The checks of one schedule: they pass writes and changes to the invariants, and keep the first violation and the log.
//!
//! Inputs: each write with its process, as it is sent and as it was answered; the server's changes. Outputs: the first
//! violation, the log. Invariants: a change is checked once, with the write that made it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::take,
    time::Duration,
};

use http::{Method, StatusCode};
use kube_node_api::names::OPERATOR_NAMESPACE;
use kube_node_testing::{api_server::ApiServer, simulated_time};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    autoscaler_checks::ScalingChecks,
    cache_checks::{History, WatchedCaches},
    fault::Fault,
    invariants::Invariants,
    log::{Entry, Happened, SHOWN, about, line},
    objects::{is_available, name},
    patches::Patches,
    permits::OfProcess,
    preconditions,
    sent::Sent,
};

/// Lease duration of the operators' election.
pub const CLAIM: Duration = Duration::from_secs(15);
/// Longest time between two renewals of a Node's Lease under one leader (kubelet: 40 s).
pub const LEASE: Duration = Duration::from_secs(40);
/// Most requests within ten seconds; the first 6,000 schedules have less.
const MOST: u64 = 600;
/// Most reconciliations within ten seconds; schedule 1219 has 305.
const MOST_RECONCILIATIONS: u64 = 450;
/// Most writes of one object within ten seconds; the first 400 schedules have at most 28.
const MOST_OF_ONE: u64 = 50;

/// The checks of one schedule.
pub struct Checks {
    state: Mutex<State>,
    scaling: Mutex<ScalingChecks>,
    begun: Instant,
    prints_log: bool,
    prints_requests: bool,
}

#[derive(Default)]
struct State {
    revision: u64,
    /// Writes of the operators other than heartbeats and Events, and other than repetitions.
    changing_writes: u64,
    /// Those of which their process has not heard that they succeeded, by process, method and path, and how often each was
    /// sent since all has settled: they are repeated, and after several failures only minutes later.
    unheard: BTreeMap<[String; 3], u64>,
    /// Requests so far, their time, and their faults.
    sent: Vec<(Duration, Sent, Option<Fault>)>,
    patches: Patches,
    /// Leases of workers that never come back.
    lost: BTreeSet<String>,
    log: Vec<Entry>,
    violation: Option<String>,
    lately_requests: Lately,
    lately_reconciliations: Lately,
    /// Number of writes of each object, by path, and those of lately.
    writes: BTreeMap<String, (u64, Lately)>,
    invariants: Invariants,
    history: History,
}

/// Ten seconds of the run, and what was counted before them.
#[derive(Default)]
struct Lately {
    tens: u64,
    before: u64,
}

impl Lately {
    /// Increase within the present ten seconds of a count of which there are `count` now.
    fn increase(&mut self, at: Duration, count: u64) -> u64 {
        let tens = at.as_secs() / 10;
        if self.tens != tens {
            *self = Self { tens, before: count };
        }
        count - self.before
    }
}

/// Process and UID of a deletion.
fn deletion(sent: &Sent, body: &Value) -> OfProcess {
    (sent.process.clone(), body["preconditions"]["uid"].as_str().unwrap_or_default().to_owned())
}

impl Checks {
    pub fn new() -> Self {
        let is_set = |variable| std::env::var_os(variable).is_some();
        Self {
            state: Mutex::default(),
            scaling: Mutex::default(),
            begun: Instant::now(),
            prints_log: is_set("KUBE_NODE_LOG"),
            prints_requests: is_set("KUBE_NODE_REQUESTS"),
        }
    }

    /// The rules of scale requests.
    pub fn scaling(&self) -> MutexGuard<'_, ScalingChecks> {
        self.scaling.lock()
    }

    /// Counts a request, which has this fault.
    pub fn count(&self, sent: &Sent, fault: Option<Fault>) {
        let at = self.begun.elapsed();
        let lately = {
            let State { sent: all, lately_requests, .. } = &mut *self.state.lock();
            all.push((at, sent.clone(), fault));
            let count = all.len() as u64;
            lately_requests.increase(at, count - 1) + 1
        };
        if lately > MOST {
            self.violate(&format!(
                "{lately} requests within 10 s, the last of them {} {}",
                sent.method, sent.path
            ));
        }
        if self.prints_requests {
            eprintln!("{}", line(at, sent, fault));
        }
    }

    /// Checks the number of reconciliations so far.
    pub fn count_reconciliations(&self, count: u64) {
        let lately = self.state.lock().lately_reconciliations.increase(self.begun.elapsed(), count);
        if lately > MOST_RECONCILIATIONS {
            self.violate(&format!("{lately} reconciliations within 10 s"));
        }
    }

    /// Number of writes of the operators other than heartbeats and Events, and other than repetitions.
    pub fn changing_writes(&self) -> u64 {
        self.state.lock().changing_writes
    }

    /// Number of these writes now that all has settled: from now on, what is repeated more than once counts again.
    pub fn settle(&self) -> u64 {
        let mut state = self.state.lock();
        state.unheard.values_mut().for_each(|times| *times = 0);
        state.changing_writes
    }

    /// Says whether each write is answered, and each watch and clock shows what is.
    pub fn expect_answers(&self, is_certain: bool) {
        self.state.lock().invariants.is_certain = is_certain;
    }

    /// Says how many Nodes a set may make at most.
    pub fn expect_nodes(&self, most: Option<usize>) {
        self.state.lock().invariants.most_created = most;
    }

    /// Says for how long what was so before may still be acted on.
    pub fn remember_for(&self, time: Duration) {
        self.state.lock().invariants.memory = time;
    }

    /// A worker never comes back, so that nobody renews its Lease.
    pub fn lose_worker(&self, lease: &str) {
        self.state.lock().lost.insert(lease.to_owned());
    }

    /// Number of requests of the processes.
    pub fn requests(&self) -> u64 {
        self.state.lock().sent.len() as u64
    }

    /// Takes all changes and notes so far, in their order.
    pub fn take_log(&self) -> Vec<Entry> {
        take(&mut self.state.lock().log)
    }

    pub fn violation(&self) -> Option<String> {
        self.state.lock().violation.clone()
    }

    /// Notes what must not happen; the first counts.
    pub fn violate(&self, what: &str) {
        let at = self.begun.elapsed().as_secs_f64();
        let mut state = self.state.lock();
        if state.violation.is_none() {
            let lines = state.log.iter().rev().map(ToString::to_string);
            let mut shown: Vec<_> =
                lines.filter(|line| !line.contains(" changes Lease ")).take(SHOWN).collect();
            shown.reverse();
            let requests = about(what, &state.sent);
            state.violation = Some(format!("after {at:.3} s: {what}\n{}{requests}", shown.join("\n")));
        }
    }

    pub fn note(&self, what: &str) {
        self.record(Happened::Note(what.to_owned()));
    }

    /// A process sends a write: it must have the right to, and say which object it means.
    pub fn sent(&self, server: &ApiServer, sent: &Sent) {
        if sent.method != Method::POST {
            let lately = {
                let mut state = self.state.lock();
                let (count, lately) = state.writes.entry(sent.path.clone()).or_default();
                *count += 1;
                lately.increase(self.begun.elapsed(), *count - 1) + 1
            };
            if lately > MOST_OF_ONE {
                self.violate(&format!("{lately} writes of {} within 10 s", sent.path));
            }
        }
        let is_heartbeat = sent.path.contains("/leases")
            || sent.path.contains("/serviceaccounts/")
            || sent.path.starts_with("/api/v1/nodes/") && sent.path.ends_with("/status");
        // Revisions that no Node names any more are deleted once a minute.
        let is_tidying = sent.method == Method::DELETE && sent.path.contains("/controllerrevisions/");
        if !is_heartbeat && !is_tidying && !sent.path.contains("/events") {
            let mut state = self.state.lock();
            let is_known = state.unheard.contains_key(&sent.identity());
            let times = state.unheard.entry(sent.identity()).or_default();
            *times += 1;
            // The count is read only once all has settled.
            let counts = !is_known || *times > 1;
            state.changing_writes += u64::from(counts);
        }
        if sent.process.starts_with("operator")
            && !sent.path.contains("/leases")
            && !sent.path.contains("/events")
        {
            let leader = self.state.lock().invariants.leader.clone();
            if let Some(leader) =
                leader.filter(|leader| leader.holder == sent.process && leader.renewed.elapsed() > CLAIM)
            {
                let ago = leader.renewed.elapsed();
                self.violate(&format!(
                    "{} {} {}: its Lease was renewed {ago:?} ago",
                    sent.process, sent.method, sent.path
                ));
            }
            let lease = server.object(
                "coordination.k8s.io",
                "leases",
                Some(OPERATOR_NAMESPACE),
                "kube-node-operator",
            );
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
        let heartbeat = self.state.lock().invariants.check_heartbeat(sent);
        if let Some(violation) = heartbeat {
            self.violate(&violation);
        }
        // A Node whose deletion was accepted is not deleted once more.
        if sent.method == Method::DELETE
            && self.state.lock().invariants.permits.is_deleted(&deletion(sent, sent.json()))
        {
            self.violate(&format!("{} deletes {} once more", sent.process, sent.path));
        }
        if preconditions::is_missing(sent) {
            self.violate(&format!("{} {} has no precondition: {}", sent.method, sent.path, sent.json()));
        }
    }

    /// A process will hear that its write is refused.
    pub fn refused(&self, sent: &Sent) {
        let refused = self.state.lock().invariants.waits.refuse(sent);
        if let Some(refused) = refused {
            self.violate(&refused);
        }
        if sent.path.starts_with("/api/v1/nodes/") && sent.json()["spec"]["unschedulable"] == true {
            let uid = sent.json()["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            self.state.lock().invariants.permits.refused(uid);
        }
    }

    /// A process hears that its write succeeded.
    pub fn heard(&self, sent: &Sent) {
        let mut state = self.state.lock();
        state.unheard.remove(&sent.identity());
        state.patches.heard(sent);
        if sent.method == Method::DELETE
            && sent.path.starts_with("/api/v1/nodes/")
            && sent.json()["dryRun"].is_null()
        {
            let found = state.invariants.permits.deleted(&deletion(sent, sent.json()));
            drop(state);
            if let Some(found) = found {
                self.violate(&found);
            }
        }
    }

    /// Checks that a leader whose requests arrive renews the Lease of each Node whose machine works.
    pub fn watch_leases(&self, server: &ApiServer) {
        let state = self.state.lock();
        let Some(leader) = state.invariants.leader.clone().filter(|leader| leader.renewed.elapsed() < CLAIM)
        else {
            return;
        };
        if state.invariants.absent_workers(CLAIM).next().is_some() {
            return;
        }
        let since = state.invariants.workers_changed.max(Some(leader.since));
        let late = server.objects("", "nodes").into_iter().find(|node| {
            let stays = node["metadata"]["deletionTimestamp"].is_null();
            let last = state.invariants.renewed.get(&name(node)).copied().max(since);
            stays && is_available(node) && last.is_none_or(|last| last.elapsed() > LEASE)
        });
        drop(state);
        if let Some(node) = late {
            self.violate(&format!(
                "{} leads, and nobody has renewed the Lease of {} for {LEASE:?}",
                leader.holder,
                name(&node)
            ));
        }
    }

    /// Checks that rollouts halt and Nodes expire when they have to, where each write is answered.
    pub fn watch_rollouts(&self, server: &ApiServer) {
        let found = {
            let invariants = &self.state.lock().invariants;
            let now = simulated_time::time_of(self.begun);
            if invariants.is_certain {
                let reasons = &invariants.reasons;
                reasons.check_halts(server, now).or_else(|| reasons.check_expiry(server, now))
            } else {
                None
            }
        };
        if let Some(found) = found {
            self.violate(&found);
        }
    }

    /// Checks the caches of a process.
    pub fn check_caches(&self, process: &str, caches: &WatchedCaches, is_present: bool) {
        let difference = self.state.lock().history.difference(process, caches, is_present);
        if let Some(difference) = difference {
            self.violate(&format!("{process}: {difference}"));
        }
    }

    /// Says so if no operator leads.
    pub fn absent_leader(&self) -> Option<String> {
        self.state.lock().invariants.is_without_leader(CLAIM).then(|| "no operator leads".to_owned())
    }

    /// A worker that has not renewed its Lease lately.
    pub fn absent_worker(&self) -> Option<String> {
        let state = self.state.lock();
        let mut absent = state.invariants.absent_workers(CLAIM).filter(|lease| !state.lost.contains(*lease));
        absent.next().map(|lease| format!("{lease} is not renewed"))
    }

    /// Checks the changes since the last call. `by` is the write that made them; None: others did.
    pub fn check(&self, server: &ApiServer, by: Option<(&Sent, StatusCode)>) {
        let revision = self.state.lock().revision;
        for change in server.changes_since(revision) {
            let sent = by.map(|(sent, _)| sent);
            if change.after["kind"] != "Event" {
                self.record(Happened::Change(change.clone(), sent.map(|sent| sent.process.clone())));
            }
            let found = {
                let mut state = self.state.lock();
                state.invariants.time = simulated_time::time_of(self.begun);
                state.history.record(&change);
                if change.after["kind"] == "Node" {
                    let scaling = self.scaling();
                    state.invariants.drained = scaling.drained(server);
                    state.invariants.freezes = scaling.freezes;
                }
                state.invariants.check(server, &change, sent)
            };
            let of_scaling = self.scaling().check(server, &change, sent);
            if let Some(found) = found.or(of_scaling) {
                self.violate(&found);
            }
        }
        self.state.lock().revision = server.revision();
        let repeated = by.and_then(|(sent, code)| self.state.lock().patches.check(server, sent, code));
        if let Some(repeated) = repeated {
            self.violate(&repeated);
        }
        if let Some((sent, code)) = by
            && !code.is_success()
            && sent.method != Method::GET
        {
            self.note(&format!("{} {} {}: {code}", sent.process, sent.method, sent.path));
        }
    }

    fn record(&self, happened: Happened) {
        let entry = Entry(self.begun.elapsed(), happened);
        if self.prints_log {
            eprintln!("{entry}");
        }
        self.state.lock().log.push(entry);
    }
}
