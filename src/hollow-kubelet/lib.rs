//! Hollow kubelets: one process simulates the kubelets of thousands of machines, each with a Node of its own.
//!
//! Inputs: machine specs, the caches of Nodes and pods, and each machine's fault injection. Outputs: Lease
//! renewals, node status, pod status, events and the kubelets' endpoints. docs/fidelity.md lists what equals
//! a kubelet and what does not.
//!
//! Invariants: no machine has a task, a timer or a copy of its Node. One [`schedule`] holds all due jobs; one
//! dispatcher ([`Kubelets::run`]) sends them with bounded concurrency. Every input reports its changes, so
//! nothing is polled and no no-op is written. [`coordinator`] owns the parts and decides without I/O, behind
//! one lock that is held only for decisions.

mod addresses;
pub mod boot;
pub mod capacity;
mod clock;
mod coordinator;
mod cpu_counter;
mod csi_node;
mod dispatch;
mod endpoint;
mod event_recorder;
pub mod fault_injection;
pub mod health;
mod kubelet;
pub mod kubelet_watches;
mod machine;
mod metrics;
mod node_lease;
mod node_report;
mod node_status;
mod pod;
mod pods;
mod request;
mod schedule;
mod served_machine;
pub mod server;
mod shape;

use std::{collections::HashSet, net::Ipv4Addr, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Client;
use kube_ext::{call::ApiError, rate::Rate, watch::WatchError};
use kube_node_api::{
    Resources,
    machine_files::{MachineDescription, MachineSettings},
};
use kube_node_cache::{Cache, EventHandler, NodeView, PodView};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::sync::{
    Notify,
    mpsc::{UnboundedReceiver, unbounded_channel},
    watch,
};

use clock::Clock;
use coordinator::Coordinator;
pub use dispatch::Kubelets;
use metrics::Metrics;
use served_machine::ServedMachines;
use server::{ServeError, Server};

/// Specification of a hollow machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSpec {
    /// Name of the Node.
    pub node: Arc<str>,
    /// UID of the Node, and identity of the machine.
    pub uid: Arc<str>,
    /// Capacity of the Node.
    pub capacity: Resources,
    /// Allocatable resources of the Node.
    pub allocatable: Resources,
    /// Kubelet version, such as `v1.36.3`.
    pub kubelet_version: String,
    /// Name and version of the container runtime, such as `containerd://2.1.0`.
    pub container_runtime: String,
    /// Address of the machine; None for any address that is free in this process.
    pub ip: Option<Ipv4Addr>,
    /// Settings that can change in place.
    pub settings: MachineSettings,
}

impl MachineSpec {
    /// Specification of the machine of this description; `ip` None for any address that is free in this process.
    pub fn new(machine: MachineDescription, ip: Option<Ipv4Addr>, settings: MachineSettings) -> Self {
        let MachineDescription { capacity, allocatable, kubelet_version, container_runtime, .. } = machine;
        let (node, uid) = (machine.node.into(), machine.uid.into());
        Self { node, uid, capacity, allocatable, kubelet_version, container_runtime, ip, settings }
    }
}

/// Client of one machine alone; the API server sees it as a kubelet's.
#[derive(Clone)]
pub struct DedicatedClient {
    /// Client with the machine's own identity; sends the machine's writes.
    pub client: Client,
    /// Client-side rate limit of the machine.
    pub rate: Arc<Rate>,
    /// True while the machine is silent.
    pub silent: watch::Sender<bool>,
}

/// State of a hollow machine.
#[derive(Clone, Debug)]
pub struct MachineState {
    /// Name of the Node.
    pub node: Arc<str>,
    /// UID of the Node.
    pub uid: Arc<str>,
    /// Time of the last Lease renewal; None before the first.
    pub lease_renewed: Option<Timestamp>,
}

/// Gap in Lease renewals while a process that died restarts at once, by `up` (after half a second) or by a
/// kubelet. A process that dies repeatedly is away for longer, 10 s under `up`.
pub const RESTART: Duration = Duration::from_secs(5);

/// Handle to the machines of this process. Cheap to clone.
#[derive(Clone)]
pub struct Hollow {
    shared: Arc<Shared>,
}

/// State shared by the handle, the event handlers and the dispatcher.
struct Shared {
    client: Client,
    coordinator: Arc<Mutex<Coordinator>>,
    /// Notified when a job may be due earlier than the dispatcher knows.
    wake: Notify,
    metrics: Metrics,
}

impl Hollow {
    /// Creates a handle without machines, and the kubelets that will serve them. Both caches must be filled
    /// by a watch, `pods` with all pods bound to a Node. `failover_delay` is the longest time until another
    /// process takes over after this one dies. Fails if a metric name is already registered.
    pub fn new(
        client: Client,
        nodes: &Arc<Cache<NodeView>>,
        pods: &Arc<Cache<PodView>>,
        failover_delay: Duration,
        registry: &Registry,
    ) -> Result<(Self, Kubelets), prometheus::Error> {
        let coordinator = Coordinator::new(Arc::clone(nodes), Arc::clone(pods), failover_delay);
        let shared = Arc::new(Shared {
            client,
            coordinator: Arc::new(Mutex::new(coordinator)),
            wake: Notify::new(),
            metrics: Metrics::new(registry)?,
        });
        nodes.add_event_handler(Arc::clone(&shared) as Arc<dyn EventHandler<NodeView>>);
        pods.add_event_handler(Arc::clone(&shared) as Arc<dyn EventHandler<PodView>>);
        Ok((Self { shared: Arc::clone(&shared) }, Kubelets { shared }))
    }

