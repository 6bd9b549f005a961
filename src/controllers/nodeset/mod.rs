//! NodeSetController: creates and deletes Nodes to match the replicas, keeps their templates up to date, and
//! writes the set's status. It never talks to a provider.

mod apply;
mod autoscaling;
mod create;
mod delete;
mod desired;
mod input;
mod leave;
mod observe;
mod status;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Resource, core::PartialObjectMeta};
use kube_ext::{
    call::ApiError,
    environment,
    error::chain,
    work_queue::{Action, Config, Consumer, WorkQueue, work_queue},
};
use kube_node_api::{NodeClass, NodeSet};
use kube_node_cache::{CachedNodeClass, CachedNodeSet, EventHandler, NodeView, View};
use kube_node_planner::{
    expectations::Expectations,
    failed_writes::{Answer, FailedWrites, Failure, Write},
    set_planner,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Context, reconcile::Result};

/// Concurrent reconciliations, most of which wait for the API server; and the minimum interval between two of one set:
/// the set changes with each of its Nodes, and a reconciliation writes its status once.
const CONFIG: Config = Config { concurrency: 64, min_interval: Duration::from_millis(300) };
/// Concurrent writes of Nodes by one set: at some milliseconds each, more than enough to keep a control plane busy. Each
/// has a connection of its own.
const WRITES_OF_SET: usize = 32;
/// Concurrent writes of Nodes by all sets that are reconciled, about: a part of the operator's share of the API server,
/// so that slow webhooks hold up nothing else.
const WRITES: usize = 64;

/// The controller.
pub struct NodeSetController {
    context: Arc<Context>,
    api: Api<NodeSet>,
    class_api: Api<NodeClass>,
    /// Answers with metadata alone: a Node is read from the cache.
    node_api: Api<PartialObjectMeta<Node>>,
    /// Last written status of each set: the watch lags behind, and the clock of a rollout must not go back.
    written: Mutex<HashMap<String, status::LastWrite>>,
    /// Failed writes of each set.
    failed_writes: Mutex<HashMap<String, FailedWrites>>,
    requests: WorkQueue<String>,
    /// Names of Nodes a write of which was refused as a conflict: their next state starts a reconciliation, whatever has
    /// changed.
    conflicts: Mutex<HashSet<Arc<str>>>,
    /// Number of reconciliations under way.
    running: AtomicUsize,
}

impl NodeSetController {
    /// Returns a controller that follows the caches of `context`, and the queue for [`Self::run`].
    pub fn new(context: Arc<Context>) -> (Arc<Self>, Consumer<String>) {
        let (requests, queue) = work_queue();
        let refused = requests.clone();
        context.drain_permits.on_refusal(move |set| refused.add(set.to_owned()));
        let controller = Arc::new(Self {
            api: Api::all(context.client.clone()),
            class_api: Api::all(context.client.clone()),
            node_api: Api::all(context.client.clone()),
            context,
            written: Mutex::default(),
            failed_writes: Mutex::default(),
            requests,
            conflicts: Mutex::default(),
            running: AtomicUsize::new(0),
        });
        controller.context.nodes.add_event_handler(controller.clone());
        controller.context.sets.add_event_handler(controller.clone());
        controller.context.classes.add_event_handler(controller.clone());
        (controller, queue)
    }

    /// Reconciles until `stop`, then finishes reconciliations in flight.
    pub async fn run(self: Arc<Self>, queue: Consumer<String>, stop: CancellationToken) {
        let this = &*self;
        let reconcile = |name: String| async move {
            this.running.fetch_add(1, Ordering::Relaxed);
            let result = this.reconcile(&name).await;
            this.running.fetch_sub(1, Ordering::Relaxed);
            this.settle_pod_cidrs();
            if let Err(error) = &result
                && error.action() == Action::Failed
                && let Some(set) = this.context.sets.get(&name)
            {
                let (on, events) = (set.object_ref(&()), &this.context.events);
                events.warn(&on, "ReconcileFailed", "Reconcile", chain(error));
            }
            result
        };
        self.context.run("nodeset", (queue, CONFIG), &stop, reconcile).await;
    }

