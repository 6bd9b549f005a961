//! cluster-autoscaler, as far as its scale requests go: a loop every ten seconds, deletions beside it that are repeated
//! until they are answered, scale-ups that are given up after a while, restarts that forget everything. It evicts no pods.
//!
//! Inputs: the number of Nodes that pods need, the serving operators. Outputs: calls of the real service, taints of
//! Nodes. Invariants: a call belongs to the process that answers it; a killed process answers no call; the draws of a
//! call depend on the seed, the call and its ordinal alone.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use http::Method;
use kube_ext::environment::within;
use kube_node_api::names::TAINT_TO_BE_DELETED;
use kube_node_controllers::autoscaler::proto::{
    self as pb, cloud_provider_client::CloudProviderClient, instance_status::InstanceState::InstanceRunning,
};
use kube_node_testing::api_server::Random;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, timeout},
};
use tonic::{Response, Status, service::Routes};

use crate::{
    fault::Fault,
    network::up_to,
    objects::{name, taints},
    process::{Cluster, Endpoint},
};

/// The set that cluster-autoscaler scales.
pub const SET: &str = "a";
/// Time between two loops (`--scan-interval`); less if pods come (`--frequent-loops-enabled`), as they do in a storm.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which a scale-up has failed (`--max-node-provision-time`).
const PROVISION_TIME: Duration = Duration::from_secs(45);
/// Time limit of a call (`grpc_timeout`).
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a deletion without an answer is repeated.
const RETRY: Duration = Duration::from_secs(7);
/// Time for which pods are evicted before a deletion.
const EVICTION: Duration = Duration::from_secs(15);
/// Time of a restart.
const RESTART: Duration = Duration::from_secs(3);
/// Longest time of a call on its way, in one direction.
const WAY: Duration = Duration::from_millis(20);
/// Time after the last fault from which on no scale-up is refused.
const CALM: Duration = Duration::from_mins(2);
/// One call in so many is lost in each direction, by a fault of that kind.
const LOST: u64 = 8;
/// One call in so many finds its connection gone and goes to any process.
const RECONNECTS: u64 = 6;

/// cluster-autoscaler. Its processes share the draws alone.
pub struct ClusterAutoscaler {
    cluster: Cluster,
    restarted: Arc<Notify>,
    /// Number of calls and choices so far, by their kind.
    ordinals: Mutex<HashMap<String, u64>>,
    /// The process that it is connected to.
    connected_to: Mutex<Option<String>>,
}

/// Returns true if a Node says that it is to stay.
pub fn is_kept(node: &Value) -> bool {
    let annotation = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
    !node["metadata"]["annotations"][annotation].is_null()
}

/// A Node that is to be deleted.
#[derive(Clone)]
struct Victim {
    name: String,
    provider_id: String,
}

/// State of one process of cluster-autoscaler.
struct ProcessState {
    /// Nodes whose deletion is not answered yet, by providerID.
    deletions: Mutex<BTreeMap<String, Victim>>,
    queue: mpsc::UnboundedSender<Victim>,
}

/// A scale-up in progress.
#[derive(Clone, Copy)]
struct ScaleUp {
    since: Instant,
    delta: i32,
}

impl ClusterAutoscaler {
    /// `restarted` is told when users restart it.
    pub fn new(cluster: Cluster, restarted: Arc<Notify>) -> Self {
        Self { cluster, restarted, ordinals: Mutex::default(), connected_to: Mutex::default() }
    }

    /// Runs it, and restarts it whenever users say so.
    pub async fn keep_running(&self) {
        loop {
            let (queue, queued) = mpsc::unbounded_channel();
            let state = ProcessState { deletions: Mutex::default(), queue };
            tokio::select! {
                biased;
                () = self.restarted.notified() => {}
                () = self.delete_all(&state, queued) => {}
                () = self.scan(&state) => {}
            }
            for node in self.cluster.server.objects("", "nodes") {
                self.taint(&name(&node), false);
            }
            sleep(RESTART).await;
        }
    }

    /// Random numbers of the next choice of this kind.
    fn draws(&self, what: &str) -> Random {
        let mut ordinals = self.ordinals.lock();
        let ordinal = ordinals.entry(what.to_owned()).or_default();
        *ordinal += 1;
        let mut hasher = DefaultHasher::new();
        (self.cluster.seed, "cluster-autoscaler", what, *ordinal).hash(&mut hasher);
        Random::new(hasher.finish())
    }

    async fn scan(&self, state: &ProcessState) {
        let (mut scale_up, mut candidates) = (None, BTreeSet::new());
        loop {
            let now = self.candidates();
            // A call that fails ends the loop, and the next one begins anew.
            let _ = self.run_once(state, &candidates, &mut scale_up).await;
            candidates = now;
            let wait = up_to(&mut self.draws("scan"), SCAN_INTERVAL);
            sleep(if self.cluster.faults.storm { wait } else { SCAN_INTERVAL }).await;
        }
    }

