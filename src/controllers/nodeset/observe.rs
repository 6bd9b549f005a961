//! Observed state of a NodeSet: its Nodes by their relation to it, its class, and the blueprint of new Nodes.
//!
//! Invariant: a class or a revision that cannot be used now is a [`SetWait`] of the set and nothing else: its
//! Nodes are scaled down, repaired and drained all the same.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube_ext::{environment, error::chain};
use kube_node_api::{NodeClass, NodeSet, NodeSetStatus, UnhealthyCondition, names};
use kube_node_cache::{ConditionView, NodeView};
use kube_node_planner::{
    autoscaling,
    expectations::Expectations,
    failed_writes::{self, Write},
    node_state::ObservedCondition,
    revision::ResolvedMachine,
    rollout,
    set_planner::{ClassRoom, Creation, CreationLimits, DeletionStage, NodeState},
    set_wait::SetWait,
    template::DesiredTemplate,
    wait::NodeWait,
};
use tokio::time::Instant;

use super::NodeSetController;
use crate::revisions::{self, RevisionsError};

/// Observed state of one set.
pub(super) struct Observed {
    pub(super) set: Arc<NodeSet>,
    /// Status that this process wrote last, else the one that the watch shows.
    pub(super) status: NodeSetStatus,
    pub(super) name: String,
    pub(super) uid: String,
    /// Expectations, read before the node cache; in the other order a Node just created could be counted zero times.
    pub(super) expectations: Expectations,
    /// Owned Nodes with the set's label.
    pub(super) members: Vec<Arc<NodeView>>,
    /// Nodes with the set's label and without an owner.
    pub(super) to_adopt: Vec<Arc<NodeView>>,
    /// Owned Nodes that have lost the set's label.
    pub(super) to_release: Vec<Arc<NodeView>>,
    /// UIDs of the victims named when the replicas were lowered.
    pub(super) victims: BTreeSet<String>,
    /// Blueprint of new Nodes, or the reason why there is none.
    pub(super) blueprint: Result<Blueprint, NoBlueprint>,
    /// Generation of the class, read before the blueprint.
    pub(super) class_generation: Option<i64>,
    /// Nodes left within the limit of the class.
    pub(super) class_room: Option<ClassRoom>,
    /// Limits for new Nodes of the blueprint.
    pub(super) newest: CreationLimits,
    /// Limits for new Nodes of [`Self::working_revision`].
    pub(super) working: CreationLimits,
    /// Time of the observation.
    pub(super) at: Instant,
}

impl Observed {
    /// Nodes that belong to the set, or are about to.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<NodeView>> {
        self.members.iter().chain(&self.to_adopt)
    }

    /// Revision of new Nodes, if known.
    pub(super) fn revision(&self) -> Option<&str> {
        self.blueprint.as_ref().ok().map(|blueprint| blueprint.revision.as_str())
    }

    /// The revision that works, if it is not that of the blueprint.
    pub(super) fn working_revision(&self) -> Option<&str> {
        let newest = self.revision()?;
        self.status.current_revision.as_deref().filter(|current| *current != newest)
    }

    /// Names of Nodes whose creation was sent and that the watch has not shown.
    pub(super) fn unseen(&self) -> impl Iterator<Item = &str> {
        let shown: HashSet<&str> = self.nodes().map(|node| &*node.name).collect();
        self.expectations.creations().filter(move |name| !shown.contains(name))
    }
}

/// Definition of the new Nodes of a set.
pub(super) struct Blueprint {
    pub(super) machine: Arc<ResolvedMachine>,
    pub(super) revision: String,
    pub(super) template: DesiredTemplate,
    /// `spec.limits.nodes` of the class.
    pub(super) limit: Option<usize>,
}

impl Blueprint {
    /// Identifies the creations of a revision by the template of the blueprint: the API server may accept in another form what
    /// it refused.
    pub(super) fn intent(&self, revision: &str) -> u64 {
        failed_writes::intent(&(revision, &self.template))
    }
}