    async fn reconcile(&self, name: &str) -> Result<Action> {
        let Some(set) = self.context.sets.get(name) else {
            self.context.expectations.lock().remove(name);
            self.written.lock().remove(name);
            self.failed_writes.lock().remove(name);
            self.context.drain_permits.forget(name);
            return Ok(Action::AwaitChange);
        };
        if set.is_leaving() {
            return self.leave(&set).await;
        }
        let Ok(object) = &set.object else { return self.unreadable(&set).await };
        let class = self.context.classes.get(&object.spec.node_class_name);
        let observed = self.observe(object).await;
        // A revision may take long to store, and what has changed meanwhile counts.
        if !self.is_current(&set, class.as_deref()) {
            return Ok(Action::RequeueAfter(Duration::ZERO));
        }
        let settings = desired::Settings::of(object, environment::now());
        let desired = desired::state(&settings, &observed);
        let members = self.members(&observed, desired.rules.unhealthy_conditions);
        let mut plan = set_planner::decide(&desired, &members, observed.unseen().count(), environment::now());
        settings.report(&mut plan);
        let mut applied = Box::pin(self.apply(&observed, &plan)).await;
        applied.problems.extend(settings.problems.clone());
        self.write_status(&set, &observed, &settings, &members, &plan, applied).await
    }

    /// Returns true if the caches show set and class in no newer state.
    fn is_current(&self, set: &CachedNodeSet, class: Option<&CachedNodeClass>) -> bool {
        let set_now = self.context.sets.get(set.name());
        let class_now = set.index_key().and_then(|class| self.context.classes.get(class));
        set_now.is_some_and(|now| input(&now.metadata) == input(&set.metadata))
            && class_now.as_ref().map(|now| input(&now.metadata)) == class.map(|class| input(&class.metadata))
    }

    /// Concurrent writes of each of so many kinds by one set now. The sets that are reconciled have equal shares, and one
    /// share is left for the next.
    fn writes_at_once(&self, kinds: usize) -> usize {
        let share = (WRITES / (self.running.load(Ordering::Relaxed) + 1)).min(WRITES_OF_SET);
        (share / kinds.max(1)).max(1)
    }

    /// Drops the pod CIDRs promised to Nodes that will not come. Enqueues all sets if a Node that found no
    /// CIDR would find one now, for this reason or because a Node is gone.
    fn settle_pod_cidrs(&self) {
        let on_their_way = || {
            let all = self.context.expectations.lock();
            all.values().flat_map(Expectations::creations).map(str::to_owned).collect()
        };
        if self.context.pod_cidrs.as_ref().is_some_and(|cidrs| cidrs.keep(on_their_way)) {
            self.enqueue(&self.context.sets.all());
        }
    }

    fn enqueue(&self, sets: &[Arc<CachedNodeSet>]) {
        for set in sets {
            self.requests.add(set.key());
        }
    }

    /// Reads or changes the record of a set's failed writes.
    fn failed_writes<T>(&self, set: &str, with: impl FnOnce(&mut FailedWrites) -> T) -> T {
        with(self.failed_writes.lock().entry(set.to_owned()).or_default())
    }

    /// Records the result of a write, unless the Node has changed or is gone: its event enqueues the set.
    fn record(&self, set: &str, write: Write, node: &str, intent: u64, result: Result<(), &ApiError>) {
        let now = environment::now();
        self.failed_writes(set, |failures| match result {
            Ok(()) => failures.succeeded(write, node, now),
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => {
                let answer = match error {
                    _ if error.is_final() => Answer::Refusal,
                    _ if error.is(500) => Answer::Error,
                    _ => Answer::None,
                };
                failures.failed(write, node, intent, Failure { message: error.chain(), answer }, now);
            }
        });
    }

