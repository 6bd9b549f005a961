//! The NodeController with a provider of somebody's own: what it does when machines vanish, when none can be made,
//! when one takes its time to go, and when a drain has to wait for its turn.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Debug,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PropagationPolicy},
    runtime::watcher,
};
use kube_node_api::{NodeClass, NodeSet, machine_files::MachineSettings};
use kube_node_cache::{Cache, CustomObject as Stored, View};
use kube_node_controllers::{
    Context, DrainPermits, Events, Metrics, ProviderIdPrefix, ReleasedClasses, Revisions,
    node::NodeController,
    provider::{Existing, MachineId, MachineRequest, Provider, ProviderError, Renewed, Stage},
};
use kube_node_planner::foreign_times::ForeignTimes;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::CLUSTER;
use kube_node_testing::{
    Fixture, LONG, always, class_spec, condition, create, delete, eventually, name, taints,
};

/// Machines that nothing runs on.
#[derive(Default)]
pub struct Shelf {
    pub machines: HashSet<MachineId>,
    /// Each machine that was made, and when.
    pub created: Vec<(MachineId, Instant)>,
    pub full: bool,
    /// Machines that are asked to go stay until they are lost.
    pub lingers: bool,
    pub leaving: HashSet<MachineId>,
    /// Machines end as soon as they are made.
    pub dies: bool,
    /// Settings do not reach machines.
    pub deaf: bool,
    /// How often the machine of a Node was asked for: with each reconciliation of the Node.
    pub reads: BTreeMap<Arc<str>, usize>,
}

pub struct Shelves {
    name: &'static str,
    pub shelf: Mutex<Shelf>,
    changes: broadcast::Sender<MachineId>,
}

impl Shelves {
    pub fn new(name: &'static str, shelf: Shelf) -> Arc<Self> {
        Arc::new(Self { name, shelf: Mutex::new(shelf), changes: broadcast::channel(64).0 })
    }

    fn notify(&self, id: &MachineId) {
        // Nobody may be listening yet.
        let _ = self.changes.send(id.clone());
    }

    /// A machine is gone, and nobody asked for it.
    pub fn lose(&self, id: &MachineId) {
        assert!(self.shelf.lock().unwrap().machines.remove(id));
        self.notify(id);
    }

    pub fn created(&self) -> Vec<MachineId> {
        self.shelf.lock().unwrap().created.iter().map(|(id, _)| id.clone()).collect()
    }
}

#[async_trait]
impl Provider for Shelves {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn create(&self, order: &MachineRequest) -> Result<(), ProviderError> {
        let mut locked = self.shelf.lock().unwrap();
        let made = if locked.full {
            Err(ProviderError::OutOfResources("no shelf has room for it".to_owned()))
        } else {
            locked.machines.insert(order.id.clone());
            locked.created.push((order.id.clone(), Instant::now()));
            Ok(())
        };
        drop(locked);
        if made.is_ok() {
            self.notify(&order.id);
        }
        made
    }

    async fn update(&self, _: &MachineId, _: &MachineSettings) -> Result<(), ProviderError> {
        let deaf = self.shelf.lock().unwrap().deaf;
        if deaf { Err(ProviderError::Unreachable("nobody hears".to_owned())) } else { Ok(()) }
    }

    async fn exists(&self, id: &MachineId) -> Result<Option<Existing>, ProviderError> {
        let mut locked = self.shelf.lock().unwrap();
        *locked.reads.entry(Arc::clone(&id.node)).or_default() += 1;
        let (known, leaving, dies) = (locked.machines.contains(id), locked.leaving.contains(id), locked.dies);
        drop(locked);
        Ok(known.then_some(Existing {
            stage: match (leaving, dies) {
                (true, _) => Stage::Leaving,
                (false, true) => Stage::Dead,
                (false, false) => Stage::Up,
            },
            lease: Renewed::Unknown,
            trouble: None,
            last_end: None,
        }))
    }

    async fn delete(&self, id: &MachineId) -> Result<(), ProviderError> {
        let mut locked = self.shelf.lock().unwrap();
        if locked.lingers {
            locked.leaving.insert(id.clone());
        } else {
            locked.machines.remove(id);
        }
        drop(locked);
        self.notify(id);
        Ok(())
    }

    fn count(&self) -> usize {
        self.shelf.lock().unwrap().machines.len()
    }

