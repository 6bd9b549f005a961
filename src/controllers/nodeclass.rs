//! `NodeClassController`: accepts classes, counts their Nodes, and keeps classes and their credentials Secrets
//! while in use.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Resource};
use kube_ext::{
    call::ApiError,
    environment,
    work_queue::{Action, Config, Consumer, WorkQueue, work_queue},
};
use kube_node_api::{NodeClass, NodeClassStatus, names};
use kube_node_cache::{CachedNodeClass, CachedNodeSet, EventHandler, NodeView, View};
use kube_node_planner::{
    conditions::{self, ConditionUpdate},
    expectations::Expectations,
    history,
    revision::ResolvedMachine,
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Context, Secrets, api,
    reconcile::Result,
    reserved_taints,
    secrets::{CHECK_INTERVAL, SECRET_DELETED},
};

/// Minimum interval between two reconciliations of one class: its status counts Nodes.
const CONFIG: Config = Config { concurrency: 2, min_interval: Duration::from_secs(1) };

/// Interval between two checks of the stored revisions of one class; each check sends a LIST.
const TIDY_INTERVAL: Duration = Duration::from_mins(1);

/// Users of a class.
struct Users {
    /// Number of Nodes.
    nodes: usize,
    /// Names of NodeSets.
    sets: Vec<String>,
    /// Revisions of the Nodes.
    revisions: BTreeSet<String>,
}

impl Users {
    fn is_none(&self) -> bool {
        self.nodes == 0 && self.sets.is_empty()
    }
}

/// Name of the class's credentials Secret.
fn credentials(class: &CachedNodeClass) -> Option<&str> {
    let class = class.object.as_ref().ok()?;
    class.spec.credentials_secret_ref.as_ref().map(|secret| secret.name.as_str())
}

/// The controller.
pub struct NodeClassController {
    context: Arc<Context>,
    api: Api<NodeClass>,
    /// Credentials Secrets of classes.
    secrets: Secrets,
    requests: WorkQueue<String>,
    /// Time of the last check of the stored revisions, by class.
    tidied: Mutex<HashMap<String, Instant>>,
}

impl NodeClassController {
    /// Returns a controller that follows the caches of `context`, and the queue for [`Self::run`].
    pub fn new(context: Arc<Context>, secrets: Secrets) -> (Arc<Self>, Consumer<String>) {
        let (requests, queue) = work_queue();
        let api = Api::all(context.client.clone());
        let controller = Arc::new(Self { context, api, secrets, requests, tidied: Mutex::default() });
        controller.context.nodes.add_event_handler(controller.clone());
        controller.context.sets.add_event_handler(controller.clone());
        controller.context.classes.add_event_handler(controller.clone());
        (controller, queue)
    }

    /// Reconciles until `stop`, then finishes reconciliations in flight.
    pub async fn run(self: Arc<Self>, queue: Consumer<String>, stop: CancellationToken) {
        let this = &*self;
        let reconcile = |name: String| async move { this.reconcile(&name).await };
        self.context.run("nodeclass", (queue, CONFIG), &stop, reconcile).await;
    }

    async fn reconcile(&self, name: &str) -> Result<Action> {
        let Some(class) = self.context.classes.get(name) else {
            self.tidied.lock().remove(name);
            self.context.released_classes.forget(name);
            self.context.revisions.forget(name);
            if let Some(secret) = self.secrets.of(name) {
                self.release_credentials(name, &secret).await?;
            }
            return Ok(Action::AwaitChange);
        };
        if class.is_leaving() && self.is_unused(&class) {
            self.release(&class).await?;
            return Ok(Action::AwaitChange);
        }
        if !class.is_leaving()
            && api::set_finalizer(&self.api, &class.metadata, names::FINALIZER_IN_USE, true).await?
        {
            // The event of this patch enqueues the next reconciliation.
            return Ok(Action::AwaitChange);
        }
        let credentials = self.protect_credentials(&class).await?;
        let users = self.users(name);
        let check_in = credentials.as_ref().map(|_| CHECK_INTERVAL);
        self.write_status(&class, &users, credentials).await?;
        let tidy_in = self.tidy_revisions(&class).await?;
        Ok(Action::RequeueAfter(check_in.map_or(tidy_in, |check_in| check_in.min(tidy_in))))
    }