    /// Nodes that nothing keeps it off.
    fn candidates(&self) -> BTreeSet<String> {
        let nodes = self.cluster.server.objects("", "nodes");
        nodes.iter().filter(|node| !is_kept(node)).map(|node| name(node)).collect()
    }

    /// One loop. `candidates` are those of the loop before.
    async fn run_once(
        &self,
        state: &ProcessState,
        candidates: &BTreeSet<String>,
        scale_up: &mut Option<ScaleUp>,
    ) -> Result<(), Status> {
        let id = || SET.to_owned();
        self.call("Refresh", async |mut client| client.refresh(pb::RefreshRequest {}).await).await?;
        let groups =
            self.call("NodeGroups", async |mut client| client.node_groups(pb::NodeGroupsRequest {}).await);
        let Some(group) = groups.await?.node_groups.into_iter().find(|group| group.id == SET) else {
            return Ok(());
        };
        let request = pb::NodeGroupTargetSizeRequest { id: id() };
        let target = self.call("TargetSize", async |mut client| client.node_group_target_size(request).await);
        let target = target.await?.target_size;
        let found = self.cluster.checks.scaling().check_target(target.into());
        if let Some(found) = found {
            self.cluster.checks.violate(&found);
        }
        let request = pb::NodeGroupNodesRequest { id: id() };
        let instances = self.call("Nodes", async |mut client| client.node_group_nodes(request).await);
        let instances = instances.await?.instances;
        let running: Vec<&str> = instances
            .iter()
            .filter(|one| {
                one.status.as_ref().is_some_and(|status| status.instance_state() == InstanceRunning)
            })
            .map(|one| one.id.as_str())
            .collect();
        let needed = self.cluster.checks.scaling().needed().clamp(group.min_size, group.max_size);
        self.note(&format!("needs {needed}: target {target}, {} of {} run", running.len(), instances.len()));
        if let Some(ScaleUp { since, delta }) = *scale_up
            && since.elapsed() > PROVISION_TIME
        {
            *scale_up = None;
            if count(&running) < target {
                // The delta of the whole scale-up, even if most Nodes came.
                let request = pb::NodeGroupDecreaseTargetSizeRequest { id: id(), delta: -delta };
                let call = async |mut client: Client| client.node_group_decrease_target_size(request).await;
                return self.call("DecreaseTargetSize", call).await.map(drop);
            }
        }
        let is_deleted = |id: &&&str| state.deletions.lock().contains_key(**id);
        // An accepted deletion has lowered the target already, and its instance does not run any more.
        let staying = target - i32::try_from(running.iter().filter(is_deleted).count()).unwrap();
        if staying < needed {
            let delta = (needed - staying).min(group.max_size - target);
            if delta > 0 {
                let request = pb::NodeGroupIncreaseSizeRequest { id: id(), delta };
                let call = async |mut client: Client| client.node_group_increase_size(request).await;
                let increased = self.call("IncreaseSize", call).await;
                if let Err(status) = &increased
                    && Instant::now() > self.cluster.faults.until + CALM
                {
                    self.cluster.checks.violate(&format!("a scale-up is refused: {status}"));
                }
                increased?;
                *scale_up = Some(ScaleUp { since: Instant::now(), delta });
                // These instances were listed before it.
                return Ok(());
            }
        } else if staying > needed && scale_up.is_none() {
            self.scale_down(state, candidates, &running, usize::try_from(staying - needed).unwrap());
        }
        if scale_up.is_some() && i32::try_from(instances.len()).unwrap() >= target {
            *scale_up = None;
        }
        Ok(())
    }

    /// Chooses Nodes that run, and begins to evict their pods.
    fn scale_down(&self, state: &ProcessState, candidates: &BTreeSet<String>, running: &[&str], most: usize) {
        let mut draws = self.draws("scale-down");
        let nodes = self.cluster.server.objects("", "nodes");
        let chosen: Vec<Victim> = running
            .iter()
            .filter(|id| !state.deletions.lock().contains_key(**id))
            .filter_map(|id| nodes.iter().find(|node| node["spec"]["providerID"] == **id))
            // It may have chosen a Node just before the rollout that keeps it off.
            .filter(|node| {
                !is_kept(node) || candidates.contains(&name(node)) && draws.number().is_multiple_of(2)
            })
            .map(|node| Victim {
                name: name(node),
                provider_id: node["spec"]["providerID"].as_str().unwrap_or_default().to_owned(),
            })
            .take(most)
            .collect();
        for victim in chosen {
            self.taint(&victim.name, true);
            state.deletions.lock().insert(victim.provider_id.clone(), victim.clone());
            let _ = state.queue.send(victim);
        }
    }

