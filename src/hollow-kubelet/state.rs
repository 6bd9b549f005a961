//! State of all machines and their pods, and the jobs that follow from it. One lock, no I/O.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube_ext::wire::WireError;
use kube_node_cache::{Cache, NodeView, PodView};
use kube_node_planner::boot;
use tokio::{sync::mpsc::UnboundedSender, time::Instant};

use super::{
    DedicatedClient, MachineSpec, Settings,
    addresses::{Addresses, MACHINES},
    clock::Clock,
    cpu_counter::CpuCounter,
    endpoint::address,
    event_recorder::EventRecorder,
    machine::{Machine, Writes},
    node_lease::Lease,
    node_status::Shape,
    pod::admission::Allocatable,
    pods::Pod,
    request::{Request, spread},
    schedule::{Job, Pressure, Priority, Schedule},
    server::ListenerPool,
};

/// Machines, pods and the resources that they share.
pub struct State {
    pub schedule: Schedule,
    pub machines: HashMap<Arc<str>, Machine>,
    pub pods: HashMap<Arc<str>, Pod>,
    pub addresses: Addresses,
    /// Listeners of the kubelets' endpoints; None if no endpoints are served.
    pub listeners: Option<Arc<ListenerPool>>,
    pub outbox: EventRecorder,
    by_node: HashMap<Arc<str>, Arc<str>>,
    shapes: Vec<Arc<Shape>>,
    settings: Vec<Arc<Settings>>,
    pub watchers: Vec<UnboundedSender<super::Machine>>,
    /// Last renewal time of each Lease by an earlier process, by Node name; removed as machines are created.
    pub renewed_before: HashMap<String, Timestamp>,
    pub node_cache: Arc<Cache<NodeView>>,
    pub pod_cache: Arc<Cache<PodView>>,
}

impl State {
    /// Creates a state without machines. `vacancy` is the failover delay after the end of this process.
    #[must_use]
    pub fn new(node_cache: Arc<Cache<NodeView>>, pod_cache: Arc<Cache<PodView>>, vacancy: Duration) -> Self {
        Self {
            schedule: Schedule::new(Instant::now(), vacancy),
            machines: HashMap::new(),
            pods: HashMap::new(),
            addresses: Addresses::default(),
            listeners: None,
            outbox: EventRecorder::default(),
            by_node: HashMap::new(),
            shapes: Vec::new(),
            settings: Vec::new(),
            watchers: Vec::new(),
            renewed_before: HashMap::new(),
            node_cache,
            pod_cache,
        }
    }

    /// The caches of Nodes and pods.
    #[must_use]
    pub fn caches(&self) -> (Arc<Cache<NodeView>>, Arc<Cache<PodView>>) {
        (Arc::clone(&self.node_cache), Arc::clone(&self.pod_cache))
    }

    /// Creates a machine; no effect if it exists.
    pub fn create(&mut self, spec: MachineSpec, now: Clock) {
        let MachineSpec {
            node,
            uid,
            capacity,
            allocatable,
            kubelet_version,
            container_runtime,
            ip,
            settings,
        } = spec;
        if self.machines.contains_key(&uid) {
            return;
        }
        if ip.is_some() {
            self.addresses.begin_at(&uid);
        }
        let room = Allocatable::of(&allocatable);
        let shape = Shape { capacity, allocatable, room, kubelet_version, container_runtime };
        let machine = Machine {
            shape: shared(&mut self.shapes, shape),
            settings: shared(&mut self.settings, settings),
            view: None,
            ip,
            port: 0,
            boot: None,
            lease: Lease::default(),
            lease_failures: 0,
            status: Writes::default(),
            report_at: None,
            silent: false,
            cpu: CpuCounter::new(now.wall),
            own: None,
            node: Arc::clone(&node),
        };
        self.by_node.insert(Arc::clone(&node), Arc::clone(&uid));
        self.machines.insert(Arc::clone(&uid), machine);
        if let Some(view) = self.node_cache.get(&node) {
            self.saw_node(&view, now);
        }
        for pod in self.pod_cache.by_index(&node) {
            self.saw_pod(&pod, now);
        }
    }

