//! NodeController: creates the machine of each Node of its classes, lets pods in once the machine works,
//! drains a leaving Node and deletes its machine. It never counts replicas.

mod adopt;
mod apply;
mod attachments;
mod drain;
mod lease_renewals;
mod observe;
mod status;
mod sweep;
mod writes;

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::PartialObjectMeta};
use kube_ext::{
    call::ApiError,
    environment,
    error::chain,
    work_queue::{Action, Config, Consumer, WorkQueue, work_queue},
};
use kube_node_cache::{CachedNodeClass, CachedNodeSet, EventHandler, NodeView, PodView};
use kube_node_planner::{machine_backoff::MachineBackoffs, node, wait::NodeWait};
use parking_lot::Mutex;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

pub(crate) use self::status::ReportedWaits;
pub use self::status::set_condition;
use self::{attachments::Attachments, lease_renewals::LeaseRenewals, writes::Writes};
use super::{Context, ReconcileError, reconcile::Result};
use crate::provider::{MachineId, ProviderError};

/// Concurrent reconciliations; each sends one write at a time.
const CONFIG: Config = Config { concurrency: 32, min_interval: Duration::ZERO };
/// Interval at which all machines are compared with all Nodes, for changes that no watch has shown.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// Key of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A Node, by name.
    Node(Arc<str>),
    /// A machine whose Node may be gone.
    Machine(MachineId),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Node(node) | Self::Machine(MachineId { node, .. })) = self;
        f.write_str(node)
    }
}

/// The controller.
pub struct NodeController {
    context: Arc<Context>,
    /// Answers are read as metadata: the watch brings the rest.
    api: Api<PartialObjectMeta<Node>>,
    requests: WorkQueue<Key>,
    waits: ReportedWaits,
    writes: Writes,
    lease_renewals: LeaseRenewals,
    attachments: Attachments,
    /// UIDs of leaving Nodes to which a list showed no pods that have to go.
    empty: Mutex<HashSet<Arc<str>>>,
    back_offs: Mutex<MachineBackoffs>,
}

impl NodeController {
    /// Returns a controller that follows the caches of `context`, and the queue for [`Self::run`].
    pub fn new(context: Arc<Context>) -> (Arc<Self>, Consumer<Key>) {
        let (requests, queue) = work_queue();
        let granted = requests.clone();
        context.drain_permits.on_grant(move |node| granted.add(Key::Node(Arc::clone(node))));
        let controller = Arc::new(Self {
            api: Api::all(context.client.clone()),
            requests,
            waits: context.metrics.waits.clone(),
            writes: Writes::default(),
            lease_renewals: LeaseRenewals::default(),
            attachments: Attachments::new(context.client.clone()),
            empty: Mutex::default(),
            back_offs: Mutex::default(),
            context,
        });
        controller.context.nodes.add_event_handler(controller.clone());
        controller.context.pods.add_event_handler(controller.clone());
        controller.context.classes.add_event_handler(controller.clone());
        controller.context.sets.add_event_handler(controller.clone());
        (controller, queue)
    }

    /// Reconciles until `stop`, then finishes reconciliations in flight.
    pub async fn run(self: Arc<Self>, queue: Consumer<Key>, stop: CancellationToken) {
        let this = &*self;
        let reconcile = |key| async move {
            match key {
                Key::Node(name) => this.reconcile_node(&name).await,
                Key::Machine(id) => this.reconcile_machine(&id).await,
            }
        };
        let work = self.context.run("node", (queue, CONFIG), &stop, reconcile);
        let triggers = async { tokio::join!(self.follow_providers(), self.sweep_periodically()) };
        tokio::join!(work, stop.run_until_cancelled(triggers));
    }