    async fn delete_all(&self, state: &ProcessState, mut queued: mpsc::UnboundedReceiver<Victim>) {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some(victim) = queued.recv() => running.push(self.delete(state, victim)),
                Some(()) = running.next() => {}
            }
        }
    }

    /// Deletes a Node, again until there is an answer, or until it is needed after all.
    async fn delete(&self, state: &ProcessState, victim: Victim) {
        let mut draws = self.draws(&format!("deletion of {}", victim.name));
        sleep(Duration::from_secs(1) + up_to(&mut draws, EVICTION)).await;
        loop {
            self.cluster.checks.scaling().name_victim(&victim.name);
            let Victim { name, provider_id } = victim.clone();
            let node = pb::ExternalGrpcNode { name, provider_id, ..pb::ExternalGrpcNode::default() };
            let request = pb::NodeGroupDeleteNodesRequest { id: SET.to_owned(), nodes: vec![node] };
            let call = async |mut client: Client| client.node_group_delete_nodes(request).await;
            if self.call("DeleteNodes", call).await.is_ok() {
                let found = self.cluster.checks.scaling().accept_deletion(&victim.name);
                if let Some(found) = found {
                    self.cluster.checks.violate(&found);
                }
                break;
            }
            if draws.number().is_multiple_of(4) {
                self.taint(&victim.name, false);
                break;
            }
            sleep(RETRY).await;
        }
        state.deletions.lock().remove(&victim.provider_id);
    }

    /// Sets or removes the taint of a Node that is being deleted.
    fn taint(&self, node: &str, tainted: bool) {
        let Cluster { server, checks, .. } = &self.cluster;
        let Some(object) = server.objects("", "nodes").into_iter().find(|one| name(one) == node) else {
            return;
        };
        if taints(&object).any(|key| key == TAINT_TO_BE_DELETED) == tainted {
            return;
        }
        let mut all = object["spec"]["taints"].as_array().cloned().unwrap_or_default();
        all.retain(|taint| taint["key"] != TAINT_TO_BE_DELETED);
        if tainted {
            all.push(json!({ "key": TAINT_TO_BE_DELETED, "value": "1800000000", "effect": "NoSchedule" }));
        }
        let taints = if all.is_empty() { Value::Null } else { all.into() };
        let patch = json!({ "spec": { "taints": taints } });
        self.note(&format!("{} {node}", if tainted { "taints" } else { "spares" }));
        server.write(Method::PATCH, &format!("/api/v1/nodes/{node}"), &patch);
        checks.check(server, None);
    }

    fn note(&self, what: &str) {
        self.cluster.checks.note(&format!("cluster-autoscaler {what}"));
    }

    /// One call, with its time limit.
    async fn call<T>(
        &self,
        what: &'static str,
        send: impl AsyncFnOnce(Client) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        let answer = timeout(CALL_TIMEOUT, self.reach(what, send)).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")));
        let ended = answer
            .as_ref()
            .err()
            .map_or("OK".to_owned(), |status| format!("{:?}: {}", status.code(), status.message()));
        if ended != "OK" || !["Refresh", "NodeGroups", "TargetSize", "Nodes"].contains(&what) {
            self.note(&format!("hears of {what}: {ended}"));
        }
        answer.map(Response::into_inner)
    }

    async fn reach<T>(
        &self,
        what: &'static str,
        send: impl AsyncFnOnce(Client) -> Result<Response<T>, Status>,
    ) -> Result<Response<T>, Status> {
        let Cluster { checks, endpoints, faults, .. } = &self.cluster;
        let mut draws = self.draws(what);
        let (to, from, choice) = (draws.number(), draws.number(), draws.number());
        let lost = async |number: u64, fault| {
            if faults.has(fault) && number.is_multiple_of(LOST) {
                std::future::pending::<()>().await;
            }
        };
        sleep(up_to(&mut draws, WAY)).await;
        lost(to, Fault::LostRequest).await;
        let serving: Vec<(Endpoint, Routes)> = endpoints
            .lock()
            .values()
            .filter_map(|endpoint| Some((endpoint.clone(), endpoint.service.routes()?)))
            .collect();
        if serving.is_empty() {
            return Err(Status::unavailable("nobody serves"));
        }
        let kept = self.connected_to.lock().clone().filter(|_| !choice.is_multiple_of(RECONNECTS));
        let kept = kept.and_then(|kept| serving.iter().position(|(endpoint, _)| endpoint.process == kept));
        let any = || usize::try_from(choice / RECONNECTS % serving.len() as u64).unwrap();
        let at = kept.unwrap_or_else(any);
        let (endpoint, routes) = serving.into_iter().nth(at).unwrap();
        *self.connected_to.lock() = Some(endpoint.process.clone());
        let call = checks.scaling().begin(&endpoint.process, what);
        let answer = within(endpoint.time, send(CloudProviderClient::new(routes))).await;
        endpoint.network.alive().await;
        checks.scaling().end(call, answer.is_ok());
        lost(from, Fault::LostAnswer).await;
        sleep(up_to(&mut draws, WAY)).await;
        answer
    }
}

type Client = CloudProviderClient<Routes>;

fn count(running: &[&str]) -> i32 {
    i32::try_from(running.len()).unwrap()
}