/// Reason why there is no blueprint.
pub(super) struct NoBlueprint {
    pub(super) problem: SetWait,
    /// True if time alone may help: no change of set or class would enqueue the set.
    pub(super) retry: bool,
    /// True if the API server did not answer: the set may be in the middle of a rollout.
    pub(super) unanswered: bool,
}

impl NodeSetController {
    pub(super) async fn observe(&self, set: &Arc<NodeSet>) -> Observed {
        let name = set.metadata.name.clone().unwrap_or_default();
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let class = self.context.classes.get(&set.spec.node_class_name);
        let blueprint = self.blueprint(set).await;
        let expectations = self.context.expectations.lock().get(&name).cloned().unwrap_or_default();
        let made = blueprint.as_ref().ok();
        let mut observed = Observed {
            members: Vec::new(),
            to_adopt: Vec::new(),
            to_release: Vec::new(),
            victims: autoscaling::victims(set.metadata.annotations.as_ref()),
            newest: CreationLimits::default(),
            working: CreationLimits::default(),
            at: Instant::now(),
            class_room: self.class_room(&set.spec.node_class_name, made.and_then(|made| made.limit)),
            class_generation: class.and_then(|own| own.metadata.generation),
            blueprint,
            expectations,
            status: self.last_status(set),
            name,
            uid,
            set: Arc::clone(set),
        };
        if let Ok(blueprint) = &observed.blueprint {
            let limits = |revision| self.creation_limits(set, blueprint, revision);
            (observed.newest, observed.working) =
                (limits(&blueprint.revision), observed.working_revision().map(limits).unwrap_or_default());
        }
        for node in self.context.nodes.by_index(&observed.name) {
            let labelled = node.set() == Some(observed.name.as_str());
            match node.owner() {
                Some(owner) if owner.uid == observed.uid && labelled => observed.members.push(node),
                Some(owner) if owner.uid == observed.uid => observed.to_release.push(node),
                // Owned by a deleted set of this name: the garbage collector has not been here yet.
                Some(_) => {}
                None if node.is_controlled() || node.deleted_at.is_some() => {}
                None => observed.to_adopt.push(node),
            }
        }
        observed
    }

    /// Limits for new Nodes of a revision with the template of the blueprint.
    fn creation_limits(&self, set: &NodeSet, blueprint: &Blueprint, revision: &str) -> CreationLimits {
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let (intent, now) = (blueprint.intent(revision), environment::now());
        let left =
            self.failed_writes(name, |failures| failures.retry_in(Write::Create, revision, intent, now));
        let creation = match left {
            None => Creation::Allowed,
            Some(Duration::ZERO) => Creation::Probed,
            Some(retry_in) => Creation::Refused { retry_in },
        };
        CreationLimits { creation, class_back_off: self.class_back_off(set, revision) }
    }

    fn class_room(&self, class: &str, limit: Option<usize>) -> Option<ClassRoom> {
        let limit = limit?;
        let nodes = self.context.nodes_of_class(class, None, &self.context.expectations.lock());
        Some(ClassRoom { left: limit.saturating_sub(nodes), limit })
    }

