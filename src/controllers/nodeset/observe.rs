//! What a look at a NodeSet sees: its Nodes by their relation to it, its class, and what these make together.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;

use super::{Error, NodeSetController};
use crate::{
    api::{NodeClass, NodeSet, names},
    cache::NodeView,
    controllers::RevisionsError,
    core::{
        autoscaling,
        causes::{Sign, Symptom},
        expectations::Expectations,
        revision::Machine,
        rollout,
        set::Problem,
        template::Desired,
        turnover::{Member, Stage},
    },
};

/// One set, as it is.
pub(super) struct Observed {
    pub(super) name: String,
    pub(super) uid: String,
    /// What was asked for and not shown yet, as it was before the Nodes were looked at: what is shown in between is
    /// then known twice, and never not at all.
    pub(super) expectations: Expectations,
    /// Nodes that it owns and that carry its label.
    pub(super) members: Vec<Arc<NodeView>>,
    /// Nodes that carry its label and that nobody owns.
    pub(super) to_adopt: Vec<Arc<NodeView>>,
    /// Nodes that it owns and that carry its label no more.
    pub(super) to_release: Vec<Arc<NodeView>>,
    /// UIDs of Nodes that were named to go when the replicas were lowered.
    pub(super) victims: BTreeSet<String>,
    /// Whether cluster-autoscaler scales the set.
    pub(super) autoscaled: bool,
    /// What new Nodes are, or why there can be none.
    pub(super) blueprint: Result<Blueprint, Problem>,
    /// How long no Node is made because those of other sets of the class did not start.
    pub(super) class_back_off: Duration,
}

impl Observed {
    /// Nodes that are the set's, or about to be.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<NodeView>> {
        self.members.iter().chain(&self.to_adopt)
    }

    /// Names of Nodes that were asked for and that the watch has not shown.
    pub(super) fn unseen(&self) -> impl Iterator<Item = &str> {
        let shown: HashSet<&str> = self.nodes().map(|node| &*node.name).collect();
        self.expectations.creations().filter(move |name| !shown.contains(name))
    }
}

/// What new Nodes of a set are.
pub(super) struct Blueprint {
    pub(super) class: String,
    pub(super) machine: Machine,
    pub(super) revision: String,
    pub(super) template: Desired,
}

impl NodeSetController {
    pub(super) async fn observe(&self, set: &NodeSet) -> Result<Observed, Error> {
        let name = set.metadata.name.clone().unwrap_or_default();
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let mut observed = Observed {
            members: Vec::new(),
            to_adopt: Vec::new(),
            to_release: Vec::new(),
            victims: autoscaling::victims(set.metadata.annotations.as_ref()),
            autoscaled: set.spec.autoscaling.is_some(),
            blueprint: self.blueprint(set).await?,
            class_back_off: self.class_back_off(set),
            expectations: self.context.outstanding.now(&name),
            name,
            uid,
        };
        for node in self.context.nodes.group(&observed.name) {
            let labelled = node.set() == Some(observed.name.as_str());
            match node.owner() {
                Some(owner) if owner.uid == observed.uid && labelled => observed.members.push(node),
                Some(owner) if owner.uid == observed.uid => observed.to_release.push(node),
                // A set of this name that is gone: the garbage collector has not been here yet.
                Some(_) => {}
                None if node.is_controlled() || node.deleted_at.is_some() => {}
                None => observed.to_adopt.push(node),
            }
        }
        Ok(observed)
    }

