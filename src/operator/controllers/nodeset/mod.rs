//! NodeSetController: creates and deletes Nodes to match the replicas, keeps their templates up to date, and
//! writes the set's status. It never talks to a provider.

mod apply;
mod autoscaling;
mod create;
mod delete;
mod leave;
mod observe;
mod status;
mod wanted;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube_ext::{
    error::chain,
    work_queue::{Action, Config, Consumer, WorkQueue, run, work_queue},
};
use kube_node_api::{NodeClass, NodeSet};
use kube_node_cache::{CustomObject, EventHandler, NodeView, View};
use kube_node_planner::{
    expectations::Expectations,
    refusals::Refusals,
    set_planner::{self, NodeState},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{ApiError, Context, reference_to};

/// Concurrent reconciliations; each creates and deletes many Nodes at a time.
const CONCURRENCY: usize = 8;
/// Minimum interval between two reconciliations of one set: the set changes with each of its Nodes, and a
/// reconciliation writes its status once.
const MIN_INTERVAL: Duration = Duration::from_millis(300);

/// Reason why a reconciliation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the API server failed.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// The controller.
pub struct NodeSetController {
    context: Arc<Context>,
    /// Last written status of each set: the watch lags behind, and the clock of a rollout must not go back.
    written: Mutex<HashMap<String, status::LastWrite>>,
    /// Failed writes of each set.
    refusals: Mutex<HashMap<String, Refusals>>,
    requests: WorkQueue<String>,
}

impl NodeSetController {
    /// Returns a controller that follows the caches of `context`, and the queue for [`Self::run`].
    #[must_use]
    pub fn new(context: Arc<Context>) -> (Arc<Self>, Consumer<String>) {
        let (requests, queue) = work_queue();
        let controller =
            Arc::new(Self { context, written: Mutex::default(), refusals: Mutex::default(), requests });
        controller.context.nodes.add_event_handler(controller.clone());
        controller.context.sets.add_event_handler(controller.clone());
        controller.context.classes.add_event_handler(controller.clone());
        (controller, queue)
    }

    /// Reconciles until `stop`, then finishes reconciliations in flight.
    pub async fn run(self: Arc<Self>, queue: Consumer<String>, stop: CancellationToken) {
        let config = Config { concurrency: CONCURRENCY, min_interval: MIN_INTERVAL };
        run(queue, config, &stop, |name| {
            let controller = Arc::clone(&self);
            async move {
                let reconcile = Box::pin(async {
                    let outcome = controller.reconcile(&name).await;
                    controller.settle_pod_cidrs();
                    match outcome {
                        Ok(outcome) => outcome,
                        // Another writer was faster: the watch will show its change, the requeue only makes sure.
                        Err(Error::Api(error)) if error.is_conflict() => Action::RequeueAfter(MIN_INTERVAL),
                        Err(error) => {
                            let text = chain(&error);
                            warn!(error = text, "reconciliation failed");
                            if let Some(set) = controller.context.sets.get(&name) {
                                let events = &controller.context.events;
                                events.warn(&reference_to(&*set), "ReconcileFailed", "Reconcile", text);
                            }
                            Action::Failed
                        }
                    }
                });
                controller.context.reconcile("nodeset", &name, reconcile).await
            }
        })
        .await;
    }

    async fn reconcile(&self, name: &str) -> Result<Action, Error> {
        let Some(set) = self.context.sets.get(name) else {
            self.context.expectations.forget(name);
            self.written.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
            self.refusals.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
            self.context.drain_permits.replace(name, []);
            return Ok(Action::AwaitChange);
        };
        if set.is_leaving() {
            return self.leave(&set).await;
        }
        let Ok(object) = &set.object else { return self.unreadable(&set).await };
        let observed = self.observe(object).await;
        let old = self.last_status(&set);
        let asked = wanted::Asked::of(object);
        let wanted = wanted::wanted(object, &asked, &observed, &old);
        let members: Vec<NodeState<'_>> = self.members(&observed, asked.unhealthy_conditions());
        let plan = set_planner::decide(&wanted, &members, observed.unseen().count(), Timestamp::now());
        let mut applied = self.apply(object, &observed, &plan).await;
        applied.problems.extend(asked.problems);
        self.status(
            &set,
            object,
            status::Seen { observed: &observed, members: &members, plan: &plan, old: &old },
            &applied,
        )
        .await
    }

    /// Drops the pod CIDRs promised to Nodes that will not come. Enqueues all sets if a Node that found no
    /// CIDR would find one now, for this reason or because a Node is gone.
    fn settle_pod_cidrs(&self) {
        let on_their_way = || self.context.expectations.creations();
        if self.context.pod_cidrs.as_ref().is_some_and(|cidrs| cidrs.keep(on_their_way)) {
            self.ask_all();
        }
    }

    fn ask_all(&self) {
        for set in self.context.sets.all() {
            self.requests.add(set.key());
        }
    }

    /// Reads or changes the record of a set's failed writes.
    fn refusals<T>(&self, set: &str, with: impl FnOnce(&mut Refusals) -> T) -> T {
        let mut all = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        with(all.entry(set.to_owned()).or_default())
    }

    /// Reads or changes the expectations of a set.
    fn expectations<T>(&self, set: &str, with: impl FnOnce(&mut Expectations) -> T) -> T {
        self.context.expectations.of(set, with)
    }
}

impl EventHandler<NodeView> for NodeSetController {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        for view in [old, new].into_iter().flatten() {
            let Some(set) = view.index_key() else { continue };
            self.context.expectations.shown(set, &view.name, new.map(|new| &**new));
            self.requests.add(set.to_owned());
        }
        let Some(gone) = old.filter(|_| new.is_none()) else { return };
        if self.context.pod_cidrs.as_ref().is_some_and(|cidrs| cidrs.relieved()) {
            self.ask_all();
        }
        // The Node leaves room in a class with a limit: another set may wait for it.
        let limited = |class: &CustomObject<NodeClass>| {
            class.object.as_ref().is_ok_and(|class| class.spec.limits.is_some())
        };
        if let Some(class) =
            gone.class().and_then(|name| self.context.classes.get(name)).filter(|c| limited(c))
        {
            for set in self.context.sets.by_index(class.name()) {
                self.requests.add(set.key());
            }
        }
    }

    fn on_relist(&self) {
        self.context.expectations.relisting();
    }

    fn on_resync(&self) {
        self.context.expectations.on_resync(|name| self.context.nodes.get(name).is_some());
        self.ask_all();
    }
}

impl EventHandler<CustomObject<NodeSet>> for NodeSetController {
    fn on_change(&self, old: Option<&Arc<CustomObject<NodeSet>>>, new: Option<&Arc<CustomObject<NodeSet>>>) {
        let own_status_alone = |old: &CustomObject<NodeSet>, new: &CustomObject<NodeSet>| {
            old.metadata.generation == new.metadata.generation
                && old.metadata.annotations == new.metadata.annotations
                && old.metadata.finalizers == new.metadata.finalizers
                && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
                && old.metadata.uid == new.metadata.uid
        };
        if let (Some(old), Some(new)) = (old, new)
            && own_status_alone(old, new)
            && !self.status_was_overwritten(new)
        {
            return;
        }
        if let Some(view) = new.or(old) {
            self.requests.add(view.key());
        }
    }
}

impl EventHandler<CustomObject<NodeClass>> for NodeSetController {
    fn on_change(
        &self,
        old: Option<&Arc<CustomObject<NodeClass>>>,
        new: Option<&Arc<CustomObject<NodeClass>>>,
    ) {
        let Some(class) = new.or(old) else { return };
        for set in self.context.sets.by_index(class.name()) {
            self.requests.add(set.key());
        }
    }
}
