//! NodeController: creates the machine of each Node of its classes, lets pods in once the machine works,
//! drains a leaving Node and deletes its machine. It never counts replicas.

mod adopt;
mod apply;
mod attachments;
mod drain;
mod lease_renewals;
mod observe;
mod slots;
mod status;
mod sweep;
mod writes;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, future::join_all, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::PartialObjectMeta};
use kube_ext::{call::ApiError, environment, error::chain, work_queue::Action};
use kube_node_cache::{CachedNodeClass, CachedNodeSet, EventHandler, NodeView, PodView};
use kube_node_planner::{machine_backoff::MachineBackoffs, node, wait::NodeWait};
use parking_lot::Mutex;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

pub(crate) use self::status::ReportedWaits;
pub use self::status::set_condition;
use self::{
    apply::Applied,
    attachments::Attachments,
    drain::Drain,
    lease_renewals::LeaseRenewals,
    slots::{Consumers, PATIENCE, Queues, Slot},
    writes::Writes,
};
use super::{Context, ReconcileError, reconcile::Result};
use crate::provider::{MachineId, ProviderError};

/// Requeue time of a Node whose wait for a slot was reported: the condition of a wait that lasts is written then.
const WAIT_POLL: Duration = Duration::from_secs(30);
/// Interval at which all machines are compared with all Nodes, for changes that no watch has shown.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// Key of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A Node, by name.
    Node(Arc<str>),
    /// A machine whose Node may be gone.
    Machine(MachineId),
    /// A Node that may still wait for a slot, by name: the wait is reported.
    SlotWait(Arc<str>),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Node(node) | Self::SlotWait(node) | Self::Machine(MachineId { node, .. })) = self;
        f.write_str(node)
    }
}

/// The controller.
pub struct NodeController {
    context: Arc<Context>,
    /// Answers are read as metadata: the watch brings the rest.
    api: Api<PartialObjectMeta<Node>>,
    requests: Arc<Queues>,
    waits: ReportedWaits,
    writes: Writes,
    lease_renewals: LeaseRenewals,
    attachments: Attachments,
    /// UIDs of leaving Nodes to which a list showed no pods that have to go.
    empty: Mutex<HashSet<Arc<str>>>,
    /// Evictions of leaving Nodes so far, by UID of the Node.
    drains: Mutex<HashMap<Arc<str>, Drain>>,
    back_offs: Mutex<MachineBackoffs>,
}

impl NodeController {
    /// Returns a controller that follows the caches of `context`, and the queues for [`Self::run`].
    pub fn new(context: Arc<Context>) -> (Arc<Self>, Consumers) {
        let (requests, queues) = Queues::new(context.providers.values().map(|provider| &**provider));
        let requests = Arc::new(requests);
        let granted = Arc::clone(&requests);
        context.drain_permits.on_grant(move |node| granted.add(Key::Node(Arc::clone(node))));
        let controller = Arc::new(Self {
            api: Api::all(context.client.clone()),
            requests,
            waits: context.metrics.waits.clone(),
            writes: Writes::default(),
            lease_renewals: LeaseRenewals::default(),
            attachments: Attachments::new(context.client.clone()),
            empty: Mutex::default(),
            drains: Mutex::default(),
            back_offs: Mutex::default(),
            context,
        });
        controller.context.nodes.add_event_handler(controller.clone());
        controller.context.pods.add_event_handler(controller.clone());
        controller.context.classes.add_event_handler(controller.clone());
        controller.context.sets.add_event_handler(controller.clone());
        (controller, queues)
    }

    /// Reconciles until `stop`, then finishes reconciliations in flight.
    pub async fn run(self: Arc<Self>, queues: Consumers, stop: CancellationToken) {
        let (this, stop) = (&*self, &stop);
        let work = queues.0.into_iter().map(|(slot, queue, config)| {
            this.context.run("node", (queue, config), stop, move |key| this.reconcile(key, slot))
        });
        let triggers = async { tokio::join!(self.follow_providers(), self.sweep_periodically()) };
        tokio::join!(join_all(work), stop.run_until_cancelled(triggers));
    }

    /// Reconciles a key, with or without a slot. A reconciliation that succeeds with a slot goes on without one.
    async fn reconcile(&self, key: Key, slot: Option<Slot>) -> Result<Action> {
        if let Key::SlotWait(name) = &key {
            let node = Key::Node(Arc::clone(name));
            if self.requests.waits_for_slot(&node) {
                self.requests.add(node);
            }
            return Ok(Action::AwaitChange);
        }
        if !self.requests.begin(&key, slot) {
            return Ok(Action::AwaitChange);
        }
        let result = match &key {
            Key::Node(name) => self.reconcile_node(name, slot).await,
            Key::Machine(id) => self.reconcile_machine(id, slot).await,
            Key::SlotWait(_) => Ok(Action::AwaitChange),
        };
        self.requests.end(&key);
        match result {
            Ok(Action::RequeueAfter(delay)) if slot.is_some() => {
                self.requests.add_after(key, delay);
                Ok(Action::AwaitChange)
            }
            other => other,
        }
    }

