//! Coordinator: all kubelets of the process and the parts that they share. One lock, no I/O.
//!
//! Inputs: changes of Nodes, pods and machines, and answers of the API server. Output: due jobs with their
//! requests ([`jobs`]). Each part (Leases and status of the [`Kubelet`]s, [`Pods`], [`EventRecorder`], [`Endpoints`])
//! decides for itself and queues its jobs in the one [`Schedule`]; the coordinator hands changes from one part
//! to another.

mod jobs;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use kube_node_api::machine_files::MachineSettings;
use kube_node_cache::{Cache, NodeView, PodView};
use parking_lot::Mutex;
use tokio::{sync::mpsc::UnboundedSender, time::Instant};

use super::{
    DedicatedClient, MachineSpec, MachineState,
    clock::Clock,
    cpu_counter::CpuCounter,
    csi_node::CsiNode,
    endpoint::{Endpoint, Endpoints},
    event_recorder::EventRecorder,
    kubelet::Kubelet,
    machine::Machine,
    node_lease::NodeLease,
    node_status::NodeStatus,
    pod::allocatable::Allocatable,
    pods::{Context, Pods, held_ip},
    schedule::{Priority, Schedule},
    served_machine::{ServedMachine, ServedMachines},
    shape::{Shape, shared},
    slow_namespaces::SlowNamespaces,
};

/// Machines or pods that a resync queues, and jobs without requests that complete, in one hold of the lock: with
/// hundreds of thousands of pods, all at once are seconds in which no endpoint is served and no change arrives.
const BATCH: usize = 256;

/// Place up to which a resync has come: the UIDs after this one are left.
#[derive(Debug, PartialEq, Eq)]
pub enum Resync {
    Machines(Option<Arc<str>>),
    Pods(Option<Arc<str>>),
}

/// All kubelets of a process.
pub struct Coordinator {
    pub schedule: Schedule,
    /// By UID of the Node.
    kubelets: BTreeMap<Arc<str>, Kubelet>,
    /// UID of the Node with a machine, by name.
    by_node: HashMap<Arc<str>, Arc<str>>,
    pods: Pods,
    slow: SlowNamespaces,
    pub events: EventRecorder,
    pub endpoints: Endpoints,
    shapes: Vec<Arc<Shape>>,
    settings: Vec<Arc<MachineSettings>>,
    /// Receivers of machines that have just renewed their first Lease, and of deleted machines.
    pub watchers: Vec<UnboundedSender<MachineState>>,
    /// Last renewal time of each Lease by an earlier process, by Node name; removed as machines are created.
    pub renewed_before: HashMap<String, Timestamp>,
    /// Names of the `CSINodes` that were there when the first `CSIDriver` was seen; None before.
    csi_nodes: Option<HashSet<String>>,
    nodes: Arc<Cache<NodeView>>,
}

impl Coordinator {
    /// Creates a coordinator without machines. `failover_delay` is the longest time until another process
    /// takes over after the end of this one.
    pub fn new(nodes: Arc<Cache<NodeView>>, pods: Arc<Cache<PodView>>, failover_delay: Duration) -> Self {
        Self {
            schedule: Schedule::new(Instant::now(), failover_delay),
            kubelets: BTreeMap::new(),
            by_node: HashMap::new(),
            pods: Pods::new(pods),
            slow: SlowNamespaces::default(),
            events: EventRecorder::default(),
            endpoints: Endpoints::default(),
            shapes: Vec::new(),
            settings: Vec::new(),
            watchers: Vec::new(),
            renewed_before: HashMap::new(),
            csi_nodes: None,
            nodes,
        }
    }

    /// State of a machine.
    pub fn get(&self, uid: &str) -> Option<MachineState> {
        self.kubelets.get_key_value(uid).map(|(uid, kubelet)| kubelet.state(uid))
    }

    /// State of all machines, by UID.
    pub fn list(&self) -> Vec<MachineState> {
        self.kubelets.iter().map(|(uid, kubelet)| kubelet.state(uid)).collect()
    }

    /// Number of machines.
    pub fn len(&self) -> usize {
        self.kubelets.len()
    }

    /// UID of a Node's machine.
    pub fn machine_of(&self, node: &str) -> Option<&Arc<str>> {
        self.by_node.get(node)
    }