    /// Notes that a write of a Node was refused as a conflict. Returns true if the cache shows another state by now; else
    /// the next state starts a reconciliation.
    fn await_change(&self, node: &NodeView) -> bool {
        // Noted first: the watch may show the state meanwhile.
        self.conflicts.lock().insert(Arc::clone(&node.name));
        let now = self.context.nodes.get(&node.name);
        let is_shown = now.is_none_or(|now| now.resource_version != node.resource_version);
        if is_shown {
            self.conflicts.lock().remove(&node.name);
        }
        is_shown
    }

    /// Returns true if a reconciliation reads of a Node what has changed.
    fn is_input(&self, set: &str, old: &NodeView, new: &NodeView) -> bool {
        let set = self.context.sets.get(set);
        let set = set.as_ref().and_then(|set| set.object.as_ref().ok());
        let unhealthy = set.and_then(|set| Some(&*set.spec.remediation.as_ref()?.unhealthy_conditions));
        !input::is_same(old, new, unhealthy.unwrap_or_default())
    }

    /// Reads or changes the expectations of a set.
    fn expectations<T>(&self, set: &str, with: impl FnOnce(&mut Expectations) -> T) -> T {
        with(self.context.expectations.lock().entry(set.to_owned()).or_default())
    }
}

impl EventHandler<NodeView> for NodeSetController {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        let is_awaited = new.or(old).is_some_and(|node| self.conflicts.lock().remove(&node.name));
        for view in [old, new].into_iter().flatten() {
            let Some(set) = view.index_key() else { continue };
            let mut is_expected = false;
            if let Some(expectations) = self.context.expectations.lock().get_mut(set) {
                match new {
                    Some(now) => {
                        is_expected =
                            expectations.seen(&view.name, &now.resource_version, now.deleted_at.is_some());
                    }
                    None => expectations.gone(&view.name),
                }
            }
            let is_input = || old.zip(new).is_none_or(|(old, new)| self.is_input(set, old, new));
            if is_awaited || is_expected || is_input() {
                self.requests.add(set.to_owned());
            }
        }
        let Some(gone) = old.filter(|_| new.is_none()) else { return };
        if self.context.pod_cidrs.as_ref().is_some_and(|cidrs| cidrs.relieved()) {
            self.enqueue(&self.context.sets.all());
        }
        // The Node leaves room in a class with a limit: another set may wait for it.
        let Some(name) = gone.class() else { return };
        let class = self.context.classes.get(name).and_then(|own| own.object.clone().ok());
        if class.is_some_and(|class| class.spec.limits.is_some()) {
            self.enqueue(&self.context.sets.by_index(name));
        }
    }

    fn on_relist(&self) {
        self.context.expectations.lock().values_mut().for_each(Expectations::relisting);
    }

    fn on_resync(&self) {
        for expectations in self.context.expectations.lock().values_mut() {
            expectations.on_resync(|name| self.context.nodes.get(name).is_some());
        }
        self.enqueue(&self.context.sets.all());
    }
}

/// The metadata of a set or a class that a reconciliation depends on.
fn input(metadata: &ObjectMeta) -> impl PartialEq {
    let ObjectMeta { uid, generation, annotations, finalizers, deletion_timestamp, .. } = metadata;
    (uid, generation, annotations, finalizers, deletion_timestamp)
}

impl EventHandler<CachedNodeSet> for NodeSetController {
    fn on_change(&self, old: Option<&Arc<CachedNodeSet>>, new: Option<&Arc<CachedNodeSet>>) {
        if let (Some(old), Some(new)) = (old, new)
            && input(&old.metadata) == input(&new.metadata)
            && !self.status_was_overwritten(new)
        {
            return;
        }
        if let Some(set) = new.or(old) {
            self.requests.add(set.key());
        }
    }
}

impl EventHandler<CachedNodeClass> for NodeSetController {
    fn on_change(&self, old: Option<&Arc<CachedNodeClass>>, new: Option<&Arc<CachedNodeClass>>) {
        if let Some(class) = new.or(old) {
            self.enqueue(&self.context.sets.by_index(class.name()));
        }
    }
}