    /// The Nodes as the planner needs them.
    pub(super) fn members<'a>(
        &self,
        observed: &'a Observed,
        unhealthy_conditions: &[UnhealthyCondition],
    ) -> Vec<NodeState<'a>> {
        let startup = self.context.startup_taints(&observed.set.spec);
        let refused = self.refused_deletions(&observed.name, observed.nodes());
        observed
            .nodes()
            .map(|node| {
                let counted = |condition: &ConditionView| {
                    Some(self.context.counted(node, &condition.r#type, condition.since?))
                };
                let startup = startup.of_node(&node.annotations);
                let mut member = member(node, &startup, unhealthy_conditions, counted);
                // A permit is not withdrawn: the drain may have started, and a second one would exceed the
                // budget. The same holds for a deletion that the watch has not shown yet. A drain whose start was
                // refused has not started: it may have to wait for others again.
                let is_pending = member.stage == DeletionStage::PendingDrain;
                let permits = &self.context.drain_permits;
                let drains = is_pending && permits.allows_drain(&observed.name, &node.uid);
                let is_refused = || {
                    permits.is_granted(&observed.name, &node.uid)
                        || member.trouble.is_some_and(|(reason, _)| reason == NodeWait::REFUSED)
                };
                let drain_refused = is_pending && !drains && is_refused();
                let deletion_refused = node.deleted_at.is_none() && refused.contains_key(&node.name);
                member.deletion_refused = drain_refused || deletion_refused;
                let is_leaving = || observed.expectations.is_leaving(&node.name);
                if drains || member.stage == DeletionStage::Staying && is_leaving() {
                    member.stage = DeletionStage::Draining;
                }
                member.victim = observed.victims.contains(&*node.uid);
                // If cluster-autoscaler does not scale the set, its taint is a mark and no more.
                member.autoscaler_drains = observed.set.spec.autoscaling.is_some() && node.is_to_be_deleted();
                member.pods = self.context.pods.counted(&node.name, None);
                member
            })
            .collect()
    }

    /// Nodes whose deletion was refused, with the time until the next attempt. A deletion that failed otherwise is
    /// repeated: no other Node goes in its place.
    pub(super) fn refused_deletions<'a>(
        &self,
        set: &str,
        nodes: impl Iterator<Item = &'a Arc<NodeView>>,
    ) -> HashMap<Arc<str>, Duration> {
        let now = environment::now();
        self.failed_writes(set, |failures| {
            if !failures.has(Write::Delete) {
                return HashMap::new();
            }
            let left = |node: &NodeView| {
                failures.refused_for(Write::Delete, &node.name, failed_writes::intent(&node.uid), now)
            };
            nodes.filter_map(|node| Some((Arc::clone(&node.name), left(node)?))).collect()
        })
    }

    /// Time for which no Node of this revision is created because such Nodes of other sets of the class did not start.
    fn class_back_off(&self, set: &NodeSet, revision: &str) -> Duration {
        let now = environment::now();
        let all = self.context.sets.by_index(&set.spec.node_class_name);
        let others = all.iter().filter_map(|own| own.object.as_ref().ok());
        let others = others.filter(|other| other.metadata.uid != set.metadata.uid);
        let failures = others.filter_map(|other| other.status.as_ref()?.start_failures.as_ref());
        let failures = failures.filter(|failures| failures.revision == revision);
        failures.map(|failures| rollout::back_off(failures, now)).max().unwrap_or_default()
    }

    /// Blueprint of new Nodes.
    async fn blueprint(&self, set: &NodeSet) -> Result<Blueprint, NoBlueprint> {
        let none = |retry, reason, message| NoBlueprint {
            problem: SetWait::of_set(reason, message),
            retry,
            unanswered: false,
        };
        let failed = |reason, error: RevisionsError| NoBlueprint {
            unanswered: matches!(&error, RevisionsError::Api(error) if !error.is_final()),
            ..none(true, reason, chain(&error))
        };
        let problem = |reason, message| Err(none(false, reason, message));
        let class_name = &set.spec.node_class_name;
        let Some(own) = self.context.class(class_name) else {
            let message = format!(
                "there is no NodeClass {class_name}: create it, or name another one in nodeClassName"
            );
            return problem("ClassNotFound", message);
        };
        let unreadable = |error| format!("NodeClass {class_name} cannot be read: {error}");
        let class = own.object.as_ref().map_err(|error| none(false, "ClassUnreadable", unreadable(error)))?;
        let controller = &class.spec.node_controller;
        if !self.context.providers.contains_key(controller.as_str()) && !is_accepted(class) {
            let ours = self.context.providers.keys().copied().collect::<Vec<_>>().join(", ");
            let message = format!(
                "no NodeController {controller:?} has accepted NodeClass {class_name}: is its name right? This one serves {ours}"
            );
            return problem("ClassNotAccepted", message);
        }
        let limit = class.spec.limits.as_ref().and_then(|limits| limits.nodes);
        let limit = limit.map(|nodes| usize::try_from(nodes).unwrap_or(0));
        let template = DesiredTemplate::merge(class.spec.template.as_ref(), set.spec.template.as_ref());
        if let Some(revision) = &set.spec.revision {
            let stored = self.stored(class_name, revision, template).await;
            let stored = stored.map_err(|error| failed("RevisionNotRead", error))?;
            let stored = stored.ok_or_else(|| {
                let message = format!(
                    "there is no revision {revision} of NodeClass {class_name}: kube-node rollout history shows those that are; or remove spec.revision"
                );
                none(true, "RevisionNotFound", message)
            })?;
            return Ok(Blueprint { limit, ..stored });
        }
        let machine = ResolvedMachine::resolve(&class.spec, set.spec.class_overrides.as_ref());
        if let Err(error) = machine.check() {
            return problem("InvalidMachine", error.to_string());
        }
        let revision = self.context.revisions.ensure(class, &machine).await;
        let revision = revision.map_err(|error| failed("RevisionNotStored", error))?;
        Ok(Blueprint { machine: machine.into(), revision, template, limit })
    }

    /// Blueprint of Nodes of a stored revision; None if it is not stored.
    pub(super) async fn stored(
        &self,
        class: &str,
        revision: &str,
        template: DesiredTemplate,
    ) -> revisions::Result<Option<Blueprint>> {
        let machine = self.context.revisions.get(class, revision).await?;
        let revision = revision.to_owned();
        Ok(machine.map(|machine| Blueprint { machine, revision, template, limit: None }))
    }
}

