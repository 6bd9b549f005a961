//! Node groups from the caches: sets with `spec.autoscaling`, their Nodes, and the template of a further Node.
//!
//! Nothing here calls the API server, except to read a pinned revision that is not cached, or a Node that may have been made
//! again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use anyhow::Context as _;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_pb::api::core::v1::Node;
use kube::Api;
use kube_ext::{environment, error::chain};
use kube_node_api::{NodeClass, NodeSet, NodeSetSpec, names};
use kube_node_cache::{NodeView, View};
use kube_node_planner::{
    autoscaling::{
        self, Blueprint, Bounds, GroupNode, NodeRef, ReplicaChange, Rolling, ScaleRefusal, SetSnapshot,
        Trouble, VictimState,
    },
    budget::Budget,
    failed_writes::Write,
    revision::ResolvedMachine,
    set_wait::FINALIZER_MISSING,
    template::DesiredTemplate,
};
use parking_lot::Mutex;
use tonic::Status;

use super::{
    index::Index,
    writer::{Writer, limited},
};
use crate::Context;

/// Nodes that are read at the same time.
const READS: usize = 32;

/// All node groups.
pub(super) struct Groups {
    context: Arc<Context>,
    nodes: Api<k8s_openapi::api::core::v1::Node>,
    index: Arc<Index>,
    pub(super) writer: Arc<Writer>,
    /// The last template of each set, by UID of the set.
    templates: Mutex<HashMap<String, Node>>,
}

/// One node group.
pub(super) struct Group {
    pub(super) set: Arc<NodeSet>,
    /// Snapshot of the set, as the watch shows it.
    pub(super) shown: SetSnapshot,
}

impl Group {
    fn of(set: &Arc<NodeSet>) -> Option<Self> {
        Some(Self { shown: SetSnapshot::of(set)?, set: Arc::clone(set) })
    }

    pub(super) fn name(&self) -> &str {
        self.set.metadata.name.as_deref().unwrap_or_default()
    }

    /// Description for the logs of cluster-autoscaler.
    pub(super) fn describe(&self, bounds: Bounds) -> String {
        let (name, class, replicas) = (self.name(), &self.set.spec.node_class_name, self.shown.replicas);
        let Bounds { min, max } = bounds;
        format!("NodeSet {name} of NodeClass {class}: {replicas} replicas, {min} to {max}")
    }

    /// Returns true if a rollout is in progress, even a halted one.
    pub(super) fn has_rollout(&self) -> bool {
        self.set.status.as_ref().is_some_and(|status| status.rollout.is_some())
    }

    /// Returns true if a Node is what the set asks for now.
    fn is_updated(&self, node: &NodeView) -> bool {
        let newest = self.set.status.as_ref().and_then(|status| status.update_revision.as_deref());
        let annotations = self.set.metadata.annotations.as_ref();
        let restarted: Option<Timestamp> =
            annotations.and_then(|all| all.get(names::ANNOTATION_RESTARTED_AT)?.parse().ok());
        // A restart in the future is not due yet.
        let restarted = restarted.filter(|at| *at <= environment::now());
        newest.is_none_or(|newest| node.label(names::LABEL_REVISION) == Some(newest))
            && restarted.is_none_or(|at| node.created.is_some_and(|created| created >= at))
    }

    /// Number of Nodes that should go and cannot be deleted, without named victims.
    fn undeletable(&self) -> usize {
        let waits = self.set.status.iter().flat_map(|status| &status.waits);
        let reasons = [Write::Delete.into(), FINALIZER_MISSING];
        let undeletable = waits.filter(|wait| reasons.contains(&&*wait.reason)).map(|wait| wait.nodes);
        usize::try_from(undeletable.sum::<i32>()).unwrap_or(0).saturating_sub(self.shown.victims.len())
    }