    async fn reconcile_node(&self, name: &Arc<str>, slot: Option<Slot>) -> Result<Action> {
        let Some(node) = self.context.nodes.get(name) else {
            self.waits.forget(name);
            self.writes.forget(name);
            return Ok(Action::AwaitChange);
        };
        if self.writes.outruns(&node, &self.context.nodes) {
            return Ok(Action::AwaitChange);
        }
        let observed = match Box::pin(self.observe(Arc::clone(&node), slot)).await {
            Err(ReconcileError::Provider(error @ ProviderError::Unreachable(_))) => {
                self.report_obstacle(&node, error.reason(), &chain(&error)).await?;
                return Err(error.into());
            }
            other => other?,
        };
        let observed = match observed {
            Ok(Some(observed)) => observed,
            Ok(None) => {
                self.waits.forget(name);
                return Ok(Action::AwaitChange);
            }
            Err(needed) => {
                if let Some(wait) = self.wait_for_slot(name, needed) {
                    self.waits.set(&node, Some(wait.reason()));
                }
                return Ok(Action::AwaitChange);
            }
        };
        let (state, now) = (observed.node_state(), environment::now());
        let plan = node::decide(&state, observed.machine, &observed.pods, observed.deletion_timeout, now);
        let applied = self.apply(&observed, &plan, slot).await;
        let slots = applied.as_ref().map(|applied| applied.slots.clone()).unwrap_or_default();
        let asks = !slots.is_empty();
        // Each slot is asked for, and one wait is reported.
        let slot_waits: Vec<_> =
            slots.into_iter().filter_map(|slot| self.wait_for_slot(name, slot)).collect();
        let slot_wait = slot_waits.first();
        let refusal = applied.as_ref().err().and_then(ReconcileError::refusal).map(ApiError::chain);
        let waits_for = match &applied {
            _ if observed.waits_for_room() => Some(NodeWait::OutOfResources),
            Err(ReconcileError::Provider(error)) if error.is_out_of_resources() => {
                Some(NodeWait::OutOfResources)
            }
            Err(_) => refusal.clone().map(|message| NodeWait::WriteRefused { message }).or(plan.waits_for),
            // Only now the disruption budgets that block evictions are known. They outlast the turn of other Nodes.
            Ok(Applied { blocked, .. }) => match slot_wait {
                Some(wait) if blocked.is_empty() => Some(wait.clone()),
                _ => plan.waits_for.map(|wait| wait.blocked(blocked.clone())),
            },
        };
        // A call that is about to be made tells whether the reason of the one before has gone. Another reason until then would
        // be a write, whose event brings the next reconciliation, and with it the next call, at once.
        let is_told_by_the_call = asks && slot_wait.is_none() && self.waits.has(&observed.node);
        if !is_told_by_the_call {
            self.waits.set(&observed.node, waits_for.as_ref().map(NodeWait::reason));
        }
        let is_leaving = observed.node.deleted_at.is_some();
        // The condition of the machine says one thing in a reconciliation. With two, each would bring about the next one.
        let reported = match refusal.filter(|_| !is_leaving) {
            Some(message) => self.report_obstacle(&observed.node, NodeWait::REFUSED, &message).await,
            None => self.report_machine(&observed, applied.is_ok()).await,
        };
        if let Some(wait) = waits_for.filter(|_| is_leaving && !is_told_by_the_call) {
            self.report_wait(&observed.node, &wait).await?;
        }
        let Applied { more, .. } = applied?;
        reported?;
        // The reconciliation with the slot comes by itself.
        if asks {
            return Ok(Action::AwaitChange);
        }
        if more {
            return Ok(Action::RequeueAfter(Duration::ZERO));
        }
        Ok(plan.requeue_after.map_or(Action::AwaitChange, Action::RequeueAfter))
    }

    /// Asks for a slot. Returns the wait if it has to be reported by now; else it is checked later.
    fn wait_for_slot(&self, node: &Arc<str>, slot: Slot) -> Option<NodeWait> {
        let waited = self.requests.ask(&Key::Node(Arc::clone(node)), slot);
        let (wait, check_in) = match PATIENCE.checked_sub(waited).filter(|left| !left.is_zero()) {
            Some(left) => (None, left),
            None => (Some(NodeWait::WaitingForSlot { calls: slot.to_string() }), WAIT_POLL),
        };
        self.requests.add_after(Key::SlotWait(Arc::clone(node)), check_in);
        wait
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
        // This controller writes the messages of these conditions. A message may name the request that was refused, and differ each
        // time: the event of that write must not start the next request before the back-off is over.
        let is_told = old.zip(new).is_some_and(|(old, new)| status::differ_only_in_messages(old, new));
        if let Some(node) = new.or(old).filter(|_| !is_told) {
            self.enqueue(node);
        }
        // The finalizer may have been removed by force, and another Node may have the name by now.
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            self.attachments.forget(&old.uid);
            self.empty.lock().remove(&old.uid);
            self.drains.lock().remove(&old.uid);
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
