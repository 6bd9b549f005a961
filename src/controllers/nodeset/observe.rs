//! What a look at a NodeSet sees: its Nodes by their relation to it, its class, and what these make together.

use std::sync::Arc;

use super::{Error, NodeSetController};
use crate::{
    api::{NodeClass, NodeSet, names},
    cache::NodeView,
    controllers::RevisionsError,
    core::{expectations::Expectations, revision::Machine, set::Problem, template::Desired},
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
    /// What new Nodes are, or why there can be none.
    pub(super) blueprint: Result<Blueprint, Problem>,
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
            blueprint: self.blueprint(set).await?,
            expectations: self.expectations(&name, |expectations| expectations.clone()),
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
        let machine = Machine::resolve(&class.spec, set.spec.class_overrides.as_ref());
        if let Err(error) = machine.check() {
            return problem("InvalidMachine", format!("{error}"));
        }
        let revision = match self.context.revisions.ensure(class, &machine).await {
            Ok(revision) => revision,
            Err(RevisionsError::Api(error)) if !error.is_final() => return Err(error.into()),
            Err(error) => return problem("RevisionNotStored", crate::controllers::chain(&error)),
        };
        Ok(Ok(Blueprint {
            class: class_name.clone(),
            revision,
            template: Desired::merge(class.spec.template.as_ref(), set.spec.template.as_ref()),
            machine,
        }))
    }
}

/// Whether somebody else's NodeController said that it serves the class.
fn is_accepted(class: &NodeClass) -> bool {
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == "Accepted" && condition.status == "True")
}

/// Whether an admin or cluster-autoscaler marked the Node as the next to go.
pub(super) fn is_marked(node: &NodeView) -> bool {
    let first = node.annotations.get(names::ANNOTATION_DELETE_FIRST);
    first.is_some_and(|value| value != "false")
        || node.taints.iter().any(|taint| taint.key == names::TAINT_TO_BE_DELETED)
}