    /// Creates a machine; no effect if it exists.
    pub fn create(&mut self, spec: MachineSpec, now: Clock) {
        let MachineSpec { capacity, allocatable, kubelet_version, container_runtime, ip, .. } = spec;
        let (node, uid) = (spec.node, spec.uid);
        if self.kubelets.contains_key(&uid) {
            return;
        }
        let parsed = Allocatable::of(&allocatable);
        let shape = Shape { capacity, allocatable, parsed, kubelet_version, container_runtime };
        let machine = Machine {
            node: Arc::clone(&node),
            shape: shared(&mut self.shapes, shape),
            settings: shared(&mut self.settings, spec.settings),
            view: None,
            endpoint: Endpoint { ip, port: 0 },
            boot: None,
            silent: false,
            cpu: CpuCounter::new(now.wall),
            dedicated: None,
        };
        self.by_node.insert(Arc::clone(&node), Arc::clone(&uid));
        let (lease, status, csi_node) = <(NodeLease, NodeStatus, CsiNode)>::default();
        self.kubelets.insert(uid, Kubelet { machine, lease, status, csi_node });
        if let Some(view) = self.nodes.get(&node) {
            self.update_node(&view, now);
        }
        for pod in self.pods.cache.by_index(&node) {
            self.update_pod(&pod, now);
        }
    }

    /// Gives a machine a dedicated client, or another one.
    pub fn dedicate(&mut self, uid: &str, client: DedicatedClient) {
        if let Some(Kubelet { machine, .. }) = self.kubelets.get_mut(uid)
            && machine.dedicated.replace(client).is_none()
        {
            self.endpoints.reserve_files(1);
        }
    }

    /// Replaces a machine's settings.
    pub fn update(&mut self, uid: &str, settings: MachineSettings, now: Clock) {
        let Some(uid) = self.kubelets.get_key_value(uid).map(|(uid, _)| Arc::clone(uid)) else { return };
        let Some(Kubelet { machine, lease, .. }) = self.kubelets.get_mut(&uid) else { return };
        if *machine.settings == settings {
            return;
        }
        machine.settings = shared(&mut self.settings, settings);
        lease.enqueue(&uid, machine, &mut self.schedule, now);
        self.schedule.enqueue(Priority::Status, &uid, now.at);
        self.schedule.enqueue(Priority::CsiNode, &uid, now.at);
        self.pods.enqueue_of(&machine.node, &mut self.schedule, now);
    }

    /// Creates the `CSINode` of every machine, except those that exist.
    pub fn want_csi_nodes(&mut self, existing: HashSet<String>, now: Clock) {
        for (uid, Kubelet { machine, csi_node, .. }) in &mut self.kubelets {
            if existing.contains(&*machine.node) {
                csi_node.found();
            }
            self.schedule.enqueue(Priority::CsiNode, uid, now.at);
        }
        self.csi_nodes = Some(existing);
    }

    /// Deletes a machine. Its pods are left to the API server.
    pub fn delete(&mut self, uid: &str) {
        let Some((uid, kubelet)) = self.kubelets.remove_entry(uid) else { return };
        self.notify(&kubelet.state(&uid));
        self.cancel(&uid);
        let Kubelet { mut machine, .. } = kubelet;
        // A Node recreated under this name has a machine of its own, which owns the name and the pods by now.
        if self.by_node.get(&machine.node) == Some(&uid) {
            self.by_node.remove(&machine.node);
            for pod in self.pods.cache.by_index(&machine.node) {
                self.pods.remove(&pod.uid, &mut self.schedule, &mut self.endpoints.addresses);
            }
        }
        self.endpoints.close(&mut machine.endpoint, machine.view.as_deref());
        if machine.dedicated.is_some() {
            self.endpoints.reserve_files(-1);
        }
    }

    /// Handles a change of a Node.
    pub fn node_changed(&mut self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>, now: Clock) {
        let moved = |old: &NodeView, new: &NodeView| {
            old.internal_ip != new.internal_ip || old.kubelet_port != new.kubelet_port
        };
        match (old, new) {
            // A Node recreated under its name with another UID is another Node.
            (Some(old), new) if new.is_none_or(|new| new.uid != old.uid) => self.remove_node(old),
            (Some(old), Some(new)) if moved(old, new) => self.unclaim(old),
            _ => {}
        }
        if let Some(new) = new {
            self.update_node(new, now);
        }
    }

    /// Handles a change of a pod.
    pub fn pod_changed(&mut self, old: Option<&Arc<PodView>>, new: Option<&Arc<PodView>>, now: Clock) {
        let same = new.filter(|new| old.is_some_and(|old| old.uid == new.uid));
        // The address of a lost sandbox becomes free: the pod has finished and may still show the address, or
        // it shows another one.
        if let Some(ip) = old.and_then(|old| held_ip(old))
            && same.is_none_or(|new| new.is_finished() || held_ip(new).is_some_and(|other| other != ip))
        {
            self.endpoints.addresses.release(ip);
        }
        if let Some(old) = old.filter(|_| same.is_none()) {
            self.pods.remove(&old.uid, &mut self.schedule, &mut self.endpoints.addresses);
        }
        if let Some(new) = new {
            self.update_pod(new, now);
        }
    }

