//! NodeController: creates the machine of each Node of its classes, lets pods in once the machine works,
//! drains a leaving Node and deletes its machine. It never counts replicas.

mod adopt;
mod apply;
mod attachments;
mod drain;
mod observe;
mod status;
mod sweep;
mod writes;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use jiff::Timestamp;
use kube_ext::{
    error::chain,
    work_queue::{Action, Config, Consumer, WorkQueue, run, work_queue},
};
use kube_node_api::{NodeClass, NodeSet};
use kube_node_cache::{CustomObject, EventHandler, NodeView, PodView};
use kube_node_planner::{back_off::BackOffs, node, wait::NodeWait};
use tokio::time::interval;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

pub use self::status::say;
use self::{attachments::Attachments, status::ReportedWaits, writes::Writes};
use super::{ApiError, Context, RevisionsError};
use crate::providers::{MachineId, ProviderError};

/// Concurrent reconciliations; each sends one write at a time.
const CONCURRENCY: usize = 32;
/// Interval at which all machines are compared with all Nodes, for changes that no watch has shown.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// Requeue delay of a Node that changed during a write; the watch is nearly always faster.
const CONFLICT_RETRY: Duration = Duration::from_secs(1);

/// Key of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A Node, by name.
    Node(Arc<str>),
    /// A machine whose Node may be gone.
    Machine(MachineId),
}

/// Reason why a reconciliation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the API server failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The machine spec is not available.
    #[error(transparent)]
    Revisions(#[from] RevisionsError),
    /// The provider failed.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

/// The controller.
pub struct NodeController {
    context: Arc<Context>,
    requests: WorkQueue<Key>,
    told: ReportedWaits,
    writes: Writes,
    attachments: Attachments,
    back_offs: Mutex<BackOffs>,
}

impl NodeController {
    /// Returns a controller that follows the caches of `context`, and the queue for [`Self::run`].
    #[must_use]
    pub fn new(context: Arc<Context>) -> (Arc<Self>, Consumer<Key>) {
        let (requests, queue) = work_queue();
        let granted = requests.clone();
        context.drain_permits.on_grant(move |node| granted.add(Key::Node(Arc::clone(node))));
        let attachments = Attachments::new(context.client.clone());
        let controller = Arc::new(Self {
            context,
            requests,
            told: ReportedWaits::default(),
            writes: Writes::default(),
            attachments,
            back_offs: Mutex::default(),
        });
        controller.context.nodes.add_event_handler(controller.clone());
        controller.context.pods.add_event_handler(controller.clone());
        controller.context.classes.add_event_handler(controller.clone());
        controller.context.sets.add_event_handler(controller.clone());
        (controller, queue)
    }

    /// Reconciles until `stop`, then finishes reconciliations in flight.
    pub async fn run(self: Arc<Self>, queue: Consumer<Key>, stop: CancellationToken) {
        let config = Config { concurrency: CONCURRENCY, min_interval: Duration::ZERO };
        let work = run(queue, config, &stop, |key| {
            let controller = Arc::clone(&self);
            async move {
                let reconcile = Box::pin(async { outcome(controller.reconcile(&key).await) });
                controller.context.reconcile("node", key.node(), reconcile).await
            }
        });
        let looking = async { tokio::join!(self.follow_providers(), self.sweep_now_and_then()) };
        tokio::join!(work, stop.run_until_cancelled(looking));
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        match key {
            Key::Node(name) => self.look_at_node(name).await,
            Key::Machine(id) => self.look_at_machine(id).await,
        }
    }

    async fn look_at_node(&self, name: &Arc<str>) -> Result<Action, Error> {
        let metrics = &self.context.metrics;
        let Some(node) = self.context.nodes.get(name) else {
            self.told.forget(name, metrics);
            self.writes.forget(name);
            return Ok(Action::AwaitChange);
        };
        if self.writes.outruns(&node, &self.context.nodes) {
            return Ok(Action::AwaitChange);
        }
        let observed = match Box::pin(self.observe(Arc::clone(&node))).await {
            Err(Error::Provider(error @ ProviderError::Unreachable { .. })) => {
                self.say_unreachable(&node, &error).await?;
                return Err(error.into());
            }
            other => other?,
        };
        let Some(observed) = observed else {
            self.told.forget(name, metrics);
            return Ok(Action::AwaitChange);
        };
        let plan = node::decide(
            &observed.node_state(),
            observed.machine,
            &observed.pods,
            observed.deletion_timeout,
            Timestamp::now(),
        );
        // A condition that cannot be written delays nothing else.
        let said = self.say_how_it_stands(&observed).await;
        let applied = self.apply(&observed, &plan).await;
        let waits_for = match &applied {
            _ if observed.waits_for_room() => Some(NodeWait::Room),
            Err(Error::Provider(error)) if error.is_want_of_room() => Some(NodeWait::Room),
            Err(Error::Api(error)) if error.is_final() && !error.is_not_found() => {
                Some(NodeWait::Refused { said: error.chain() })
            }
            // Only now the disruption budgets that block evictions are known.
            applied => {
                let blocked = applied.as_ref().ok().cloned().unwrap_or_default();
                plan.waits_for.map(|wait| wait.blocked(blocked))
            }
        };
        self.told.waits(&observed.node, waits_for.as_ref().map(NodeWait::reason), metrics);
        if let Some(wait) = waits_for.filter(|_| observed.node.deleted_at.is_some()) {
            self.tell(&observed.node, &wait).await?;
        } else {
            self.say_whether_refused(&observed.node, applied.as_ref().err()).await?;
        }
        applied?;
        said?;
        Ok(plan.requeue_after.map_or(Action::AwaitChange, Action::RequeueAfter))
    }

    /// Enqueues every machine whose provider reports a change.
    async fn follow_providers(&self) {
        let mut changes =
            futures::stream::select_all(self.context.providers.values().map(|provider| provider.watch()));
        while let Some(id) = changes.next().await {
            self.requests.add(Key::Machine(id));
        }
    }

    fn back_offs(&self) -> MutexGuard<'_, BackOffs> {
        self.back_offs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn sweep_now_and_then(&self) {
        let mut drain_permits = interval(SWEEP_INTERVAL);
        loop {
            drain_permits.tick().await;
            if self.context.nodes.in_sync() {
                self.sweep().await;
            }
        }
    }
}

/// The action after a reconciliation.
fn outcome(result: Result<Action, Error>) -> Action {
    match result {
        Ok(outcome) => outcome,
        // The object changed meanwhile: its event enqueues the key, the requeue only makes sure.
        Err(Error::Api(error)) if error.is_conflict() => Action::RequeueAfter(CONFLICT_RETRY),
        // The object is gone.
        Err(Error::Api(error)) if error.is_not_found() => Action::AwaitChange,
        Err(Error::Provider(error)) => {
            debug!(error = chain(&error), "provider");
            error.retry_after().map_or(Action::Failed, Action::RequeueAfter)
        }
        Err(error) => {
            warn!(error = chain(&error), "reconciliation failed");
            Action::Failed
        }
    }
}

impl Key {
    fn node(&self) -> &str {
        match self {
            Self::Node(name) => name,
            Self::Machine(id) => &id.node,
        }
    }
}

impl EventHandler<NodeView> for NodeController {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        match (old, new) {
            (_, Some(new)) => self.requests.add(Key::Node(Arc::clone(&new.name))),
            (Some(old), None) => self.requests.add(Key::Node(Arc::clone(&old.name))),
            (None, None) => {}
        }
        // The finalizer may have been removed by force, and another Node may have the name by now.
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            self.attachments.forget(&old.uid);
            self.back_offs().forget(&old.uid);
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
            self.requests.add(Key::Node(Arc::clone(&node.name)));
        }
    }
}

