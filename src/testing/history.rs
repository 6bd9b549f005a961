//! The recorded history of the Nodes of a set, by a watch, which misses no short-lived state; and the Leases of their machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use kube_node_api::names::LABEL_REVISION;
use tokio_util::task::AbortOnDropHandle;

use crate::{Fixture, LONG, condition, eventually, is_ready, name};

/// A Node of the history.
#[derive(Clone, Debug)]
struct Seen {
    /// Time of the first event of the Node, and its revision then. Only the Debug output of a failed test reads them.
    _first: (Timestamp, Option<String>),
    was_ready: bool,
}

#[derive(Clone, Debug, Default)]
struct Events {
    /// Time of the first complete list.
    begun: Option<Timestamp>,
    /// By name and UID.
    nodes: BTreeMap<String, Seen>,
    gone: BTreeSet<String>,
    /// Nodes that had been Ready, and what they said then.
    fell: Vec<String>,
}

/// The recording, which goes on until it is dropped.
pub struct RecordedHistory {
    seen: Arc<Mutex<Events>>,
    _watch: AbortOnDropHandle<()>,
}

impl RecordedHistory {
    /// Begins once all Nodes that are there are known.
    pub async fn begin(fixture: &Fixture) -> Self {
        let seen: Arc<Mutex<Events>> = Arc::default();
        let task = tokio::spawn(write(fixture.nodes.clone(), fixture.name.clone(), Arc::clone(&seen)));
        let history = Self { seen, _watch: AbortOnDropHandle::new(task) };
        eventually("the history begins", LONG, async || history.read().begun).await;
        history
    }

    fn read(&self) -> Events {
        self.seen.lock().unwrap().clone()
    }

    /// How many Nodes there ever were.
    pub fn born(&self) -> usize {
        self.read().nodes.len()
    }

    /// There were so many Nodes, all of them are there, and none that was Ready ever ceased to be.
    pub async fn shows_nothing_but(&self, count: usize) {
        eventually("the history has all Nodes", LONG, async || {
            if self.born() >= count { Ok(()) } else { Err(self.read()) }
        })
        .await;
        let all = self.read();
        assert_eq!(all.nodes.len(), count, "made twice: {all:?}");
        assert!(all.gone.is_empty(), "deleted: {all:?}");
        assert!(all.fell.is_empty(), "not Ready any more: {all:?}");
    }
}

fn is_fresh(lease: &Lease) -> bool {
    let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
    renewed.is_some_and(|time| Timestamp::now().duration_since(time.0).as_secs() < 20)
}

/// Waits until all Leases of machines are fresh, however many there are.
pub async fn renewed(client: &Client, limit: Duration) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    eventually("all Leases of machines are fresh", limit, async || {
        let leases = leases.list(&ListParams::default()).await.unwrap();
        let old: Vec<String> =
            leases.iter().filter(|lease| !is_fresh(lease)).map(ResourceExt::name_any).collect();
        if old.is_empty() { Ok(()) } else { Err(old) }
    })
    .await;
}

/// Waits until each Node of the cluster has a fresh Lease, and nobody else has one: what holds a Lease is a machine.
pub async fn leased(client: &Client, limit: Duration) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let nodes: Api<Node> = Api::all(client.clone());
    let names = |names: Vec<String>| names.into_iter().collect::<BTreeSet<_>>();
    eventually("a fresh Lease for each Node, and for nobody else", limit, async || {
        let nodes = nodes.list(&ListParams::default()).await.unwrap().items;
        let leases = leases.list(&ListParams::default()).await.unwrap().items;
        let are_fresh = leases.iter().all(is_fresh);
        let held = names(leases.iter().map(ResourceExt::name_any).collect());
        let nodes = names(nodes.iter().map(name).collect());
        if are_fresh && held == nodes { Ok(()) } else { Err((are_fresh, held, nodes)) }
    })
    .await;
}

/// A Node that was made again under its name is another one.
fn who(node: &Node) -> String {
    format!("{} {}", name(node), node.uid().unwrap())
}

async fn write(nodes: Api<Node>, set: String, seen: Arc<Mutex<Events>>) {
    let config = watcher::Config::default().labels(&format!("kube-node.io/nodeset={set}"));
    let mut events = pin!(watcher(nodes, config).default_backoff());
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        let Ok(event) = event else { continue };
        let mut seen = seen.lock().unwrap();
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::Apply(node) | watcher::Event::InitApply(node) => {
                listed.insert(who(&node));
                let first = || (Timestamp::now(), node.labels().get(LABEL_REVISION).cloned());
                let known = seen.nodes.entry(who(&node));
                let known = known.or_insert_with(|| Seen { _first: first(), was_ready: false });
                let fell = known.was_ready && !is_ready(&node);
                known.was_ready |= is_ready(&node);
                if fell {
                    seen.fell.push(format!("{}: {:?}", who(&node), condition(&node, "Ready")));
                }
            }
            watcher::Event::InitDone => {
                let gone: Vec<_> =
                    seen.nodes.keys().filter(|node| !listed.contains(*node)).cloned().collect();
                seen.gone.extend(gone);
                seen.begun = Some(Timestamp::now());
            }
            watcher::Event::Delete(node) => {
                seen.gone.insert(who(&node));
            }
        }
    }
}