    /// Replaces a machine's settings.
    pub fn update(&mut self, uid: &str, settings: Settings, now: Clock) {
        let Some((uid, machine)) = self.machines.get_key_value(uid) else { return };
        if *machine.settings == settings {
            return;
        }
        let (uid, node) = (Arc::clone(uid), Arc::clone(&machine.node));
        let settings = shared(&mut self.settings, settings);
        if let Some(machine) = self.machines.get_mut(&uid) {
            machine.settings = settings;
            self.schedule.ask(machine.lease_lane(), &uid, machine.lease.due(now));
        }
        self.schedule.ask(Priority::Status, &uid, now.at);
        self.ask_pods(&node, now);
    }

    /// Deletes a machine. Its pods are left to the API server.
    pub fn delete(&mut self, uid: &str) {
        let Some((uid, machine)) = self.machines.remove_entry(uid) else { return };
        self.tell(&uid, &machine);
        self.rest(&uid);
        // A Node recreated under this name has a machine of its own, which owns the name and the pods by now.
        if self.by_node.get(&machine.node) == Some(&uid) {
            self.by_node.remove(&machine.node);
            for pod in self.pod_cache.by_index(&machine.node) {
                self.forget_pod(&pod.uid);
            }
        }
        self.close_door(machine.port);
        if let Some(listeners) = self.listeners.as_ref().filter(|_| machine.own.is_some()) {
            listeners.unreserve();
        }
        // An address stays claimed while a Node shows it.
        let shown = machine.view.and_then(|view| address(view.internal_ip.as_deref()));
        if let Some(ip) = machine.ip.filter(|ip| machine.port == 0 && shown != Some(*ip)) {
            self.addresses.release(ip);
        }
    }

    /// Reports a changed machine to the watchers.
    pub fn tell(&mut self, uid: &Arc<str>, machine: &Machine) {
        self.watchers.retain(|watcher| watcher.send(super::shown((uid, machine))).is_ok());
    }

    /// Gives a machine a dedicated client.
    pub fn stand_alone(&mut self, uid: &str, own: DedicatedClient) {
        if let Some(machine) = self.machines.get_mut(uid)
            && machine.own.replace(own).is_none()
            && let Some(listeners) = &self.listeners
        {
            listeners.reserve();
        }
    }

    /// Dedicated client for a job's requests; None if its machine uses the shared client.
    #[must_use]
    pub fn own_of(&self, job: &Job) -> Option<DedicatedClient> {
        let uid = match job.priority {
            Priority::Prompt | Priority::Lease | Priority::Renewal | Priority::Status => Some(&job.uid),
            Priority::Pod => self.pods.get(&job.uid).and_then(|pod| self.machine_of(&pod.view.node)),
            Priority::Event => self.outbox.teller().and_then(|node| self.machine_of(node)),
        };
        self.machines.get(uid?)?.own.clone()
    }

    /// UID of a Node's machine.
    #[must_use]
    pub fn machine_of(&self, node: &str) -> Option<&Arc<str>> {
        self.by_node.get(node)
    }