impl EventHandler<CustomObject<NodeClass>> for NodeController {
    fn on_change(
        &self,
        old: Option<&Arc<CustomObject<NodeClass>>>,
        new: Option<&Arc<CustomObject<NodeClass>>>,
    ) {
        let generation = |own: Option<&Arc<CustomObject<NodeClass>>>| own.map(|own| own.metadata.generation);
        if old.is_some() && generation(old) == generation(new) {
            return;
        }
        let Some(class) = new.or(old) else { return };
        for node in self.context.nodes.all().iter().filter(|node| node.class() == Some(class.name())) {
            self.requests.add(Key::Node(Arc::clone(&node.name)));
        }
    }
}

impl EventHandler<CustomObject<NodeSet>> for NodeController {
    fn on_change(&self, old: Option<&Arc<CustomObject<NodeSet>>>, new: Option<&Arc<CustomObject<NodeSet>>>) {
        let read = |own: Option<&Arc<CustomObject<NodeSet>>>| {
            let set = own.and_then(|own| own.object.as_ref().ok());
            // A drain permit is needed only from a set that stays.
            let stays = own.filter(|own| !own.is_leaving()).and_then(|own| own.metadata.uid.clone());
            (stays, set.map(|set| (set.spec.class_overrides.clone(), set.spec.drain.clone())))
        };
        if read(old) == read(new) {
            return;
        }
        let Some(set) = new.or(old) else { return };
        for node in self.context.nodes.by_index(set.name()) {
            self.requests.add(Key::Node(Arc::clone(&node.name)));
        }
    }
}
