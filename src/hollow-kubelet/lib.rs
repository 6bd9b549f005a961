//! Our own hollow kubelet: one process carries thousands of machines, each a Node that behaves as a real one.
//!
//! No machine has a task, a timer or a copy of its Node. One [`schedule`] knows what is due; one dispatcher
//! ([`Kubelets::run`]) sends it with bounded concurrency. What a Node shows follows from the machine, the cache and the
//! disruptor's phase, and all three say when they change: so nothing is polled, and a no-op is not written.
//! [`status`] and [`pod`] decide without I/O; [`state`] is behind one lock, held only for decisions.
//! What is true to a kubelet and what is not stands in docs/fidelity.md.

mod addresses;
pub mod capacity;
mod dispatch;
mod endpoint;
mod event_recorder;
pub mod kubelet_watches;
mod machine;
mod metrics;
mod node_lease;
mod node_status;
mod pod;
mod pods;
mod request;
mod schedule;
pub mod server;
mod state;
mod sync;

use std::{
    fmt,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use kube_ext::rate::Rate;
use kube_node_api::{ContainerDefaults, Failures, Resources};
use kube_node_cache::{Cache, EventHandler, NodeView, PodView};
use prometheus::Registry;
use tokio::sync::{
    Notify,
    mpsc::{UnboundedReceiver, unbounded_channel},
    watch,
};

pub use dispatch::Kubelets;
use metrics::Metrics;
use server::{ServeError, Server};
use state::{Clock, State};

/// How often a status is written that does not change, give or take half of it, as a kubelet does.
const REPORT: Duration = Duration::from_mins(5);

/// What a hollow machine is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSpec {
    /// Name of its Node.
    pub node: Arc<str>,
    /// UID of its Node: the identity of the machine.
    pub uid: Arc<str>,
    /// What it has.
    pub capacity: Resources,
    /// What pods may use of it.
    pub allocatable: Resources,
    /// Version of its kubelet, such as `v1.36.3`.
    pub kubelet_version: String,
    /// Name and version of its container runtime, such as `containerd://2.1.0`.
    pub container_runtime: String,
    /// Its address; None for one that is free in this process.
    pub ip: Option<Ipv4Addr>,
    /// What changes in place.
    pub settings: Settings,
}

/// What changes in place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The disruptor; none for a machine that stays healthy.
    pub failures: Option<Failures>,
    /// What its containers do unless their pod says otherwise.
    pub containers: ContainerDefaults,
}

/// What a machine shares with no other one, where it is to be to the API server what a kubelet is.
#[derive(Clone)]
pub struct DedicatedClient {
    /// Of its identity: it sends what the machine writes.
    pub client: Client,
    /// How fast it may ask.
    pub rate: Arc<Rate>,
    /// Told when the machine falls silent, and when it speaks again.
    pub silent: watch::Sender<bool>,
}

impl fmt::Debug for DedicatedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own").field("silent", &*self.silent.borrow()).finish_non_exhaustive()
    }
}

/// A hollow machine as it is.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Name of its Node.
    pub node: Arc<str>,
    /// UID of its Node.
    pub uid: Arc<str>,
    /// When its Lease was renewed last; None when that was not yet.
    pub lease_renewed: Option<Timestamp>,
}

/// How long nobody renews Leases where a process that dies is started again at once, by `up` (after half a second) or by a
/// kubelet. One that dies again and again is away for longer, 10 s under `up`.
pub const RESTART: Duration = Duration::from_secs(5);

/// The machines of this process. Cheap to clone.
#[derive(Clone)]
pub struct Hollow {
    shared: Arc<Shared>,
}

/// What the handle, the observers and the dispatcher share.
struct Shared {
    client: Client,
    state: Mutex<State>,
    /// Something may be due earlier than the dispatcher knows.
    wake: Notify,
    metrics: Metrics,
}

impl Hollow {
    /// No machines yet, and the kubelets that will serve them. Both caches must be filled by a watch, `pods` with all
    /// pods that are bound to a Node. When this process dies another one begins `vacancy` later at most. Fails where the names
    /// of the metrics are taken.
    pub fn new(
        client: Client,
        nodes: Arc<Cache<NodeView>>,
        pods: Arc<Cache<PodView>>,
        vacancy: Duration,
        registry: &Registry,
    ) -> Result<(Self, Kubelets), prometheus::Error> {
        let shared = Arc::new(Shared {
            client,
            state: Mutex::new(State::new(nodes, pods, vacancy)),
            wake: Notify::new(),
            metrics: Metrics::new(registry)?,
        });
        let (nodes, pods) = shared.state().caches();
        nodes.observe(Arc::clone(&shared) as Arc<dyn EventHandler<NodeView>>);
        pods.observe(Arc::clone(&shared) as Arc<dyn EventHandler<PodView>>);
        Ok((Self { shared: Arc::clone(&shared) }, Kubelets::new(shared)))
    }