/// Returns true if a third party's NodeController has accepted the class.
fn is_accepted(class: &NodeClass) -> bool {
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == "Accepted" && condition.status == "True")
}

/// A Node as planner and status need it. `since` is the last transition of a condition, by this process's clock.
pub(super) fn member<'a>(
    node: &'a NodeView,
    startup: &[Taint],
    unhealthy_conditions: &[UnhealthyCondition],
    since: impl Fn(&ConditionView) -> Option<Timestamp>,
) -> NodeState<'a> {
    let stage = match node.deleted_at {
        None => DeletionStage::Staying,
        // The cordon is the start of the drain.
        Some(_) if node.unschedulable => DeletionStage::Draining,
        Some(_) => DeletionStage::PendingDrain,
    };
    let trouble =
        if stage == DeletionStage::Staying { names::CONDITION_MACHINE } else { names::CONDITION_DRAINED };
    let (ready, unready) = match node.condition("Ready") {
        Some(ready) if &*ready.status == "True" => (Some(ready), None),
        unready => (None, unready),
    };
    let trouble = node.condition(trouble).filter(|condition| &*condition.status == "False");
    let drain_started =
        node.annotations.get(names::ANNOTATION_DRAIN_STARTED).and_then(|text| text.parse().ok());
    let observed = |unhealthy: &UnhealthyCondition| {
        let condition = node.condition(&unhealthy.r#type)?;
        Some(ObservedCondition {
            r#type: &condition.r#type,
            status: &condition.status,
            since: since(condition),
        })
    };
    let is_set = |annotation| node.annotations.get(annotation).is_some_and(|value| value != "false");
    NodeState {
        name: &node.name,
        revision: node.label(names::LABEL_REVISION).unwrap_or_default(),
        created: node.created.unwrap_or_default(),
        stage,
        ready_since: ready.map(|ready| since(ready).unwrap_or(Timestamp::UNIX_EPOCH)),
        unready_since: unready.and_then(&since),
        started: node.is_started(startup),
        initialized: node.is_initialized(),
        marked: is_set(names::ANNOTATION_DELETE_FIRST) || node.is_to_be_deleted(),
        victim: false,
        autoscaler_drains: false,
        deletion_refused: false,
        unprotected: stage == DeletionStage::Staying && !node.has_finalizer(names::FINALIZER_MACHINE),
        skip_remediation: is_set(names::ANNOTATION_SKIP_REMEDIATION),
        pods: 0,
        conditions: unhealthy_conditions.iter().filter_map(observed).collect(),
        trouble: trouble
            .map(|condition| (&*condition.reason, condition.message.as_deref().unwrap_or_default())),
        // The condition may have had another reason before: the wait for the budget of the set.
        trouble_since: trouble.and_then(&since).max(drain_started),
    }
}
