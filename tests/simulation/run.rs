//! Runs one schedule: the operators, what surrounds them, the users' actions, and what has to hold in the end.
//!
//! Inputs: a schedule. Outputs: the log and the first violation. Invariants: all clocks and random numbers come from the
//! schedule's seed; a task that reads others panics.

use std::{
    cell::Cell,
    sync::{Arc, Once},
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use http::Method;
use kube_ext::environment::{Environment, within};
use kube_node_api::names::{OPERATOR_NAMESPACE, OPERATOR_SERVICE_ACCOUNT};
use kube_node_testing::{api_server::ApiServer, simulated_time::SimulatedTime};
use serde_json::json;
use tokio::{sync::Notify, time::Instant};

use crate::{
    actions::CLASSES,
    autoscaler::ClusterAutoscaler,
    checks::Checks,
    desired_state::DesiredState,
    fault::Fault,
    faults::Faults,
    kubemark::HostingCluster,
    log::Entry,
    others::{Others, REVISIONS},
    people::revision_of_another_class,
    process::{self, Host, Program},
    reconciliations,
    schedule::{Action, Schedule},
};

/// Time within which everything has to settle afterwards: longer than any back-off that has begun, and shorter than the
/// time between two statuses of a Node, which would wake what sleeps. Of 1,000 schedules one took two minutes.
const SETTLES: Duration = Duration::from_mins(3);
/// Time beyond it in which cluster-autoscaler asks, after a rollout, for Nodes in whose place a surge was. It may also have
/// taken new Nodes of that rollout for too many, one after the other.
const SCALES: Duration = Duration::from_secs(90);
/// Longest time for which the operator acts on an old state: without faults, with those that pass with one more request,
/// and with watches that freeze.
const DELAYS: [Duration; 3] = [Duration::from_secs(10), Duration::from_mins(1), Duration::from_secs(150)];
/// Time after which nothing is written any more.
const QUIET_AFTER: Duration = Duration::from_secs(20);
/// Time after which a request that was lost is sent again at the latest.
const LONGEST_TIMEOUT: Duration = Duration::from_mins(1);
/// Time for which it has to stay so.
const STAYS: Duration = Duration::from_secs(45);

/// What a run showed.
#[derive(Clone, Debug)]
pub struct RunResult {
    pub log: Vec<Entry>,
    pub requests: u64,
    /// Methods of the writes, in their order.
    pub writes: Vec<Method>,
    /// Number of random faults, with those that were spared.
    pub happened: u64,
    pub violation: Option<String>,
}

impl Schedule {
    /// Runs it on a thread of its own time.
    pub fn run(&self) -> RunResult {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let simulated = async {
            let time: Arc<dyn Environment> = Arc::new(SimulatedTime::new(self.seed));
            within(time, self.simulate()).await
        };
        let panics = panics();
        // A task that lost its environment would read the clocks of this machine.
        let mut outcome =
            futures::executor::block_on(within(Arc::new(Nowhere), async { runtime.block_on(simulated) }));
        if panics != self::panics() && outcome.violation.is_none() {
            outcome.violation = Some("a task panicked".to_owned());
        }
        outcome
    }

    async fn simulate(&self) -> RunResult {
        let server = ApiServer::new(self.seed, {
            let clock = SimulatedTime::new(0);
            move || Environment::now(&clock)
        });
        let begun = Instant::now();
        let checks = Arc::new(Checks::new());
        let until = begun + Duration::from_secs(self.active + 10);
        let faults = Arc::new(Faults::new(self, until));
        let mut others = Others::new(server.clone(), Arc::clone(&checks), self.has_volumes);
        for name in ["kube-system", "kube-node-lease", "kube-node-system", "kubemark", "default"] {
            others.call(Method::POST, "/api/v1/namespaces", &json!({ "metadata": { "name": name } }));
        }
        let account = json!({ "metadata": { "name": OPERATOR_SERVICE_ACCOUNT } });
        let accounts = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/serviceaccounts");
        others.call(Method::POST, &accounts, &account);
        let hosts: Vec<Arc<Host>> = (0..self.operators + self.workers).map(|_| Arc::default()).collect();
        let cluster = process::Cluster {
            seed: self.seed,
            elects: self.elects,
            pod_cidrs: self.pod_cidrs,
            server: server.clone(),
            checks: Arc::clone(&checks),
            faults: Arc::clone(&faults),
            begun,
            endpoints: Arc::default(),
            caches: Arc::default(),
        };
        self.expect(&checks);
        let restarted = Arc::new(Notify::new());
        let autoscaler = ClusterAutoscaler::new(cluster.clone(), Arc::clone(&restarted));
        // Each is polled only if it was woken: there are several of them, and they are deep.
        let mut all: FuturesUnordered<LocalBoxFuture<'_, Option<&str>>> = hosts
            .iter()
            .enumerate()
            .map(|(number, host)| {
                let program = if number < self.operators { Program::Operator } else { Program::Worker };
                let runs = process::keep_running(cluster.clone(), (program, number), Arc::clone(host));
                runs.map(|()| Some("a process is not started again")).boxed_local()
            })
            .collect();
        if self.scaling.is_some() {
            let runs = autoscaler.keep_running();
            all.push(runs.map(|()| Some("cluster-autoscaler is not started again")).boxed_local());
        }
        let live = self.live(&mut others, &cluster, &hosts, &restarted);
        all.push(live.map(|()| None).boxed_local());
        if let Some(Some(violation)) = all.next().await {
            checks.violate(violation);
        }
        drop(all);
        RunResult {
            log: checks.take_log(),
            requests: checks.requests(),
            writes: faults.writes(),
            happened: faults.happened(),
            violation: checks.violation(),
        }
    }

    /// Says how late the operator may be.
    fn expect(&self, all: &Checks) {
        let has = |is: fn(&Action) -> bool| self.actions.iter().any(|(_, action)| is(action));
        let mut checks = all.scaling();
        let freezes = self.faults.contains(&Fault::Frozen)
            || has(|action| matches!(action, Action::Stop(..) | Action::StopAtRenewal(..)));
        let is_cut_off = has(|action| matches!(action, Action::CutOff(..) | Action::Refuse(_)));
        let is_late = has(|action| matches!(action, Action::Late(..)));
        checks.delay = match (freezes, self.faults.is_empty() && !is_late) {
            (true, _) => DELAYS[2],
            (false, false) => DELAYS[1],
            (false, true) => DELAYS[0],
        };
        let is_silent = has(|action| matches!(action, Action::Outage(_) | Action::Silence(..)));
        let is_kept = is_silent || has(|action| matches!(action, Action::CutOff(..) | Action::Forbid(..)));
        let is_killed =
            has(|action| matches!(action, Action::Kill(_) | Action::LoseHost(_) | Action::Refuse(_)));
        // A process that is cut off or may not write acts late on what users do to sets as well.
        all.remember_for(match (is_kept, is_killed) {
            (true, _) => DELAYS[2],
            (false, true) => checks.delay.max(DELAYS[1]),
            (false, false) => checks.delay,
        });
        checks.freezes = freezes;
        checks.counts_deletions = !freezes && !is_late && self.faults.is_empty();
        checks.is_prompt = !freezes && !is_late && self.faults.is_empty() && !is_cut_off;
        // Each of these needs its Nodes once, and once more for each other version.
        let is_plain = |action: &Action| {
            matches!(action, Action::Scale(..) | Action::Roll(_) | Action::Refuse(_) | Action::Mark(_))
        };
        let most = |(_, action): &(u64, Action)| match action {
            Action::Scale(_, replicas) => usize::try_from(*replicas).unwrap_or(usize::MAX),
            _ => 0,
        };
        let rolls = self.actions.iter().filter(|(_, action)| matches!(action, Action::Roll(_))).count();
        let scaled: usize = self.actions.iter().map(most).sum();
        let is_plain = self.faults.is_empty()
            && self.single.is_none()
            && self.actions.iter().all(|(_, one)| is_plain(one));
        all.expect_nodes(is_plain.then_some((scaled + 1) * (rolls + 1)));
        let is_disturbed = is_silent || has(|action| matches!(action, Action::ClockError(..)));
        all.expect_answers(checks.is_prompt && self.single.is_none() && !is_disturbed);
    }

    /// What users do, and the wait for its effect.
    async fn live(
        &self,
        others: &mut Others,
        cluster: &process::Cluster,
        hosts: &[Arc<Host>],
        restarted: &Notify,
    ) {
        let process::Cluster { server, checks, faults, begun, .. } = cluster;
        let mut wanted = DesiredState { is_scaled: self.scaling.is_some(), ..DesiredState::default() };
        others.call(Method::POST, CLASSES, &self.class(&wanted));
        if self.has_people {
            let revision = revision_of_another_class(if self.kubemark { "kubemark" } else { "hollow" });
            others.call(Method::POST, REVISIONS, &revision);
        }
        let mut actions = self.actions.iter().peekable();
        let mut hosting = HostingCluster::new(cluster.clone());
        let mut settled: Option<(Instant, Option<u64>)> = None;
        let before = reconciliations::count();
        let last = self.actions.last().map_or(0, |(at, _)| *at);
        let quiet = faults.until.max(*begun + Duration::from_secs(last));
        let end = quiet + SETTLES + if self.scaling.is_some() { SCALES } else { Duration::ZERO };
        while checks.violation().is_none() {
            let now = begun.elapsed();
            while let Some((_, action)) = actions.next_if(|(at, _)| Duration::from_secs(*at) <= now) {
                checks.note(&format!("user: {action:?}"));
                self.act(action, others, &mut wanted, cluster, hosts, restarted);
            }
            let is_over = actions.peek().is_none() && Instant::now() >= faults.until;
            wanted.undo(others, is_over);
            self.remake_class(others, &mut wanted);
            if wanted.heal(is_over) {
                self.change_class(others, &wanted);
            }
            if faults.has(Fault::Compacted) && now.as_secs() % 20 == 7 {
                server.compact();
            }
            if self.kubemark {
                hosting.work(others);
            }
            others.work().await;
            cluster.check_caches(false);
            checks.count_reconciliations(reconciliations::count() - before);
            let is_served = hosts.iter().all(|host| !host.was_away_within(LONGEST_TIMEOUT));
            // A machine in a pod renews its Lease itself.
            let is_ours = !self.kubemark && is_served;
            if is_ours && faults.is_over_for(LONGEST_TIMEOUT) && faults.refused().is_none() {
                checks.watch_leases(server);
            }
            if self.has_people {
                checks.watch_rollouts(server);
            }
            if !is_over {
                continue;
            }
            // A budget that leaves no room would hold a drain for ever.
            others.end_applications();
            others.resume();
            // A Node whose clock is ahead is available that much later, each time that it is replaced, and one whose clock is
            // behind ends its pods that much later.
            if self.storm || self.scaling.is_some() {
                for host in hosts {
                    host.set_clock_error(jiff::SignedDuration::ZERO);
                }
            }
            let refused = faults.refused();
            let absent = || if self.elects { checks.absent_leader() } else { None };
            let unmet = wanted.unmet(server, refused.as_deref()).or_else(absent);
            let unmet = unmet.or_else(|| checks.absent_worker());
            match (unmet, settled) {
                (None, _) if refused.is_some() => {
                    checks.note("the policy that refused writes to a Node is deleted");
                    faults.refuse(None);
                }
                // One that was killed asks for its certificate again.
                (None, _) if hosting.has_started_within(QUIET_AFTER) => settled = None,
                (None, None) => settled = Some((Instant::now(), None)),
                (None, Some((since, None)))
                    if is_served
                        && since.elapsed() > QUIET_AFTER
                        && Instant::now() > faults.watches_end() =>
                {
                    settled = Some((Instant::now(), Some(checks.settle())));
                }
                (None, Some((since, Some(writes)))) if since.elapsed() > STAYS => {
                    cluster.check_caches(true);
                    let more = checks.changing_writes() - writes;
                    if more > 0 {
                        checks.violate(&format!("{more} writes although everything has settled"));
                    }
                    break;
                }
                (None, _) => {}
                (Some(unmet), _) if Instant::now() > end => {
                    // A cache that shows another state is the cause.
                    cluster.check_caches(true);
                    checks.violate(&format!("not settled: {unmet}"));
                }
                (Some(_), _) => settled = None,
            }
        }
    }
}

/// Number of panics on this thread: the runtime catches those of tasks.
fn panics() -> usize {
    thread_local!(static PANICS: Cell<usize> = const { Cell::new(0) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
    PANICS.get()
}

/// Environment of tasks that belong to no process.
struct Nowhere;

impl Environment for Nowhere {
    fn now(&self) -> jiff::Timestamp {
        panic!("a task without a process reads the time of day")
    }

    fn since_boot(&self) -> Duration {
        panic!("a task without a process reads the boot clock")
    }

    fn random(&self) -> u64 {
        panic!("a task without a process draws a random number")
    }
}
