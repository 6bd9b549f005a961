//! An operator or a worker as a process on a host of its own: it is started, killed at a write or by a user, and started
//! again.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use jiff::SignedDuration;
use kube::Client;
use kube_ext::{
    environment::{Environment, within},
    leader::{ElectionOptions, Timing},
};
use kube_node_api::names::{LABEL_HOLLOW_HOSTS, MACHINE_NAMESPACE};
use kube_node_controllers::{
    Access, ProviderIdPrefix,
    autoscaler::{self, Address, InProcess},
    hosts::lease_name,
};
use kube_node_operator::{Caches, Options, host};
use kube_node_planner::pod_cidrs::PodCidrRange;
use kube_node_testing::{
    api_server::{ApiServer, Random},
    simulated_time::{SimulatedTime, Stop},
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cache_checks::WatchedCaches,
    checks::{CLAIM, Checks},
    faults::Faults,
    network::{Network, up_to},
};

/// Namespace of operators and workers.
pub const NAMESPACE: &str = "kube-node-system";
/// Group of all workers.
pub const GROUP: &str = "workers";
/// Longest time from a process's end to its next start.
const RESTART: Duration = Duration::from_secs(10);

/// The host that a process runs on.
#[derive(Default)]
pub struct Host {
    killed: Notify,
    connected_at: Mutex<Option<Instant>>,
    clock_error: Arc<Mutex<SignedDuration>>,
    stop: Arc<Stop>,
    /// For how long the process stops when its next renewal of the leader's Lease is carried out.
    stops_at_renewal: Mutex<Option<Duration>>,
    /// Until when its renewals get lost.
    loses_renewals_until: Mutex<Option<Instant>>,
    is_lost: AtomicBool,
}

impl Host {
    /// Kills the process that runs now.
    pub fn kill(&self) {
        self.killed.notify_waiters();
    }

    /// Takes the host down for ever.
    pub fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        self.kill();
    }

    /// Cuts the host off from the API server for a time.
    pub fn cut_off(&self, lasts: Duration) {
        *self.connected_at.lock() = Some(Instant::now() + lasts);
    }

    /// When the host is connected again; None: it is connected.
    pub fn connected_at(&self) -> Option<Instant> {
        self.connected_at.lock().filter(|at| *at > Instant::now())
    }

    /// Stops the process that runs now for a time, as `SIGSTOP` does, or a pause of its virtual machine.
    pub fn stop(&self, lasts: Duration) {
        self.stop.stop(lasts);
    }

    /// Stops the process for a time as soon as the API server has carried out its next renewal of the leader's Lease.
    pub fn stop_at_next_renewal(&self, lasts: Duration) {
        *self.stops_at_renewal.lock() = Some(lasts);
    }

    /// A renewal of the leader's Lease is carried out. Where the process stops at it, the next ones get lost until the Lease is
    /// over.
    pub fn stop_at_renewal(&self) {
        let Some(lasts) = self.stops_at_renewal.lock().take() else { return };
        self.stop(lasts);
        *self.loses_renewals_until.lock() = Some(Instant::now() + lasts + CLAIM);
    }

    /// Returns true if renewals of the leader's Lease get lost.
    pub fn loses_renewals(&self) -> bool {
        self.loses_renewals_until.lock().is_some_and(|until| until > Instant::now())
    }

    /// Returns true if the host was cut off or stopped within this time.
    pub fn was_away_within(&self, time: Duration) -> bool {
        let ends = [*self.connected_at.lock(), self.stop.ends()];
        ends.into_iter().flatten().any(|at| at + time > Instant::now())
    }

    /// Sets the wall clock wrong.
    pub fn set_clock_error(&self, error: SignedDuration) {
        *self.clock_error.lock() = error;
    }
}

/// What all processes of a simulation share.
#[derive(Clone)]
pub struct Cluster {
    pub seed: u64,
    /// True if the operators elect a leader.
    pub elects: bool,
    /// Range of the Nodes' pod CIDRs.
    pub pod_cidrs: &'static str,
    pub server: ApiServer,
    pub checks: Arc<Checks>,
    pub faults: Arc<Faults>,
    pub begun: Instant,
    /// Services for cluster-autoscaler, by process.
    pub endpoints: Arc<Mutex<BTreeMap<String, Endpoint>>>,
    /// Caches of the operators that run, by process.
    pub caches: Arc<Mutex<BTreeMap<String, WatchedCaches>>>,
}

impl Cluster {
    /// Checks the caches of all operators that run.
    pub fn check_caches(&self, is_present: bool) {
        for (process, caches) in &*self.caches.lock() {
            self.checks.check_caches(process, caches, is_present);
        }
    }
}

/// The service of a process for cluster-autoscaler.
#[derive(Clone)]
pub struct Endpoint {
    pub process: String,
    pub service: InProcess,
    pub time: Arc<dyn Environment>,
    pub network: Network,
}

