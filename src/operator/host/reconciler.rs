//! Host reconciler: creates and removes the machines of this worker as Nodes, classes, sets and workers change.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::StreamExt;
use kube::{Api, Client};
use kube_ext::{
    error::chain,
    leader::clock::Moment,
    work_queue::{Action, Config, Consumer, WorkQueue, run, work_queue},
};
use kube_node_api::names;
use kube_node_cache::{CachedNodeClass, CachedNodeSet, CustomObject, EventHandler, NodeView};
use kube_node_controllers::{
    Revisions,
    hosts::{MembershipWatch, Present, share},
    machine_spec,
    node::set_condition,
    provider::{MachineId, MachineRequest, OUT_OF_RESOURCES, ProviderError},
};
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::Caches;
use crate::hollow::InProcess;

/// Concurrent reconciliations. None waits for more than the read of a revision that is not cached.
const CONCURRENCY: usize = 8;
/// Delay of a new worker after its Lease is seen. By then the other workers have removed the machines that it
/// takes over.
const SETTLE: Duration = Duration::from_secs(1);
/// Delay before a missing worker counts as lost: a list, and a watch that catches up, show Leases one after another.
const DOUBT: Duration = Duration::from_millis(500);
/// Interval of the checks that the watch of the Leases works.
const LISTEN: Duration = Duration::from_secs(2);
/// Time without own heartbeats after which the watch of the Leases is restarted.
const DEAF_AFTER: Duration = Duration::from_secs(8);

/// Machines of this worker, and the state that they follow from.
pub(super) struct HostReconciler {
    group: Arc<str>,
    host: Arc<str>,
    client: Client,
    caches: Caches,
    revisions: Revisions,
    membership: Arc<MembershipWatch>,
    /// Present workers at the last computation of the shares.
    present: Mutex<Present>,
    machines: InProcess,
    requests: WorkQueue<Arc<str>>,
}

impl HostReconciler {
    /// A reconciler without machines. `caches` must be filled by watches that cover the group.
    pub(super) fn new(
        (group, host): (&str, &str),
        client: Client,
        caches: Caches,
        revisions: Revisions,
        membership: Arc<MembershipWatch>,
        machines: InProcess,
    ) -> (Arc<Self>, Consumer<Arc<str>>) {
        let (requests, queue) = work_queue();
        let reconciler = Arc::new(Self {
            group: group.into(),
            host: host.into(),
            client,
            caches,
            revisions,
            membership,
            present: Mutex::default(),
            machines,
            requests,
        });
        let Caches { nodes, classes, sets, .. } = &reconciler.caches;
        nodes.add_event_handler(reconciler.clone());
        classes.add_event_handler(reconciler.clone());
        sets.add_event_handler(reconciler.clone());
        (reconciler, queue)
    }

    /// Waits until every other worker knows of this one.
    pub(super) async fn settle(&self) {
        let mut known = Present::new();
        while known.get(&self.group).is_none_or(|hosts| !hosts.contains(&self.host)) {
            known = self.membership.wait_for_change(&known).await;
        }
        sleep(SETTLE).await;
    }

    /// Reconciles until `stop`, then finishes work in flight. `peers` is the gauge of present workers.
    pub(super) async fn run(
        self: Arc<Self>,
        queue: Consumer<Arc<str>>,
        peers: IntGauge,
        stop: CancellationToken,
    ) {
        let config = Config { concurrency: CONCURRENCY, min_interval: Duration::ZERO };
        let work = run(queue, config, &stop, |name| {
            let reconciler = Arc::clone(&self);
            async move { reconciler.reconcile(&name).await }
        });
        let following = async { tokio::join!(self.follow_membership(peers), self.follow_machines()) };
        tokio::join!(work, stop.run_until_cancelled(following));
    }

    /// Enqueues the Node of each machine that changed, for example because there is room for it now.
    async fn follow_machines(&self) {
        let mut changes = self.machines.watch();
        while let Some(id) = changes.next().await {
            self.requests.add(id.node);
        }
    }

    /// Enqueues all Nodes whenever a worker joins or leaves.
    async fn follow_membership(&self, peers: IntGauge) {
        // Before the first reconciliation no worker is known, so every present one counts as new.
        let mut known = Present::new();
        loop {
            if let Ok(mut present) = timeout(LISTEN, self.membership.wait_for_change(&known)).await {
                let is_lost = is_lost(&known, &present);
                if is_lost {
                    sleep(DOUBT).await;
                    present = self.membership.present();
                }
                if is_lost || known.is_empty() {
                    // The watch may lag behind the last writes of the workers that ran these machines: a pod that they
                    // started would be started again, and get an address that they gave to another one.
                    self.caches.pods.relist();
                }
                let hosts = present.get(&self.group).map_or(0, BTreeSet::len);
                info!(hosts, "who is present has changed");
                peers.set(i64::try_from(hosts).unwrap_or(i64::MAX));
                self.present.lock().clone_from(&present);
                known = present;
                self.enqueue(|_| true);
            } else if self.is_deaf() {
                warn!("the watch of the Leases of hosts shows nothing: it is restarted");
                self.caches.hosts.relist();
            }
        }
    }