    async fn reconcile_node(&self, name: &Arc<str>) -> Result<Action> {
        let Some(node) = self.context.nodes.get(name) else {
            self.waits.forget(name);
            self.writes.forget(name);
            return Ok(Action::AwaitChange);
        };
        if self.writes.outruns(&node, &self.context.nodes) {
            return Ok(Action::AwaitChange);
        }
        let observed = match Box::pin(self.observe(Arc::clone(&node))).await {
            Err(ReconcileError::Provider(error @ ProviderError::Unreachable(_))) => {
                self.report_obstacle(&node, error.reason(), &chain(&error)).await?;
                return Err(error.into());
            }
            other => other?,
        };
        let Some(observed) = observed else {
            self.waits.forget(name);
            return Ok(Action::AwaitChange);
        };
        let (state, now) = (observed.node_state(), environment::now());
        let plan = node::decide(&state, observed.machine, &observed.pods, observed.deletion_timeout, now);
        let applied = self.apply(&observed, &plan).await;
        let refusal = applied.as_ref().err().and_then(ReconcileError::refusal).map(ApiError::chain);
        let waits_for = match &applied {
            _ if observed.waits_for_room() => Some(NodeWait::OutOfResources),
            Err(ReconcileError::Provider(error)) if error.is_out_of_resources() => {
                Some(NodeWait::OutOfResources)
            }
            Err(_) => refusal.clone().map(|message| NodeWait::WriteRefused { message }).or(plan.waits_for),
            // Only now the disruption budgets that block evictions are known.
            Ok(blocked) => plan.waits_for.map(|wait| wait.blocked(blocked.clone())),
        };
        self.waits.set(&observed.node, waits_for.as_ref().map(NodeWait::reason));
        let is_leaving = observed.node.deleted_at.is_some();
        // The condition of the machine says one thing in a reconciliation. With two, each would bring about the next one.
        let reported = match refusal.filter(|_| !is_leaving) {
            Some(message) => self.report_obstacle(&observed.node, NodeWait::REFUSED, &message).await,
            None => self.report_machine(&observed, applied.is_ok()).await,
        };
        if let Some(wait) = waits_for.filter(|_| is_leaving) {
            self.report_wait(&observed.node, &wait).await?;
        }
        applied?;
        reported?;
        Ok(plan.requeue_after.map_or(Action::AwaitChange, Action::RequeueAfter))
    }

    /// Enqueues every machine whose provider reports a change.
    async fn follow_providers(&self) {
        let mut changes =
            stream::select_all(self.context.providers.values().map(|provider| provider.watch()));
        while let Some(id) = changes.next().await {
            self.requests.add(Key::Machine(id));
        }
    }

    async fn sweep_periodically(&self) {
        let mut ticks = interval(SWEEP_INTERVAL);
        loop {
            ticks.tick().await;
            if self.context.nodes.in_sync() {
                self.sweep().await;
            }
        }
    }

    fn enqueue(&self, node: &NodeView) {
        self.requests.add(Key::Node(Arc::clone(&node.name)));
    }
}

impl EventHandler<NodeView> for NodeController {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        if let Some(node) = new.or(old) {
            self.enqueue(node);
        }
        // The finalizer may have been removed by force, and another Node may have the name by now.
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            self.attachments.forget(&old.uid);
            self.empty.lock().remove(&old.uid);
            self.lease_renewals.forget(&old.uid);
            self.back_offs.lock().forget(&old.uid);
            self.context.foreign_times.lock().forget(&old.uid);
            self.requests.add(Key::Machine(MachineId::of(old)));
        }
    }

    /// Enqueues Nodes with writes that the watch never showed: a new list ends the wait for them, as after a
    /// restore of etcd.
    fn on_resync(&self) {
        for node in self.writes.nodes() {
            self.requests.add(Key::Node(node));
        }
    }
}

impl EventHandler<PodView> for NodeController {
    fn on_change(&self, old: Option<&Arc<PodView>>, new: Option<&Arc<PodView>>) {
        // Only a draining Node depends on pods, and only on changes that let the drain go on.
        if let (Some(old), Some(new)) = (old, new)
            && old.holds_up_drain() == new.holds_up_drain()
            && old.deleted_at == new.deleted_at
            && old.opted_out == new.opted_out
            && old.uid == new.uid
        {
            return;
        }
        let Some(pod) = new.or(old) else { return };
        if let Some(node) = self.context.nodes.get(&pod.node).filter(|node| node.deleted_at.is_some()) {
            self.enqueue(&node);
        }
    }
}

impl EventHandler<CachedNodeClass> for NodeController {
    fn on_change(&self, old: Option<&Arc<CachedNodeClass>>, new: Option<&Arc<CachedNodeClass>>) {
        let generation = |class: Option<&Arc<CachedNodeClass>>| class.map(|class| class.metadata.generation);
        if old.is_some() && generation(old) == generation(new) {
            return;
        }
        let Some(class) = new.or(old) else { return };
        for node in self.context.nodes.all().iter().filter(|node| node.class() == Some(class.name())) {
            self.enqueue(node);
        }
    }
}

impl EventHandler<CachedNodeSet> for NodeController {
    fn on_change(&self, old: Option<&Arc<CachedNodeSet>>, new: Option<&Arc<CachedNodeSet>>) {
        let relevant = |own: Option<&Arc<CachedNodeSet>>| {
            let set = own.and_then(|own| own.object.as_ref().ok());
            // A drain permit is needed only from a set that stays.
            let stays = own.filter(|own| !own.is_leaving()).and_then(|own| own.metadata.uid.clone());
            (stays, set.map(|set| (set.spec.class_overrides.clone(), set.spec.drain.clone())))
        };
        if relevant(old) == relevant(new) {
            return;
        }
        let Some(set) = new.or(old) else { return };
        for node in self.context.nodes.by_index(set.name()) {
            self.enqueue(&node);
        }
    }
}