    /// Reads when a process before renewed the Leases of its machines: they are taken over in the order in which they would
    /// end. To be called before machines are made.
    pub async fn read_leases(&self) -> kube::Result<()> {
        let renewed = node_lease::renewals(&self.shared.client).await?;
        self.shared.state().renewed_before = renewed;
        Ok(())
    }

    /// When the process before renewed the Lease of a Node last, where it has no machine here yet.
    #[must_use]
    pub fn renewed_before(&self, node: &str) -> Option<Timestamp> {
        self.shared.state().renewed_before.get(node).copied()
    }

    /// Begins with addresses at a place of its own, which this name says: processes that carry Nodes of one cluster see too
    /// late what each of them has just given out. To be called before machines are made.
    pub fn choose_addresses_by(&self, name: &str) {
        self.shared.state().addresses.begin_at(name);
    }

    /// Serves the kubelets' endpoints, by what is returned once that runs. To be called before machines are made.
    pub fn serve(&self, options: server::Options, registry: &Registry) -> Result<Server, ServeError> {
        let server = Server::new(&self.shared, options, registry)?;
        self.shared.state().doors = Some(server.doors());
        Ok(server)
    }

    /// Makes a machine, at once; without effect when one of this UID exists.
    pub fn create(&self, spec: MachineSpec) {
        self.shared.change(|state, now| state.create(spec, now));
    }

    /// Makes a machine that writes by an identity of its own; without effect when one of this UID exists.
    pub fn create_alone(&self, spec: MachineSpec, own: DedicatedClient) {
        self.shared.change(|state, now| {
            let uid = Arc::clone(&spec.uid);
            state.create(spec, now);
            state.stand_alone(&uid, own);
        });
    }

    /// Gives a machine other settings; without effect when it does not exist.
    pub fn update(&self, uid: &str, settings: Settings) {
        self.shared.change(|state, now| state.update(uid, settings, now));
    }

    /// Takes a machine away, at once: its Lease and its status stop. Its pods are left to the API server.
    pub fn delete(&self, uid: &str) {
        self.shared.change(|state, _| state.delete(uid));
    }

    /// A machine.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Machine> {
        self.shared.state().machines.get_key_value(uid).map(shown)
    }

    /// UID of the machine of a Node, by the Node's name.
    #[must_use]
    pub fn machine_of(&self, node: &str) -> Option<Arc<str>> {
        self.shared.state().machine_of(node).cloned()
    }

    /// Machines that have just renewed their first Lease, and those that were taken away.
    #[must_use]
    pub fn watch(&self) -> UnboundedReceiver<Machine> {
        let (sender, receiver) = unbounded_channel();
        self.shared.state().watchers.push(sender);
        receiver
    }

    /// All machines, in no order.
    #[must_use]
    pub fn list(&self) -> Vec<Machine> {
        self.shared.state().machines.iter().map(shown).collect()
    }
}

fn shown((uid, machine): (&Arc<str>, &machine::Machine)) -> Machine {
    Machine { node: Arc::clone(&machine.node), uid: Arc::clone(uid), lease_renewed: machine.lease.renewed }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and lets the dispatcher look at it.
    fn change(&self, change: impl FnOnce(&mut State, Clock)) {
        let mut state = self.state();
        change(&mut state, Clock::now());
        self.metrics.machines.set(i64::try_from(state.machines.len()).unwrap_or(i64::MAX));
        self.metrics.dropped(state.outbox.take_dropped());
        drop(state);
        self.wake.notify_one();
    }
}

impl EventHandler<NodeView> for Shared {
    fn changed(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        self.change(|state, now| {
            // A name that came back under another UID is another Node.
            if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
                state.lost_node(old);
            }
            let endpoint = |node: &NodeView| (node.internal_ip.clone(), node.kubelet_port);
            if let Some(old) = old.filter(|old| new.is_some_and(|new| endpoint(new) != endpoint(old))) {
                state.left_endpoint(old);
            }
            if let Some(new) = new {
                state.saw_node(new, now);
            }
        });
    }

    fn on_resync(&self) {
        self.change(State::on_resync);
    }
}

impl EventHandler<PodView> for Shared {
    fn changed(&self, old: Option<&Arc<PodView>>, new: Option<&Arc<PodView>>) {
        self.change(|state, now| {
            match (old, new) {
                (Some(old), Some(new)) if old.uid == new.uid => {
                    state.changed_pod(old, new);
                }
                (Some(old), _) => state.lost_pod(old),
                (None, _) => {}
            }
            if let Some(new) = new {
                state.saw_pod(new, now);
            }
        });
    }

    fn on_resync(&self) {
        self.change(State::on_resync);
    }
}