    fn is_deaf(&self) -> bool {
        self.membership.own_heartbeat().is_some_and(|last| last.until(Moment::now()) > DEAF_AFTER)
    }

    /// Enqueues the Nodes for which `is_affected` returns true.
    fn enqueue(&self, is_affected: impl Fn(&NodeView) -> bool) {
        for node in self.caches.nodes.all().iter().filter(|node| is_affected(node)) {
            self.requests.add(Arc::clone(&node.name));
        }
    }

    async fn reconcile(&self, name: &Arc<str>) -> Action {
        let mut node = self.caches.nodes.get(name);
        if let Some(others) = node.take_if(|node| !self.is_ours(node)) {
            self.machines.forget(&others.uid);
        }
        if let Some(uid) = self.machines.machine_of(name)
            && node.as_ref().is_none_or(|node| node.uid != uid)
        {
            debug!(node = &**name, "drops its machine");
            self.machines.delete(&uid);
        }
        let Some(node) = node else { return Action::AwaitChange };
        let Err(error) = self.ensure_machine(&node).await else {
            return self.report(&node, (true, "Running", "a host carries it")).await;
        };
        let Some(full) = error.downcast_ref::<ProviderError>().filter(|own| own.is_out_of_resources()) else {
            warn!(node = &**name, error = chain(&*error), "cannot carry its machine");
            return Action::Failed;
        };
        match self.report(&node, (false, full.reason(), &chain(full))).await {
            Action::AwaitChange => full.retry_after().map_or(Action::Failed, Action::RequeueAfter),
            other => other,
        }
    }

    /// Writes on the Node that there is no room for its machine, and later that there is: the operator cannot
    /// know. Nothing else about the machine is written here.
    async fn report(&self, node: &NodeView, update: (bool, &str, &str)) -> Action {
        let was_full =
            node.condition(names::CONDITION_MACHINE).is_some_and(|shown| &*shown.reason == OUT_OF_RESOURCES);
        if update.0 && !was_full {
            return Action::AwaitChange;
        }
        let ((status, reason, message), api) = (update, Api::all(self.client.clone()));
        match set_condition(&api, node, names::CONDITION_MACHINE, status, reason, message).await {
            Ok(()) => Action::AwaitChange,
            Err(error) => {
                warn!(node = &*node.name, error = chain(&error), "cannot say how its machine stands");
                Action::Failed
            }
        }
    }

    fn is_ours(&self, node: &NodeView) -> bool {
        let present = self.present.lock();
        let hosts = present.get(&self.group).into_iter().flatten();
        share::host_of(hosts.map(|host| &**host), &node.uid) == Some(&self.host)
    }

    /// Creates the machine of a Node, or updates its settings.
    async fn ensure_machine(&self, node: &NodeView) -> anyhow::Result<()> {
        // The operator reports a missing revision on the Node, and the set may store it again.
        let stored = machine_spec::stored(&self.revisions, node).await?;
        let machine = stored.context("its revision is not stored")?;
        let class = node.class().and_then(|class| self.caches.classes.get(class));
        let class = readable(class.as_ref()).map(|class| &class.spec);
        let settings = machine_spec::settings(node, &machine, class, &self.caches.sets);
        let id = MachineId::of(node);
        if self.machines.get(&id).is_some() {
            self.machines.update(&id.uid, &settings);
            return Ok(());
        }
        let request = MachineRequest { id, machine: (*machine).clone(), settings, credentials: None };
        Ok(self.machines.create(&request)?)
    }
}

/// Returns true if a worker is missing that was present before.
fn is_lost(before: &Present, after: &Present) -> bool {
    before.iter().any(|(group, hosts)| after.get(group).is_none_or(|left| !hosts.is_subset(left)))
}

/// The object of a cache entry; None if it cannot be parsed.
fn readable<K>(entry: Option<&Arc<CustomObject<K>>>) -> Option<&K> {
    entry?.object.as_deref().ok()
}

impl EventHandler<NodeView> for HostReconciler {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        // A machine is made from the labels of its Node; the status is the machine's own output.
        if old.map(|node| (&node.uid, &node.labels)) != new.map(|node| (&node.uid, &node.labels))
            && let Some(node) = new.or(old)
        {
            self.requests.add(Arc::clone(&node.name));
        }
    }
}

impl EventHandler<CachedNodeClass> for HostReconciler {
    fn on_change(&self, old: Option<&Arc<CachedNodeClass>>, new: Option<&Arc<CachedNodeClass>>) {
        if readable(old).map(|class| &class.spec.failures) != readable(new).map(|class| &class.spec.failures)
            && let Some(class) = new.or(old)
        {
            self.enqueue(|node| node.class() == Some(class.name()));
        }
    }
}

impl EventHandler<CachedNodeSet> for HostReconciler {
    fn on_change(&self, old: Option<&Arc<CachedNodeSet>>, new: Option<&Arc<CachedNodeSet>>) {
        if readable(old).map(|set| &set.spec.class_overrides)
            != readable(new).map(|set| &set.spec.class_overrides)
            && let Some(set) = new.or(old)
        {
            self.enqueue(|node| node.set() == Some(set.name()));
        }
    }
}