    /// The Nodes, as the decision wants them.
    pub(super) fn members<'a>(&self, observed: &'a Observed, symptoms: &[Symptom]) -> Vec<Member<'a>> {
        let startup =
            observed.blueprint.as_ref().map_or(&[][..], |blueprint| &blueprint.template.startup_taints);
        observed
            .nodes()
            .map(|node| {
                let mut member = member(node, startup, symptoms);
                // A turn that was granted is not taken back: the drain may have begun, and a second one would be one too
                // many. Nor is a deletion that the watch has not shown yet.
                let goes = match member.stage {
                    Stage::Staying => observed.expectations.is_leaving(&node.name),
                    Stage::Condemned => self.context.turns.has(&observed.name, &node.uid),
                    Stage::Draining => false,
                };
                if goes {
                    member.stage = Stage::Draining;
                }
                member.named = observed.victims.contains(&*node.uid);
                // Where cluster-autoscaler has no say, its taint is somebody's mark and no more.
                member.claimed = observed.autoscaled && node.is_to_be_deleted();
                member.pods =
                    self.context.pods.group(&node.name).iter().filter(|pod| pod.holds_up_drain()).count();
                member
            })
            .collect()
    }

    /// How long no Node is made because those of other sets of the class did not start.
    fn class_back_off(&self, set: &NodeSet) -> Duration {
        let now = Timestamp::now();
        let others = self.context.sets.group(&set.spec.node_class_name);
        let of = |other: &NodeSet| {
            let failures = other.status.as_ref()?.start_failures.as_ref()?;
            let same = other.spec.class_overrides == set.spec.class_overrides
                && other.metadata.uid != set.metadata.uid;
            same.then(|| rollout::back_off(failures, now))
        };
        others.iter().filter_map(|own| of(own.object.as_ref().ok()?)).max().unwrap_or_default()
    }

    /// What new Nodes are made of; a [`Problem`] waits for somebody to change the set or its class.
    async fn blueprint(&self, set: &NodeSet) -> Result<Result<Blueprint, Problem>, Error> {
        let class_name = &set.spec.node_class_name;
        let problem = |reason, message| Ok(Err(Problem { reason, message }));
        let Some(view) = self.context.classes.get(class_name) else {
            return problem(
                "ClassNotFound",
                format!(
                    "there is no NodeClass {class_name}: create it, or name another one in nodeClassName"
                ),
            );
        };
        let class = match &view.object {
            Ok(class) => class,
            Err(error) => {
                return problem("ClassUnreadable", format!("NodeClass {class_name} cannot be read: {error}"));
            }
        };
        let controller = &class.spec.node_controller;
        if !self.context.providers.contains_key(controller.as_str()) && !is_accepted(class) {
            let ours = self.context.providers.keys().copied().collect::<Vec<_>>().join(", ");
            return problem(
                "ClassNotAccepted",
                format!(
                    "no NodeController {controller:?} has accepted NodeClass {class_name}: is its name right? This one serves {ours}"
                ),
            );
        }
        let template = Desired::merge(class.spec.template.as_ref(), set.spec.template.as_ref());
        if let Some(revision) = &set.spec.revision {
            return match self.stored(class_name, revision, template).await? {
                Some(blueprint) => Ok(Ok(blueprint)),
                None => problem(
                    "RevisionNotFound",
                    format!(
                        "there is no revision {revision} of NodeClass {class_name}: kube-node rollout history shows those that are; or remove spec.revision"
                    ),
                ),
            };
        }
        let machine = Machine::resolve(&class.spec, set.spec.class_overrides.as_ref());
        if let Err(error) = machine.check() {
            return problem("InvalidMachine", format!("{error}"));
        }
        let revision = match self.context.revisions.ensure(class, &machine).await {
            Ok(revision) => revision,
            Err(RevisionsError::Api(error)) if !error.is_final() => return Err(error.into()),
            Err(error) => return problem("RevisionNotStored", crate::error::chain(&error)),
        };
        Ok(Ok(Blueprint { class: class_name.clone(), revision, template, machine }))
    }

    /// What Nodes of a revision that is stored are; None where it is not.
    pub(super) async fn stored(
        &self,
        class: &str,
        revision: &str,
        template: Desired,
    ) -> Result<Option<Blueprint>, Error> {
        let machine = self.context.revisions.get(class, revision).await?;
        Ok(machine.map(|machine| Blueprint {
            class: class.to_owned(),
            machine: (*machine).clone(),
            revision: revision.to_owned(),
            template,
        }))
    }
}

/// Whether somebody else's NodeController said that it serves the class.
fn is_accepted(class: &NodeClass) -> bool {
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == "Accepted" && condition.status == "True")
}

/// A Node, as decision and status want it.
pub(super) fn member<'a>(node: &'a NodeView, startup: &[Taint], symptoms: &[Symptom]) -> Member<'a> {
    let stage = match node.deleted_at {
        None => Stage::Staying,
        // The drain begins with the cordon.
        Some(_) if node.unschedulable => Stage::Draining,
        Some(_) => Stage::Condemned,
    };
    let trouble = if stage == Stage::Staying { names::CONDITION_MACHINE } else { names::CONDITION_DRAINED };
    let ready = node.condition("Ready").filter(|ready| &*ready.status == "True");
    let is_set = |annotation| node.annotations.get(annotation).is_some_and(|value| value != "false");
    Member {
        name: &node.name,
        revision: node.label(names::LABEL_REVISION).unwrap_or_default(),
        created: node.created.unwrap_or_default(),
        stage,
        ready_since: ready.map(|ready| ready.since.unwrap_or(Timestamp::UNIX_EPOCH)),
        started: node.is_started(startup),
        has_kubelet: node.kubelet_version.is_some(),
        marked: is_set(names::ANNOTATION_DELETE_FIRST) || node.is_to_be_deleted(),
        named: false,
        claimed: false,
        skip_remediation: is_set(names::ANNOTATION_SKIP_REMEDIATION),
        pods: 0,
        signs: symptoms
            .iter()
            .filter_map(|symptom| {
                let condition = node.condition(&symptom.r#type)?;
                Some(Sign { r#type: &condition.r#type, status: &condition.status, since: condition.since })
            })
            .collect(),
        trouble: node
            .condition(trouble)
            .filter(|condition| &*condition.status == "False")
            .map(|condition| (&*condition.reason, condition.message.as_deref().unwrap_or_default())),
    }
}