/// Program of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Operator,
    /// `hollow-host`.
    Worker,
}

/// Runs the program of a host again and again.
pub async fn keep_running(
    Cluster { seed, elects, pod_cidrs, server, checks, faults, begun, endpoints, caches }: Cluster,
    (program, number): (Program, usize),
    host: Arc<Host>,
) {
    let mut draws = Random::new(seed ^ (number as u64 + 1).rotate_left(40));
    for life in 0_u64.. {
        if host.is_lost.load(Ordering::Relaxed) {
            return pending().await;
        }
        let name = match program {
            Program::Operator => format!("operator-{number}-{life}"),
            Program::Worker => format!("worker-{number}-{life}"),
        };
        let (checked, faulty) = (Arc::clone(&checks), Arc::clone(&faults));
        let network = Network::new(server.clone(), checked, faulty, Arc::clone(&host), name.clone());
        let time = SimulatedTime::new(draws.number()).begun(begun);
        let time = time.wrong_by(Arc::clone(&host.clock_error)).stopped_by(Arc::clone(&host.stop));
        let time: Arc<dyn Environment> = Arc::new(time);
        let client = Client::new(network.clone(), "default");
        let stop = CancellationToken::new();
        let work = match program {
            Program::Operator => {
                let (process, service) = (name.clone(), InProcess::default());
                let mut options = options(client, name.clone(), service.clone(), pod_cidrs);
                options.election.take_if(|_| !elects);
                let endpoint =
                    Endpoint { process, service, time: Arc::clone(&time), network: network.clone() };
                endpoints.lock().insert(name.clone(), endpoint);
                caches.lock().insert(name.clone(), WatchedCaches::new(options.caches.clone()));
                kube_node_operator::run(options, stop).boxed_local()
            }
            Program::Worker => host::run(worker(client, name.clone(), number), stop).boxed_local(),
        };
        let work = within(time, work);
        tokio::select! {
            biased;
            () = host.killed.notified() => checks.note(&format!("{name} is killed by a user")),
            () = network.killed() => checks.note(&format!("{name} is killed")),
            ended = work => match ended {
                Err(error) => {
                    let error = format!("{error:#}");
                    if error.contains("panic") {
                        checks.violate(&format!("{name}: {error}"));
                    }
                    checks.note(&format!("{name} ends: {error}"));
                }
                Ok(()) => checks.note(&format!("{name} ends")),
            },
        }
        network.kill();
        endpoints.lock().remove(&name);
        caches.lock().remove(&name);
        sleep(up_to(&mut draws, RESTART)).await;
    }
}

/// Name of the worker on a host.
fn worker_name(number: usize) -> String {
    format!("h-{number}")
}

/// Lease of the worker on a host.
pub fn lease_of(number: usize) -> String {
    lease_name(GROUP, &worker_name(number))
}

fn worker(client: Client, identity: String, number: usize) -> host::Options {
    let name = worker_name(number);
    host::Options {
        client: Access::by(client),
        endpoints: None,
        max_machines: 1_000,
        namespace: NAMESPACE.to_owned(),
        machine_namespace: MACHINE_NAMESPACE.to_owned(),
        group: GROUP.to_owned(),
        admin_address: None,
        presence: ElectionOptions {
            namespace: NAMESPACE.to_owned(),
            name: lease_name(GROUP, &name),
            labels: BTreeMap::from([(LABEL_HOLLOW_HOSTS.to_owned(), GROUP.to_owned())]),
            identity,
            timing: Timing::HOST,
        },
        name,
    }
}

/// Options of an operator.
pub fn options(client: Client, identity: String, service: InProcess, pod_cidrs: &str) -> Options {
    let seconds = Duration::from_secs;
    let timing = Timing::new(seconds(15), seconds(10), seconds(2)).unwrap();
    let range = pod_cidrs.parse().ok().and_then(|range| PodCidrRange::new(range, 24).ok());
    Options {
        client: Access::by(client),
        hollow: None,
        endpoints: None,
        max_machines: 1_000,
        namespace: NAMESPACE.to_owned(),
        machine_namespace: MACHINE_NAMESPACE.to_owned(),
        admin_address: None,
        pod_cidrs: range,
        provider_id_prefix: ProviderIdPrefix::Provider,
        machine_image: String::new(),
        machine_api_server: None,
        insecure_credentials: false,
        autoscaler: Some(autoscaler::Options {
            address: Address::InProcess(service),
            tls: None,
            client_names: Vec::new(),
            options: false,
        }),
        election: Some(ElectionOptions {
            namespace: NAMESPACE.to_owned(),
            name: "kube-node-operator".to_owned(),
            labels: BTreeMap::new(),
            identity,
            timing,
        }),
        caches: Caches::default(),
    }
}