    /// Returns true if a leaving class may go, and notes that it goes. What is noted stays noted: the answer to an earlier attempt
    /// may be lost.
    fn is_unused(&self, class: &CachedNodeClass) -> bool {
        let released = &self.context.released_classes;
        if released.contains(&class.metadata) {
            return true;
        }
        if !self.users(class.name()).is_none() {
            return false;
        }
        released.note(&class.metadata);
        let is_unused = self.users(class.name()).is_none();
        if !is_unused {
            released.forget(class.name());
        }
        is_unused
    }

    /// Removes the finalizer of a class that leaves, and that of its credentials.
    async fn release(&self, class: &CachedNodeClass) -> Result<()> {
        let name = class.name();
        // Before the class is deleted: a restarted operator would not know the Secret afterwards.
        if let Some(secret) = credentials(class) {
            self.release_credentials(name, secret).await?;
        }
        api::set_finalizer(&self.api, &class.metadata, names::FINALIZER_IN_USE, false).await?;
        Ok(())
    }

    fn users(&self, class: &str) -> Users {
        let all = self.context.nodes.all();
        let of_class = || all.iter().filter(|node| node.class() == Some(class));
        let revisions = of_class().filter_map(|node| node.label(names::LABEL_REVISION));
        let mut sets: Vec<String> = self.context.sets.by_index(class).iter().map(|set| set.key()).collect();
        sets.sort();
        Users { nodes: of_class().count(), sets, revisions: revisions.map(str::to_owned).collect() }
    }

    /// Protects the class's credentials Secret and returns its condition; None if the class names no Secret.
    async fn protect_credentials(&self, class: &CachedNodeClass) -> Result<Option<ConditionUpdate>> {
        // The Secret of an unreadable class is unknown: the last known one stays.
        if class.object.is_err() {
            return Ok(None);
        }
        let current = credentials(class);
        if let Some(old) = self.secrets.of(class.name()).filter(|old| current != Some(old.as_str())) {
            self.release_credentials(class.name(), &old).await?;
        }
        let Some(secret) = current else { return Ok(None) };
        Ok(Some(self.secrets.protect(class.name(), secret).await?))
    }

    /// Releases a Secret that the class no longer needs.
    async fn release_credentials(&self, class: &str, secret: &str) -> Result<(), ApiError> {
        // Of two classes that leave at once, neither may keep the Secret because of the other.
        let stays = |own: &CachedNodeClass| !own.is_leaving() || !self.users(own.name()).is_none();
        let names = |own: &CachedNodeClass| own.object.is_err() || credentials(own) == Some(secret);
        let is_needed = self.context.classes.all().iter().any(|own| names(own) && stays(own));
        self.secrets.release(class, secret, is_needed).await
    }

    /// Deletes revisions that no Node and no set needs, and restores needed ones that were deleted; once per
    /// interval. Returns the time until the next check.
    async fn tidy_revisions(&self, own: &CachedNodeClass) -> Result<Duration> {
        let class = own.name();
        let now = Instant::now();
        let last = self.tidied.lock().get(class).copied();
        if let Some(left) = last.and_then(|last| TIDY_INTERVAL.checked_sub(now.duration_since(last))) {
            return Ok(left);
        }
        if self.needed_revisions(class).is_none() {
            return Ok(TIDY_INTERVAL);
        }
        self.tidied.lock().insert(class.to_owned(), now);
        let (gone, restored) = self.context.revisions.tidy(own, || self.needed_revisions(class)).await?;
        if gone > 0 {
            info!(class, count = gone, "forgot revisions that nothing needs");
        }
        if restored > 0 {
            warn!(class, count = restored, "stored revisions again that somebody had deleted");
        }
        Ok(TIDY_INTERVAL)
    }

