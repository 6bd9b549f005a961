//! Simulations with an API server that accepts every request: the requests sent, and their times.

use std::collections::{HashMap, HashSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_ext::transport::{Body, TransportError};
use kube_node_api::{FailureMode, Failures, GoDuration, Resources, names};
use kube_node_cache::{Container, ContainerState, ContainerView, PodSpecView, PodStatus, PodView};
use serde_json::Value;

use super::*;
use crate::{boot, schedule::Pressure};

mod csi_nodes;
mod failures;
mod machines;
mod pods;

/// A coordinator with its own clock, and all requests sent: seconds since the start, method, last part of the path.
struct World {
    coordinator: Coordinator,
    start: Clock,
    sent: Vec<(u64, String)>,
    /// Last status written for each pod, by pod name.
    statuses: HashMap<String, Value>,
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn node(name: &str, version: u64) -> NodeView {
    NodeView {
        name: name.into(),
        uid: format!("uid-{name}").into(),
        resource_version: version.to_string(),
        ..NodeView::default()
    }
}

fn pod(name: &str, node: &str) -> PodView {
    PodView {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-{name}").into(),
        node: node.into(),
        spec: Arc::new(PodSpecView {
            containers: [Container { name: "a".into(), ..Container::default() }].into(),
            ..PodSpecView::default()
        }),
        status: PodStatus { phase: "Pending".into(), ..PodStatus::default() },
        ..PodView::default()
    }
}

impl World {
    fn new(nodes: Vec<NodeView>, pods: Vec<PodView>) -> Self {
        Self {
            coordinator: Coordinator::new(Cache::full(nodes), Cache::full(pods), secs(15)),
            start: Clock::now(),
            sent: Vec::new(),
            statuses: HashMap::new(),
        }
    }

    fn clock(&self, second: u64) -> Clock {
        Clock { at: self.start.at + secs(second), wall: self.start.wall + secs(second) }
    }

    fn create(&mut self, name: &str, failures: Option<Failures>) {
        self.create_with(name, &format!("uid-{name}"), failures);
    }

    fn create_as(&mut self, name: &str, uid: &str) {
        self.create_with(name, uid, None);
    }

    fn create_with(&mut self, name: &str, uid: &str, failures: Option<Failures>) {
        let spec = MachineSpec {
            node: name.into(),
            uid: uid.into(),
            capacity: Resources::new(),
            allocatable: Resources::from([("pods".to_owned(), Quantity("110".to_owned()))]),
            kubelet_version: "v1.36.3".to_owned(),
            container_runtime: "containerd://2.1.0".to_owned(),
            ip: None,
            settings: MachineSettings { failures, ..MachineSettings::default() },
        };
        self.coordinator.create(spec, self.start);
    }

    /// Sends all due requests up to `second`, in steps of 10 ms; each write makes version 1,000.
    fn run(&mut self, second: u64) {
        let hundredth = Duration::from_millis(10);
        let end = self.start.at + secs(second);
        let mut now = self.start;
        while now.at <= end {
            self.run_at(now);
            now = Clock { at: now.at + hundredth, wall: now.wall + hundredth };
        }
    }

    /// Sends the requests that are due `now`.
    fn run_at(&mut self, now: Clock) {
        while let Some((job, requests, _)) = self.coordinator.next(now, Pressure::Light) {
            let after = now.at.duration_since(self.start.at).as_secs();
            for request in requests {
                let pod = request.path.strip_prefix("/api/v1/namespaces/default/pods/");
                if let (Body::StrategicPatch(patch), Some(path)) = (&request.body, pod) {
                    let patch: Value = serde_json::from_slice(patch).unwrap();
                    let pod = path.trim_end_matches("/status").to_owned();
                    self.statuses.insert(pod, patch["status"].clone());
                }
                let path = request.path.rsplit('/').next().unwrap_or_default();
                self.sent.push((after, format!("{} {path}", request.method)));
            }
            self.coordinator.finish(&job, Ok("1000"), now.wall, now);
        }
    }

    /// Syncs all machines and pods, as after a list; returns how often the lock is taken for that.
    fn resync(&mut self, now: Clock) -> usize {
        let mut left = Some(Resync::Machines(None));
        std::iter::from_fn(|| left.take().map(|from| left = self.coordinator.on_resync(from, now))).count()
    }

    fn machine(&self, name: &str) -> &Machine {
        &self.coordinator.kubelets[&*format!("uid-{name}")].machine
    }

    fn times(&self, what: &str) -> Vec<u64> {
        self.sent.iter().filter(|(_, sent)| sent == what).map(|(at, _)| *at).collect()
    }
}
