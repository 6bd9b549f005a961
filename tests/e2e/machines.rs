//! The NodeController with a provider of somebody's own: what it does when machines vanish and when none can be made.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream, stream::BoxStream};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    core::DeserializeGuard,
    runtime::watcher,
};
use kube_node::{
    api::{NodeClass, NodeSet},
    cache::{self, Cache, View, WireNode, WirePod},
    controllers::{Context, Events, Metrics, ProviderIdPrefix, Revisions, Turns, node::NodeController},
    providers::{Existing, MachineId, Order, Provider, ProviderError, Settings},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::broadcast;

use crate::bed::{LONG, Own, always, bed, class_spec, condition, eventually, name};

const PROVIDER: &str = "machines.example.com";

/// Machines that nothing runs on.
#[derive(Default)]
struct Shelf {
    machines: HashSet<MachineId>,
    created: Vec<MachineId>,
    full: bool,
}

struct Shelves {
    shelf: Mutex<Shelf>,
    changes: broadcast::Sender<MachineId>,
}

impl Shelves {
    fn tell(&self, id: &MachineId) {
        // Nobody may be listening yet.
        let _ = self.changes.send(id.clone());
    }

    /// A machine is gone, and nobody asked for it.
    fn lose(&self, id: &MachineId) {
        assert!(self.shelf.lock().unwrap().machines.remove(id));
        self.tell(id);
    }

    fn created(&self) -> Vec<MachineId> {
        self.shelf.lock().unwrap().created.clone()
    }
}

impl Provider for Shelves {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn create<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<(), ProviderError>> {
        let mut locked = self.shelf.lock().unwrap();
        let made = if locked.full {
            Err(ProviderError::OutOfResources { message: "no shelf has room for it".to_owned() })
        } else {
            locked.machines.insert(order.id.clone());
            locked.created.push(order.id.clone());
            Ok(())
        };
        drop(locked);
        if made.is_ok() {
            self.tell(&order.id);
        }
        async move { made }.boxed()
    }

    fn update<'a>(&'a self, _: &'a MachineId, _: &'a Settings) -> BoxFuture<'a, Result<(), ProviderError>> {
        async { Ok(()) }.boxed()
    }

    fn exists<'a>(&'a self, id: &'a MachineId) -> BoxFuture<'a, Result<Option<Existing>, ProviderError>> {
        let known = self.shelf.lock().unwrap().machines.contains(id);
        async move { Ok(known.then_some(Existing { leaving: false, lease_renewed: None })) }.boxed()
    }

    fn delete<'a>(&'a self, id: &'a MachineId) -> BoxFuture<'a, Result<(), ProviderError>> {
        self.shelf.lock().unwrap().machines.remove(id);
        self.tell(id);
        async { Ok(()) }.boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<MachineId>, ProviderError>> {
        let all = self.shelf.lock().unwrap().machines.iter().cloned().collect();
        async move { Ok(all) }.boxed()
    }

    fn watch(&self) -> BoxStream<'static, MachineId> {
        let changes = stream::unfold(self.changes.subscribe(), |mut changes| async {
            let id = changes.recv().await.ok()?;
            Some((id, changes))
        });
        changes.boxed()
    }
}

/// Runs a NodeController over it; the bed's own operator makes the Nodes and leaves their machines alone.
async fn serve(shelves: Arc<Shelves>) {
    let client = bed().client().await;
    let registry = prometheus::Registry::new();
    let provider: Arc<dyn Provider> = shelves;
    let context = Arc::new(Context {
        nodes: Arc::default(),
        pods: Arc::default(),
        classes: Arc::default(),
        sets: Arc::default(),
        revisions: Revisions::new(client.clone(), "kube-node-system"),
        turns: Turns::default(),
        events: Events::new(client.clone(), PROVIDER),
        metrics: Metrics::register(&registry).unwrap(),
        providers: BTreeMap::from([(PROVIDER, provider)]),
        provider_id_prefix: ProviderIdPrefix::default(),
        client: client.clone(),
    });
    let (controller, queue) = NodeController::new(Arc::clone(&context));
    fill::<DeserializeGuard<NodeClass>, _>(&client, watcher::Config::default(), &context.classes).await;
    fill::<DeserializeGuard<NodeSet>, _>(&client, watcher::Config::default(), &context.sets).await;
    fill::<WireNode, _>(&client, watcher::Config::default(), &context.nodes).await;
    fill::<WirePod, _>(&client, watcher::Config::default().fields("spec.nodeName!="), &context.pods).await;
    tokio::spawn(controller.run(queue));
}

async fn fill<K, V>(client: &Client, config: watcher::Config, cache: &Arc<Cache<V>>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    V: View + From<K>,
{
    let api: Api<K> = Api::all(client.clone());
    tokio::spawn(cache::run(api, config, Arc::clone(cache)));
    eventually("a watch in sync", LONG, async || cache.in_sync().then_some(())).await;
}

#[tokio::test]
async fn machines_that_vanish_are_made_again_and_a_full_provider_is_waited_for() {
    let shelves = Arc::new(Shelves { shelf: Mutex::default(), changes: broadcast::channel(64).0 });
    shelves.shelf.lock().unwrap().full = true;
    let mut class = class_spec();
    class["nodeController"] = json!(PROVIDER);
    let own = Own::without_set("machines", class).await;
    let accepted = json!({"status": {"conditions": [{"type": "Accepted", "status": "True", "reason": "Served",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    own.classes.patch_status("machines", &PatchParams::default(), &Patch::Merge(accepted)).await.unwrap();
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