    /// Revisions of a class that Nodes and sets need now, and the number of others that are kept for a way back; None
    /// if they are not known.
    fn needed_revisions(&self, class: &str) -> Option<(BTreeSet<String>, usize)> {
        let sets = self.context.sets.by_index(class);
        // A Node that the watch does not show yet names a revision, too.
        let is_creating = |expectations: &Expectations| expectations.pending_creations() > 0;
        if sets.iter().any(|own| self.context.expectations.lock().get(own.name()).is_some_and(is_creating)) {
            return None;
        }
        let own = self.context.classes.get(class)?;
        let spec = &own.object.as_ref().ok()?.spec;
        let mut needed = self.users(class).revisions;
        let mut limit = None;
        for own in sets {
            let set = own.object.as_ref().ok()?;
            // That of the next Nodes, before any status names it.
            let next = ResolvedMachine::resolve(spec, set.spec.class_overrides.as_ref()).revision().ok();
            needed.extend(set.spec.revision.clone().into_iter().chain(next));
            let status = set.status.clone().unwrap_or_default();
            needed.extend(status.current_revision.into_iter().chain(status.update_revision));
            let own = set.spec.revision_history_limit.and_then(|limit| usize::try_from(limit).ok());
            limit = limit.max(Some(own.unwrap_or(history::DEFAULT_LIMIT)));
        }
        Some((needed, limit.unwrap_or(history::DEFAULT_LIMIT)))
    }