    async fn list(&self) -> Vec<MachineId> {
        self.shelf.lock().unwrap().machines.iter().cloned().collect()
    }

    fn watch(&self) -> BoxStream<'static, MachineId> {
        let changes = stream::unfold(self.changes.subscribe(), |mut changes| async {
            let id = changes.recv().await.ok()?;
            Some((id, changes))
        });
        changes.boxed()
    }
}

/// Runs a NodeController over it; the test cluster's own operator makes the Nodes and leaves their machines alone.
async fn serve(shelves: Arc<Shelves>) -> Arc<Context> {
    serve_with(shelves, &prometheus::Registry::new()).await
}

/// The same, with metrics in `registry`.
pub async fn serve_with(shelves: Arc<Shelves>, registry: &prometheus::Registry) -> Arc<Context> {
    let client = CLUSTER.client().await;
    let name = shelves.name;
    let provider: Arc<dyn Provider> = shelves;
    let context = Arc::new(Context {
        nodes: Arc::default(),
        pods: Arc::default(),
        classes: Arc::default(),
        sets: Arc::default(),
        revisions: Revisions::new(client.clone(), "kube-node-system"),
        expectations: HashMap::new().into(),
        released_classes: ReleasedClasses::default(),
        foreign_times: ForeignTimes::default().into(),
        drain_permits: DrainPermits::default(),
        events: Events::register(client.clone(), name, registry).unwrap(),
        metrics: Metrics::register(registry).unwrap(),
        providers: BTreeMap::from([(name, provider)]),
        pod_cidrs: None,
        provider_id_prefix: ProviderIdPrefix::default(),
        client: client.clone(),
    });
    let (controller, queue) = NodeController::new(Arc::clone(&context));
    fill::<Stored<NodeClass>, _>(&client, watcher::Config::default(), &context.classes).await;
    fill::<Stored<NodeSet>, _>(&client, watcher::Config::default(), &context.sets).await;
    let every = watcher::Config::default();
    tokio::spawn(kube_node_cache::run_protobuf(client.clone(), every.clone(), Arc::clone(&context.nodes)));
    tokio::spawn(kube_node_cache::run_protobuf(
        client.clone(),
        every.fields("spec.nodeName!="),
        Arc::clone(&context.pods),
    ));
    eventually("watches in sync", LONG, async || {
        (context.nodes.in_sync() && context.pods.in_sync()).then_some(())
    })
    .await;
    tokio::spawn(controller.run(queue, CancellationToken::new()));
    context
}