    /// Handles a new or changed Node.
    pub fn saw_node(&mut self, view: &Arc<NodeView>, now: Clock) {
        let ip = address(view.internal_ip.as_deref()).filter(|ip| MACHINES.contains(*ip));
        if let Some(ip) = ip {
            self.addresses.claim(ip);
        }
        let port = self.port_of(view);
        if let (Some(listeners), Some(port)) = (&self.listeners, port) {
            listeners.claim(port);
        }
        let Some(uid) = self.by_node.get(&view.name).filter(|uid| **uid == view.uid).cloned() else { return };
        let Some(machine) = self.machines.get_mut(&uid) else { return };
        if machine.view.is_none() {
            let renewed = self.renewed_before.remove(&*view.name);
            match &self.listeners {
                None => machine.ip = machine.ip.or(ip),
                // With its old port the machine needs no status write; if the port is taken by now, another
                // one is assigned.
                Some(listeners) => {
                    if let Some(port) = port.and_then(|port| listeners.open(&uid, Some(port))) {
                        (machine.ip, machine.port) = (Some(listeners.address()), port);
                    }
                }
            }
            machine.boot = machine.boot.or_else(|| boot::recorded(view.boot_id.as_deref()));
            // A machine that is silent from the start has recorded no boot ID. Its boot time is the Node's
            // creation, so that the next process to carry it computes the same.
            if machine.boot.is_none() && machine.is_silent(machine.phase(now)) {
                let booted = view.created.map_or(now.wall, |created| created.min(now.wall));
                machine.boot = Some(boot::first(&uid, booted));
            }
            // An earlier process carried this machine: its status is valid until the next report.
            let was_carried = view.kubelet_version.is_some();
            if was_carried {
                machine.report_at = Some(now.at + spread(super::REPORT, 0.0));
            }
            if was_carried || renewed.is_some() {
                machine.lease = Lease::of_a_known_node(renewed);
            }
            // After a takeover of many machines, Leases due for longest go first. No Lease waits for its due
            // time, which was set by another process's clock. A new Lease is created beside the first status,
            // and before it where there is room: the NodeController removes the startup taint only with both,
            // and the sooner it acts, the fewer other writes come first.
            self.schedule.ask(machine.lease_lane(), &uid, machine.lease.due(now));
        }
        machine.view = Some(Arc::clone(view));
        self.schedule.ask(Priority::Status, &uid, now.at);
    }

    /// Handles a removed Node.
    pub fn lost_node(&mut self, view: &Arc<NodeView>) {
        self.left_endpoint(view);
        let Some(uid) = self.by_node.get(&view.name).filter(|uid| **uid == view.uid).cloned() else { return };
        self.rest(&uid);
        if let Some(machine) = self.machines.get_mut(&uid) {
            machine.view = None;
            machine.lease = Lease::default();
            let (ip, port) = (machine.ip.take(), std::mem::take(&mut machine.port));
            self.close_door(port);
            if let Some(ip) = ip.filter(|_| port == 0) {
                self.addresses.release(ip);
            }
        }
    }

    /// Syncs all machines and pods once a cache is complete again.
    pub fn on_resync(&mut self, now: Clock) {
        for uid in self.machines.keys() {
            self.schedule.ask(Priority::Status, uid, now.at);
        }
        for uid in self.pods.keys() {
            self.schedule.ask(Priority::Pod, uid, now.at);
        }
    }

    /// Next job with requests to send; jobs without requests complete on the way.
    pub fn next(&mut self, now: Clock, load: Pressure) -> Option<(Job, Vec<Request>)> {
        while let Some(job) = self.schedule.next(now.at, load) {
            let requests = self.prepare(&job, now);
            if !requests.is_empty() {
                return Some((job, requests));
            }
            self.schedule.done(job.priority, &job.uid);
        }
        None
    }

    /// Completes a job whose requests, sent at `sent`, were answered at `now`.
    pub fn finish(&mut self, job: &Job, answer: Result<&str, &WireError>, sent: Timestamp, now: Clock) {
        self.conclude(job, answer, sent, now);
        self.schedule.done(job.priority, &job.uid);
    }

    fn rest(&mut self, uid: &Arc<str>) {
        for priority in [Priority::Prompt, Priority::Lease, Priority::Renewal, Priority::Status] {
            self.schedule.cancel(priority, uid);
        }
    }
}

/// `value` as an `Arc` shared by all owners of an equal one. Few differ: one per revision and per class.
fn shared<T: PartialEq>(pool: &mut Vec<Arc<T>>, value: T) -> Arc<T> {
    if let Some(known) = pool.iter().find(|known| ***known == value) {
        return Arc::clone(known);
    }
    pool.retain(|known| Arc::strong_count(known) > 1);
    let new = Arc::new(value);
    pool.push(Arc::clone(&new));
    new
}

#[cfg(test)]
#[path = "state_tests/mod.rs"]
mod tests;