    /// The rollout in progress, unless it is halted or paused.
    fn rolling(&self) -> Option<Rolling> {
        let rollout = self.set.status.as_ref()?.rollout.as_ref()?;
        let works = rollout.halt_time.is_none() && self.set.spec.paused != Some(true);
        let strategy = self.set.spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
        let replicas = usize::try_from(self.shown.replicas).unwrap_or(0);
        works.then(|| Rolling {
            surge: Budget::of(strategy, replicas).surge,
            keep: strategy.and_then(|strategy| usize::try_from(strategy.partition?).ok()).unwrap_or(0)
                // Nothing replaces a Node that cannot be deleted. A named victim is no outdated Node to begin with.
                + self.undeletable(),
        })
    }
}

impl Groups {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let index = Index::of(&context.nodes);
        let writer = Writer::new(context.client.clone());
        let nodes = Api::all(context.client.clone());
        Self { context, nodes, index, writer, templates: Mutex::default() }
    }

    /// Returns true once everything was listed.
    pub(super) fn in_sync(&self) -> bool {
        let Context { nodes, sets, classes, .. } = &*self.context;
        nodes.in_sync() && sets.in_sync() && classes.in_sync()
    }

    /// All groups, sorted by name.
    pub(super) fn all(&self) -> Vec<Group> {
        let sets = self.context.sets.all();
        let mut groups: Vec<Group> =
            sets.iter().filter_map(|own| Group::of(own.object.as_ref().ok()?)).collect();
        groups.sort_by(|a, b| a.name().cmp(b.name()));
        groups
    }

    /// The group of this name.
    pub(super) fn get(&self, id: &str) -> Result<Group, ScaleRefusal> {
        let group = self.context.sets.get(id).and_then(|own| Group::of(own.object.as_ref().ok()?));
        group.ok_or_else(|| ScaleRefusal::no_group(id))
    }

    /// The group of this name if it still is the set of a scale request; another set may have the name by now.
    pub(super) fn same(&self, id: &str, snapshot: &SetSnapshot) -> Result<Group, ScaleRefusal> {
        let group = self.get(id).ok().filter(|group| group.shown.uid == snapshot.uid);
        group.ok_or_else(|| ScaleRefusal::no_group(id))
    }

    /// The group of a Node or of a placeholder; None if it belongs to none.
    pub(super) fn of_node(&self, node_ref: NodeRef<'_>) -> Result<Option<Group>, ScaleRefusal> {
        if let Some(group) = autoscaling::placeholder_group(node_ref.provider_id) {
            return Ok(self.get(group).ok());
        }
        node_ref.check()?;
        // Another Node of that name is none of ours.
        let Ok(Some(node)) = self.find(node_ref) else { return Ok(None) };
        let group = node.index_key().and_then(|set| self.get(set).ok());
        Ok(group.filter(|group| node.is_of(group.name(), &group.shown.uid)))
    }

    fn find(&self, node_ref: NodeRef<'_>) -> Result<Option<Arc<NodeView>>, ScaleRefusal> {
        let nodes = &self.context.nodes;
        // cluster-autoscaler names both, so one lookup is enough.
        let by_name = nodes.get(node_ref.name);
        if let Some(node) = &by_name
            && !node_ref.provider_id.is_empty()
            && node.provider_id.as_deref() == Some(node_ref.provider_id)
        {
            return Ok(by_name);
        }
        autoscaling::resolve(
            node_ref,
            |id| nodes.get(&self.index.name(id)?),
            |_| by_name,
            |node| node.provider_id.clone(),
        )
    }

    /// Refuses a scale request that names a Node of which the watch still shows a former one of the same name, and
    /// providerID. cluster-autoscaler taints a working Node before it names it: one that is shown without this taint is read.
    pub(super) async fn check_identity(&self, victims: &[(String, String)]) -> Result<(), Status> {
        let mut unmarked = Vec::new();
        for (provider_id, name) in victims {
            let node = self.find(NodeRef { provider_id, name }).ok().flatten();
            unmarked.extend(node.filter(|node| node.kubelet_version.is_some() && !node.is_to_be_deleted()));
        }
        let read = |node: Arc<NodeView>| async move {
            let live = limited(self.nodes.get_metadata_opt(&node.name)).await.map_err(|error| {
                let cause = error.map_or_else(|| "no response".to_owned(), |error| chain(&*error));
                Status::unavailable(format!("node {} could not be read: {cause}", node.name))
            })?;
            match live.and_then(|live| live.metadata.uid) {
                Some(uid) if uid != *node.uid => Err(Status::unavailable(format!(
                    "node {} was deleted and made again, and this process has not seen the new one yet: ask again",
                    node.name
                ))),
                _ => Ok(()),
            }
        };
        stream::iter(unmarked).map(read).buffer_unordered(READS).try_collect().await
    }

    /// Decides a scale request that deletes Nodes; `victims` are providerID and name of each.
    pub(super) fn delete(
        &self,
        snapshot: &SetSnapshot,
        id: &str,
        victims: &[(String, String)],
    ) -> Result<Option<ReplicaChange>, ScaleRefusal> {
        if victims.len() > autoscaling::MOST_VICTIMS {
            return Err(ScaleRefusal::too_many(victims.len()));
        }
        let group = self.same(id, snapshot)?;
        let found = victims.iter().map(|(provider_id, name)| self.find(NodeRef { provider_id, name }));
        let nodes: Vec<_> = found.collect::<Result<_, _>>()?;
        let targets: Vec<VictimState<'_>> = nodes
            .iter()
            .map(|node| match node {
                None => VictimState::Gone,
                Some(node) if node.is_of(id, &group.shown.uid) => {
                    VictimState::Ours { uid: &node.uid, leaving: node.deleted_at.is_some() }
                }
                Some(node) => VictimState::Foreign { name: &node.name },
            })
            .collect();
        let staying = self.machines(&group, |machines, coming| {
            autoscaling::serving(snapshot, machines, coming, group.undeletable())
        });
        autoscaling::delete(id, snapshot, staying, &targets)
    }

    /// The machines of a group, and the number of expected creations that the watch has not shown.
    pub(super) fn machines<T>(&self, group: &Group, with: impl FnOnce(&[GroupNode<'_>], usize) -> T) -> T {
        let startup = self.context.startup_taints(&group.set.spec);
        // Read before the Nodes: a Node shown in between counts once.
        let expectations = self.context.expectations.lock().get(group.name()).cloned().unwrap_or_default();
        let nodes = self.context.nodes.by_index(group.name());
        let machines: Vec<GroupNode<'_>> = nodes
            .iter()
            .filter(|node| node.is_of(group.name(), &group.shown.uid))
            .map(|node| GroupNode {
                name: &node.name,
                uid: &node.uid,
                provider_id: node.provider_id.as_deref(),
                leaving: node.deleted_at.is_some() || expectations.is_leaving(&node.name),
                has_kubelet: node.kubelet_version.is_some(),
                started: node.is_started(&startup.of_node(&node.annotations)),
                initialized: node.is_initialized(),
                ready: node.is_ready(),
                updated: group.is_updated(node),
                autoscaler_drains: node.is_to_be_deleted(),
                created: node.created.unwrap_or_default(),
                trouble: self.trouble(node),
            })
            .collect();
        // Mostly there are none, and cluster-autoscaler asks for this thousands of times per loop.
        let coming = if expectations.pending_creations() == 0 {
            0
        } else {
            let shown: HashSet<&str> = nodes.iter().map(|node| &*node.name).collect();
            expectations.creations().filter(|name| !shown.contains(name)).count()
        };
        with(&machines, coming)
    }

    /// Bounds of the group: those of its set, limited by what `NodeClass.spec.limits.nodes` leaves beside the
    /// class's Nodes of other sets.
    pub(super) fn bounds(&self, group: &Group, bounds: Bounds) -> Bounds {
        let limit = self.class(group).and_then(|class| class.spec.limits.as_ref()?.nodes);
        let Some(limit) = limit else { return bounds };
        let class = &group.set.spec.node_class_name;
        let expectations = self.context.expectations.lock();
        let others = self.context.nodes_of_class(class, Some(group.name()), &expectations);
        let left = i32::try_from(others).map_or(0, |others| limit.saturating_sub(others));
        Bounds { max: bounds.max.min(left).max(bounds.min), ..bounds }
    }

    /// Target size of the group; None while the result of a write is unknown.
    pub(super) fn target_size(&self, group: &Group) -> Option<i32> {
        let snapshot = self.writer.tell(group.name(), &group.shown)?;
        Some(self.machines(group, |machines, coming| {
            autoscaling::target_size(&snapshot, machines, coming, group.rolling())
        }))
    }

    fn class(&self, group: &Group) -> Option<Arc<NodeClass>> {
        self.context.classes.get(&group.set.spec.node_class_name)?.object.clone().ok()
    }

    /// Template of a further Node of the group, or the last known one. A group that loses its template, and
    /// has a Node or a pending scale request, would keep cluster-autoscaler from growing other groups.
    pub(super) async fn template_node(&self, group: &Group) -> Result<Node, ScaleRefusal> {
        let known = self.resolve_template(group).await;
        let mut last = self.templates.lock();
        match known {
            Ok(node) => {
                if !last.contains_key(&group.shown.uid) {
                    let sets: HashSet<String> = self.all().into_iter().map(|group| group.shown.uid).collect();
                    last.retain(|uid, _| sets.contains(uid));
                }
                last.insert(group.shown.uid.clone(), node.clone());
                Ok(node)
            }
            Err(refusal) => last.get(&group.shown.uid).cloned().ok_or(refusal),
        }
    }

    async fn resolve_template(&self, group: &Group) -> Result<Node, ScaleRefusal> {
        let resolved = self.resolve_machine(group).await;
        let (class, revision, machine) =
            resolved.map_err(|error| ScaleRefusal::no_template(chain(&*error)))?;
        let spec = &group.set.spec;
        let blueprint = Blueprint {
            set: group.name(),
            class: &spec.node_class_name,
            revision: &revision,
            machine: &machine,
            template: &DesiredTemplate::merge(class.spec.template.as_ref(), spec.template.as_ref()),
        };
        autoscaling::node(blueprint, environment::now())
    }

    /// Class, revision and machine spec of a further Node of the group.
    async fn resolve_machine(
        &self,
        group: &Group,
    ) -> anyhow::Result<(Arc<NodeClass>, String, Arc<ResolvedMachine>)> {
        let NodeSetSpec { node_class_name: name, revision, class_overrides, .. } = &group.set.spec;
        let unreadable =
            || format!("there is no NodeClass {name} that can be read: create it, or name another one");
        let class = self.class(group).with_context(unreadable)?;
        if let Some(revision) = revision {
            let stored = self.context.revisions.get(name, revision).await?;
            let missing = || format!("there is no revision {revision} of NodeClass {name}");
            return Ok((class, revision.clone(), stored.with_context(missing)?));
        }
        let machine = ResolvedMachine::resolve(&class.spec, class_overrides.as_ref());
        machine.check()?;
        Ok((class, machine.revision()?, Arc::new(machine)))
    }

    /// All readable classes.
    pub(super) fn classes(&self) -> Vec<Arc<NodeClass>> {
        self.context.classes.all().iter().filter_map(|class| class.object.clone().ok()).collect()
    }

    /// The class of a Node, by its label; a template has the label too.
    pub(super) fn class_of(&self, node_ref: NodeRef<'_>, label: Option<&str>) -> Option<Arc<NodeClass>> {
        let node = self.find(node_ref).ok().flatten();
        let name = node.as_ref().and_then(|node| node.class()).or(label);
        self.context.classes.get(name?)?.object.clone().ok()
    }

    /// Obstacle to the machine of a Node.
    fn trouble<'a>(&self, node: &'a NodeView) -> Option<Trouble<'a>> {
        let condition =
            node.condition(names::CONDITION_MACHINE).filter(|condition| &*condition.status == "False")?;
        Some(Trouble {
            reason: &condition.reason,
            message: condition.message.as_deref().unwrap_or_default(),
            since: condition.since.map(|since| self.context.counted(node, names::CONDITION_MACHINE, since)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube_node_cache::{Cache, CachedNodeClass, intern};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_restart_in_the_future_makes_no_node_outdated_before_its_time() {
        let now = environment::now();
        let group = |restarted: Timestamp| {
            let set = json!({
                "metadata": { "name": "a", "annotations": { names::ANNOTATION_RESTARTED_AT: restarted } },
                "spec": { "replicas": 1, "nodeClassName": "small", "autoscaling": { "minReplicas": 0, "maxReplicas": 2 } },
            });
            Group::of(&Arc::new(serde_json::from_value(set).unwrap())).unwrap()
        };
        let node = NodeView { created: Some(now - Duration::from_mins(1)), ..NodeView::default() };
        assert!(group(now + Duration::from_hours(1)).is_updated(&node));
        assert!(!group(now - Duration::from_secs(1)).is_updated(&node));
    }

    /// cluster-autoscaler counts a Node as ready once it has started; one whose agent is not there takes no pods.
    #[tokio::test]
    async fn a_node_with_a_startup_taint_has_not_started_while_its_class_or_revision_is_missing() {
        let has_started = |class: Option<Value>, revision: Option<&str>, applied: &str| {
            let set = json!({
                "metadata": { "name": "a", "uid": "set" },
                "spec": {
                    "replicas": 1, "nodeClassName": "small", "revision": revision,
                    "autoscaling": { "minReplicas": 0, "maxReplicas": 2 },
                },
            });
            let group = Group::of(&Arc::new(serde_json::from_value(set).unwrap())).unwrap();
            let node = NodeView {
                name: "a-1".into(),
                labels: [(intern(names::LABEL_NODESET), intern("a"))].into_iter().collect(),
                annotations: [(intern(names::ANNOTATION_APPLIED), intern(applied))].into_iter().collect(),
                taints: serde_json::from_value(json!([{ "key": "agent", "effect": "NoSchedule" }])).unwrap(),
                ..NodeView::default()
            };
            let classes: Option<CachedNodeClass> = class.map(|class| serde_json::from_value(class).unwrap());
            let (nodes, classes) = (Cache::full([node]), Cache::full(classes));
            let groups = Groups::new(Arc::new(Context { nodes, classes, ..crate::tests::context(0) }));
            groups.machines(&group, |machines, _| machines[0].started)
        };
        let class = |template: Value| {
            let spec = json!({ "nodeController": "hollow", "template": template });
            Some(json!({ "metadata": { "name": "small" }, "spec": spec }))
        };
        let agent = || class(json!({ "startupTaints": [{ "key": "agent", "effect": "NoSchedule" }] }));
        let unreadable = || Some(json!({ "metadata": { "name": "small" }, "spec": { "nodeController": 7 } }));
        let recorded = r#"{"startupTaints":["agent:NoSchedule"]}"#;
        assert!(!has_started(agent(), None, "{}"), "the class got the taint after the Node was created");
        assert!(!has_started(agent(), Some("v1-0"), "{}"), "the revision is missing, the class is not");
        assert!(has_started(class(json!({})), None, recorded), "the class has lost the taint");
        assert!(!has_started(None, None, recorded), "the class is missing");
        assert!(!has_started(unreadable(), None, recorded), "the class cannot be read");
        assert!(has_started(None, None, "{}"), "the taint is of somebody else");
    }
}