/// A set without Nodes yet, of a class that `shelves` serves.
pub async fn set_of(shelves: &Shelves, set: &str) -> Fixture {
    let mut class = class_spec();
    class["nodeController"] = json!(shelves.name);
    let own = Fixture::without_set(&CLUSTER, set, class).await;
    let accepted = json!({"status": {"conditions": [{"type": "Accepted", "status": "True", "reason": "Served",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    own.classes.patch_status(set, &PatchParams::default(), &Patch::Merge(accepted)).await.unwrap();
    own
}

async fn fill<K, V>(client: &Client, config: watcher::Config, cache: &Arc<Cache<V>>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    V: View + From<K>,
{
    let api: Api<K> = Api::all(client.clone());
    tokio::spawn(kube_node_cache::run(api, config, Arc::clone(cache)));
    eventually("a watch in sync", LONG, async || cache.in_sync().then_some(())).await;
}

#[tokio::test]
async fn machines_that_vanish_are_made_again_and_a_full_provider_is_waited_for() {
    let shelves = Shelves::new("machines.example.com", Shelf { full: true, ..Shelf::default() });
    let own = set_of(&shelves, "machines").await;
    own.create_set(2, json!({})).await;
    serve(Arc::clone(&shelves)).await;

    // No room: each Node says so, and so does the set.
    let said = own.set_says("Degraded", "True", "NodesInTrouble").await;
    assert!(said.contains("OutOfResources: no shelf has room for it"), "{said}");
    assert!(shelves.created().is_empty());
    // Room is made by others: found without anybody's doing, within the provider's retry time.
    shelves.shelf.lock().unwrap().full = false;
    eventually("both machines are made", LONG, async || (shelves.created().len() == 2).then_some(())).await;
    own.set_says("Degraded", "False", "AsExpected").await;

    // A machine vanishes: the same Node gets another one, at once, and the other is left alone.
    let node = &own.my_nodes().await[0];
    let uid: Arc<str> = node.metadata.uid.as_deref().unwrap().into();
    let lost = MachineId { uid, node: name(node).as_str().into() };
    shelves.lose(&lost);
    eventually("it is made again", Duration::from_secs(10), async || {
        let created = shelves.created();
        (created.len() == 3 && created[2] == lost).then_some(())
    })
    .await;
    always("once", Duration::from_secs(2), async || shelves.created().len() == 3).await;
    let again = own.nodes.get(&name(node)).await.unwrap();
    assert_eq!(again.metadata.uid, node.metadata.uid);
    assert_eq!(condition(&again, "kube-node.io/Machine").unwrap().status, "True");

    own.clean_up().await;
    assert!(shelves.shelf.lock().unwrap().machines.is_empty());
}

/// A Node whose machine nobody hears from, with a pod that can end nowhere.
#[tokio::test]
async fn out_of_service_is_said_of_a_machine_that_is_gone_and_of_no_other() {
    let anchor = Fixture::anchor(&CLUSTER, "anchor-slow").await;
    let shelves = Shelves::new("slow.example.com", Shelf { lingers: true, ..Shelf::default() });
    let own = set_of(&shelves, "machine-slow").await;
    let labels = json!({"kube-node.io/nodeclass": "machine-slow"});
    create(&own.nodes, json!({"metadata": {"name": "machine-slow", "labels": labels}})).await.unwrap();
    serve(Arc::clone(&shelves)).await;
    eventually("the machine is made", LONG, async || (shelves.created().len() == 1).then_some(())).await;
    let grace = json!({"terminationGracePeriodSeconds": 2});
    own.pod_on("machine-slow", "machine-slow", json!({}), grace).await;
    delete(&own.nodes, "machine-slow", PropagationPolicy::Background).await;

    let is_leaving = async || !shelves.shelf.lock().unwrap().leaving.is_empty();
    let said = async || {
        let node = own.nodes.get("machine-slow").await.unwrap();
        taints(&node).iter().any(|(key, _)| key == "node.kubernetes.io/out-of-service")
    };
    eventually("its pod holds the machine up no more", Duration::from_secs(150), async || {
        assert!(!said().await, "its machine is there");
        is_leaving().await.then_some(())
    })
    .await;
    always("the machine takes its time", Duration::from_secs(7), async || !said().await).await;
    assert!(own.pods.get_opt("machine-slow").await.unwrap().is_some());
    let lost = shelves.created().remove(0);
    shelves.lose(&lost);
    eventually("out of service", LONG, async || said().await.then_some(())).await;
    own.pod_goes_before_node("machine-slow", "machine-slow").await;
    own.clean_up().await;
    anchor.clean_up().await;
}

#[tokio::test]
async fn a_drain_begins_when_its_set_grants_the_turn() {
    let shelves = Shelves::new("turns.example.com", Shelf::default());
    let own = set_of(&shelves, "machine-turn").await;
    own.create_set(1, json!({})).await;
    // Nobody grants turns here but the test: the operator that counts replicas is another process.
    let context = serve(Arc::clone(&shelves)).await;
    eventually("the machine is made", LONG, async || (shelves.created().len() == 1).then_some(())).await;
    let node = name(&own.my_nodes().await[0]);
    delete(&own.nodes, &node, PropagationPolicy::Background).await;
    let said = eventually("it waits for its turn", LONG, async || {
        condition(&own.nodes.get(&node).await.unwrap(), "kube-node.io/Drained").cloned()
    })
    .await;
    assert_eq!((said.status.as_str(), said.reason.as_deref()), ("False", Some("WaitingForBudget")));
    always("it works on, and says so once", Duration::from_secs(3), async || {
        let node = own.nodes.get(&node).await.unwrap();
        let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        !cordoned && condition(&node, "kube-node.io/Drained") == Some(&said)
    })
    .await;
    let uid: Arc<str> = own.nodes.get(&node).await.unwrap().metadata.uid.unwrap().into();
    context.drain_permits.replace("machine-turn", [(uid, node.as_str().into())]);
    eventually("it goes at once", Duration::from_secs(20), async || {
        own.nodes.get_opt(&node).await.unwrap().is_none().then_some(())
    })
    .await;
    // A set that leaves grants nothing, and needs not.
    own.clean_up().await;
}