    async fn write_status(
        &self,
        class: &CachedNodeClass,
        users: &Users,
        credentials: Option<ConditionUpdate>,
    ) -> Result<(), ApiError> {
        let object = class.object.as_ref().ok();
        let old = object.and_then(|class| class.status.clone()).unwrap_or_default();
        let mut updates: Vec<ConditionUpdate> = self.acceptance(class).into_iter().collect();
        let events = &self.context.events;
        if class.is_leaving() {
            let (message, note) = in_use(users.nodes, &users.sets);
            events.warn(&class.object_ref(&()), "InUse", "Delete", note);
            updates.push(ConditionUpdate { r#type: "Deleting", status: false, reason: "InUse", message });
        }
        if let Some(lost) = credentials.as_ref().filter(|update| update.reason == SECRET_DELETED) {
            events.warn(&class.object_ref(&()), lost.reason, "Keep", lost.message.clone());
        }
        updates.extend(credentials);
        let set = |conditions: &[_], updates| {
            conditions::set(conditions, updates, class.metadata.generation, environment::now())
        };
        let conditions = set(&old.conditions, updates);
        let conditions = set(&conditions, vec![readiness(&conditions)]);
        let machine = object.map(|class| ResolvedMachine::resolve(&class.spec, None));
        let status = NodeClassStatus {
            observed_generation: class.metadata.generation,
            revision: machine.and_then(|machine| machine.revision().ok()),
            nodes: Some(i32::try_from(users.nodes).unwrap_or(i32::MAX)),
            conditions,
        };
        if object.is_some() && status == old {
            return Ok(());
        }
        // A third party's NodeController may accept the class at the same time.
        let precondition = api::same_version(&class.metadata);
        api::replace_status(&self.api, class.name(), precondition, &status).await.map(drop)
    }

    /// The condition `Accepted`; None for a class of a third party's NodeController, which writes the
    /// condition itself.
    fn acceptance(&self, class: &CachedNodeClass) -> Option<ConditionUpdate> {
        let (status, reason, message) = match &class.object {
            Err(error) => (false, "Unreadable", format!("the object does not fit its definition: {error}")),
            Ok(class) => {
                let controller = class.spec.node_controller.as_str();
                self.context.providers.get(controller)?;
                if let Err(error) = ResolvedMachine::resolve(&class.spec, None).check() {
                    (false, "InvalidMachine", error.to_string())
                } else if let Some(message) = reserved_taints("the template", class.spec.template.as_ref()) {
                    (false, "ReservedTaint", message)
                } else {
                    (true, "Accepted", format!("served by the NodeController {controller}"))
                }
            }
        };
        Some(ConditionUpdate { r#type: "Accepted", status, reason, message })
    }

    /// Enqueues both classes of an object whose class has changed.
    fn class_changed(&self, old: Option<&str>, new: Option<&str>) {
        if old != new {
            [old, new].into_iter().flatten().for_each(|class| self.requests.add(class.to_owned()));
        }
    }
}

/// The condition `Ready` by kstatus's rules for custom resources: true once the class's NodeController has
/// accepted it.
fn readiness(conditions: &[Condition]) -> ConditionUpdate {
    let accepted = conditions.iter().find(|condition| condition.type_ == "Accepted");
    let (status, reason, message) = match accepted {
        Some(accepted) if accepted.status == "True" => (true, "Accepted", accepted.message.clone()),
        Some(accepted) => (false, "NotAccepted", accepted.message.clone()),
        None => (false, "NotAccepted", "no NodeController has accepted the class yet".to_owned()),
    };
    ConditionUpdate { r#type: "Ready", status, reason, message }
}

/// Message of the condition of a leaving class that is used, and text of the event: that has no count of Nodes, since
/// an event is written again with each change of the text.
fn in_use(nodes: usize, sets: &[String]) -> (String, String) {
    let (count, uncounted) =
        if nodes == 0 { (String::new(), "") } else { (format!("{nodes} nodes"), "nodes") };
    (still_used_by(&count, sets), still_used_by(uncounted, sets))
}

/// Names the users of a leaving class, at most five sets by name.
fn still_used_by(nodes: &str, sets: &[String]) -> String {
    let shown = sets.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    let more = if sets.len() > 5 { format!(" and {} more", sets.len() - 5) } else { String::new() };
    let sets = if sets.is_empty() { String::new() } else { format!("NodeSets {shown}{more}") };
    let both = if sets.is_empty() || nodes.is_empty() { "" } else { " and " };
    format!("still used by {sets}{both}{nodes}: delete these first")
}

impl EventHandler<NodeView> for NodeClassController {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        self.class_changed(old.and_then(|old| old.class()), new.and_then(|new| new.class()));
    }
}

impl EventHandler<CachedNodeSet> for NodeClassController {
    fn on_change(&self, old: Option<&Arc<CachedNodeSet>>, new: Option<&Arc<CachedNodeSet>>) {
        self.class_changed(old.and_then(|old| old.index_key()), new.and_then(|new| new.index_key()));
    }
}

impl EventHandler<CachedNodeClass> for NodeClassController {
    fn on_change(&self, old: Option<&Arc<CachedNodeClass>>, new: Option<&Arc<CachedNodeClass>>) {
        let relevant = |class: &Arc<CachedNodeClass>| {
            let metadata = &class.metadata;
            (metadata.uid.clone(), metadata.generation, metadata.finalizers.clone(), class.is_leaving())
        };
        if old.map(relevant) != new.map(relevant)
            && let Some(class) = new
        {
            self.requests.add(class.key());
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_class_is_ready_once_its_node_controller_has_accepted_it() {
        let now = Timestamp::UNIX_EPOCH;
        let ready = |accepted: Option<bool>| {
            let update = accepted.map(|status| ConditionUpdate {
                r#type: "Accepted",
                status,
                reason: "Any",
                message: "why".to_owned(),
            });
            let ready = readiness(&conditions::set(&[], update.into_iter().collect(), None, now));
            (ready.status, ready.reason, ready.message)
        };
        assert_eq!(ready(Some(true)), (true, "Accepted", "why".to_owned()));
        assert_eq!(ready(Some(false)), (false, "NotAccepted", "why".to_owned()));
        let (status, reason, message) = ready(None);
        assert_eq!((status, reason), (false, "NotAccepted"));
        assert!(message.contains("no NodeController"), "{message}");
    }

    #[test]
    fn the_users_of_a_deleted_class_are_named_and_the_event_stays_as_nodes_go() {
        let sets: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).into();
        let (message, note) = in_use(0, &sets[..1]);
        assert_eq!((&*message, &*note), ("still used by NodeSets a: delete these first", &*message));
        let (message, note) = in_use(12, &sets);
        assert_eq!(
            message,
            "still used by NodeSets a, b, c, d, e and 1 more and 12 nodes: delete these first"
        );
        assert_eq!(note, "still used by NodeSets a, b, c, d, e and 1 more and nodes: delete these first");
        assert_eq!(note, in_use(11, &sets).1);
        assert_eq!(in_use(3, &[]).1, "still used by nodes: delete these first");
    }
}