    /// Reads the last renewal time of every Lease, so that machines of an earlier process are taken over in
    /// the order of Lease expiry. Call before creating machines.
    pub async fn read_leases(&self) -> Result<(), ApiError> {
        let renewed = node_lease::renewals(&self.shared.client).await?;
        self.shared.coordinator.lock().renewed_before = renewed;
        Ok(())
    }

    /// Creates the `CSINodes` of all machines once the cluster has a `CSIDriver`; until then by a watch that the process has for all
    /// of them. An error is final: `CSINodes` are created only where the class asks for it.
    pub async fn follow_csi_drivers(&self) -> Result<(), WatchError> {
        let existing = csi_node::once_wanted(&self.shared.client).await?;
        self.shared.change(|coordinator, now| coordinator.want_csi_nodes(existing, now));
        Ok(())
    }

    /// Creates the `CSINodes` of all machines, whether or not the cluster has a `CSIDriver`.
    pub fn create_csi_nodes(&self) {
        self.shared.change(|coordinator, now| coordinator.want_csi_nodes(HashSet::new(), now));
    }

    /// Time of the last Lease renewal by an earlier process, for a Node without a machine here yet.
    pub fn renewed_before(&self, node: &str) -> Option<Timestamp> {
        self.shared.coordinator.lock().renewed_before.get(node).copied()
    }

    /// Derives the first addresses to assign from `name`, unique per process: processes that carry Nodes of
    /// one cluster see too late which addresses the others have just assigned. Call before creating machines.
    pub fn choose_addresses_by(&self, name: &str) {
        self.shared.coordinator.lock().endpoints.addresses.begin_at(name);
    }

    /// Creates the server of the kubelets' endpoints, which serves while it runs. Call before creating
    /// machines.
    pub fn serve(&self, options: server::ServerOptions, registry: &Registry) -> Result<Server, ServeError> {
        let machines = Arc::clone(&self.shared.coordinator) as Arc<dyn ServedMachines>;
        let server = Server::new(self.shared.client.clone(), machines, options, registry)?;
        self.shared.coordinator.lock().endpoints.listeners = Some(Arc::clone(&server.listeners));
        Ok(server)
    }

    /// Creates a machine immediately; no effect if the UID exists, except that its `dedicated` client is
    /// replaced.
    pub fn create(&self, spec: MachineSpec, dedicated: Option<DedicatedClient>) {
        self.shared.change(|coordinator, now| {
            let uid = Arc::clone(&spec.uid);
            coordinator.create(spec, now);
            if let Some(client) = dedicated {
                coordinator.dedicate(&uid, client);
            }
        });
    }

    /// Replaces a machine's settings; no effect if the machine does not exist.
    pub fn update(&self, uid: &str, settings: MachineSettings) {
        self.shared.change(|coordinator, now| coordinator.update(uid, settings, now));
    }

    /// Stops a machine's Lease renewals and status writes at once; its pods are left to the API server.
    pub fn delete(&self, uid: &str) {
        self.shared.change(|coordinator, _| coordinator.delete(uid));
    }

    /// The machine with this UID.
    pub fn get(&self, uid: &str) -> Option<MachineState> {
        self.shared.coordinator.lock().get(uid)
    }

    /// UID of a Node's machine, by Node name.
    pub fn machine_of(&self, node: &str) -> Option<Arc<str>> {
        self.shared.coordinator.lock().machine_of(node).cloned()
    }

    /// Stream of machines that have just renewed their first Lease, and of deleted machines.
    pub fn watch(&self) -> UnboundedReceiver<MachineState> {
        let (sender, receiver) = unbounded_channel();
        self.shared.coordinator.lock().watchers.push(sender);
        receiver
    }

    /// All machines, unordered.
    pub fn list(&self) -> Vec<MachineState> {
        self.shared.coordinator.lock().list()
    }
}

impl Shared {
    /// Changes the state and wakes the dispatcher.
    fn change(&self, change: impl FnOnce(&mut Coordinator, Clock)) {
        let mut coordinator = self.coordinator.lock();
        change(&mut coordinator, Clock::now());
        self.metrics.machines.set(i64::try_from(coordinator.len()).unwrap_or(i64::MAX));
        self.metrics.dropped(coordinator.events.take_dropped());
        drop(coordinator);
        self.wake.notify_one();
    }
}

impl EventHandler<NodeView> for Shared {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        self.change(|coordinator, now| coordinator.node_changed(old, new, now));
    }

    fn on_resync(&self) {
        self.change(Coordinator::on_resync);
    }
}

impl EventHandler<PodView> for Shared {
    fn on_change(&self, old: Option<&Arc<PodView>>, new: Option<&Arc<PodView>>) {
        self.change(|coordinator, now| coordinator.pod_changed(old, new, now));
    }

    fn on_resync(&self) {
        self.change(Coordinator::on_resync);
    }
}