    /// Syncs the next machines or pods once a cache is complete again; returns the place of those that are left.
    /// A machine or pod that comes meanwhile is synced for that.
    pub fn on_resync(&mut self, from: Resync, now: Clock) -> Option<Resync> {
        match from {
            Resync::Machines(after) => {
                let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let mut last = None;
                for (uid, _) in self.kubelets.range::<Arc<str>, _>((from, Bound::Unbounded)).take(BATCH) {
                    self.schedule.enqueue(Priority::Status, uid, now.at);
                    last = Some(uid);
                }
                Some(last.map_or(Resync::Pods(None), |uid| Resync::Machines(Some(Arc::clone(uid)))))
            }
            Resync::Pods(after) => {
                let last = self.pods.enqueue_after(after.as_ref(), BATCH, &mut self.schedule, now);
                last.map(|last| Resync::Pods(Some(last)))
            }
        }
    }

    /// Handles a new or changed Node.
    fn update_node(&mut self, view: &Arc<NodeView>, now: Clock) {
        self.endpoints.claim(view);
        let Some(uid) = self.by_node.get(&view.name).filter(|uid| **uid == view.uid) else { return };
        let Some(kubelet) = self.kubelets.get_mut(uid) else { return };
        if kubelet.machine.view.is_none() {
            self.endpoints.restore(uid, &mut kubelet.machine.endpoint, view);
            kubelet.take_over(uid, view, self.renewed_before.remove(&*view.name), now);
            // After a takeover of many machines, Leases due for longest go first. No Lease waits for its due
            // time, which was set by another process's clock. A new Lease is created beside the first status,
            // and before it where there is room: the NodeController removes the startup taint only with both,
            // and the sooner it acts, the fewer other writes come first.
            kubelet.lease.enqueue(uid, &kubelet.machine, &mut self.schedule, now);
            // Pods of a machine without a Node are not synced.
            self.pods.enqueue_of(&view.name, &mut self.schedule, now);
            if self.csi_nodes.as_mut().is_some_and(|existing| existing.remove(&*view.name)) {
                kubelet.csi_node.found();
            }
            self.schedule.enqueue(Priority::CsiNode, uid, now.at);
        }
        kubelet.machine.view = Some(Arc::clone(view));
        self.schedule.enqueue(Priority::Status, uid, now.at);
    }

    /// Handles a removed Node.
    fn remove_node(&mut self, view: &NodeView) {
        self.unclaim(view);
        let Some(uid) = self.by_node.get(&view.name).filter(|uid| **uid == view.uid).cloned() else { return };
        self.cancel(&uid);
        if let Some(Kubelet { machine, lease, csi_node, .. }) = self.kubelets.get_mut(&uid) {
            machine.view = None;
            *lease = NodeLease::default();
            *csi_node = CsiNode::default();
            self.endpoints.close(&mut machine.endpoint, None);
        }
    }

    /// Handles a new or changed pod.
    fn update_pod(&mut self, view: &Arc<PodView>, now: Clock) {
        let addresses = &mut self.endpoints.addresses;
        if let Some(ip) = held_ip(view) {
            addresses.claim(ip);
        }
        if self.by_node.contains_key(&view.node) {
            let (schedule, events) = (&mut self.schedule, &mut self.events);
            self.pods.update(view, Context { schedule, events, addresses, now });
        }
    }

    /// Releases the endpoint that a Node no longer shows.
    fn unclaim(&mut self, node: &NodeView) {
        let kubelet = self.by_node.get(&node.name).and_then(|uid| self.kubelets.get(uid));
        self.endpoints.unclaim(node, kubelet.map(|kubelet| kubelet.machine.endpoint));
    }

    /// Cancels the jobs of a machine.
    fn cancel(&mut self, uid: &Arc<str>) {
        for priority in
            [Priority::Prompt, Priority::Lease, Priority::Renewal, Priority::Status, Priority::CsiNode]
        {
            self.schedule.cancel(priority, uid);
        }
    }

    fn notify(&mut self, state: &MachineState) {
        self.watchers.retain(|watcher| watcher.send(state.clone()).is_ok());
    }
}

impl ServedMachines for Mutex<Coordinator> {
    fn get(&self, uid: &str) -> Option<ServedMachine> {
        let coordinator = self.lock();
        let (uid, kubelet) = coordinator.kubelets.get_key_value(uid)?;
        kubelet.served(uid, &coordinator.pods.cache, Clock::now())
    }

    fn cpu_time(&self, machine: &ServedMachine, nano_cores: u64, now: Timestamp) -> u64 {
        let mut coordinator = self.lock();
        let kubelet = coordinator.kubelets.get_mut(&machine.uid);
        kubelet.map_or(1, |kubelet| kubelet.machine.cpu.read(nano_cores, machine.booted, now))
    }
}

#[cfg(test)]
#[path = "coordinator_tests/mod.rs"]
mod tests;
