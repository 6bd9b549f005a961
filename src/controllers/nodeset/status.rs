//! Says how a NodeSet stands: status, conditions, and an event where somebody has to act.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    Error, NodeSetController,
    apply::{Applied, RETRY},
    observe::Observed,
};
use crate::{
    api::{NodeSet, NodeSetStatus, names},
    cache::{NodeView, Own},
    controllers::{api, reference_to},
    core::{
        conditions::{self, Says},
        set::{self, Member, Problem, Wanted},
        template::Desired,
    },
    runtime::queue::Outcome,
};

impl NodeSetController {
    /// Writes the status of a set that was worked on, and says when to look again.
    pub(super) async fn status(
        &self,
        own: &Own<NodeSet>,
        set: &NodeSet,
        observed: &Observed,
        applied: &Applied,
    ) -> Result<Outcome, Error> {
        let blueprint = observed.blueprint.as_ref().ok();
        let template = blueprint.map(|blueprint| &blueprint.template);
        let members: Vec<Member> = observed.members.iter().map(|node| member(node, template)).collect();
        let wanted = Wanted {
            replicas: usize::try_from(set.spec.replicas).unwrap_or(0),
            min_ready: Duration::from_secs(
                set.spec.min_ready_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0),
            ),
            generation: set.metadata.generation,
            update_revision: blueprint.map(|blueprint| blueprint.revision.clone()),
            selector: selector(&observed.name),
        };
        let look_again = self.write(own, Some(set), &wanted, &members, applied.problem.as_ref()).await?;
        Ok(match look_again {
            _ if applied.failed => Outcome::Failed,
            _ if applied.more => Outcome::After(Duration::ZERO),
            // A condition's time is whole seconds, so the moment may be up to one later than it says.
            Some(left) => Outcome::After(left.min(Duration::from_hours(1)) + RETRY),
            None => Outcome::Done,
        })
    }

    /// Writes the status of a set that leaves.
    pub(super) async fn leaving_status(&self, own: &Own<NodeSet>, nodes: &[&NodeView]) -> Result<(), Error> {
        let members: Vec<Member> =
            nodes.iter().map(|node| Member { leaving: true, ..member(node, None) }).collect();
        let wanted = Wanted {
            generation: own.metadata.generation,
            selector: selector(own.name()),
            ..Wanted::default()
        };
        self.write(own, own.object.as_ref().ok(), &wanted, &members, None).await.map(drop)
    }

    async fn write(
        &self,
        own: &Own<NodeSet>,
        set: Option<&NodeSet>,
        wanted: &Wanted,
        members: &[Member],
        problem: Option<&Problem>,
    ) -> Result<Option<Duration>, Error> {
        if let Some(Problem { reason, message }) = problem {
            self.context.events.warn(&reference_to(own), reason, "Reconcile", message.clone()).await;
        }
        let old = set.and_then(|set| set.status.clone()).unwrap_or_default();
        let creating = self.expectations(own.name(), |expectations| expectations.pending_creations());
        let standing = set::stand(wanted, members, creating, problem, &old, Timestamp::now());
        if standing.status != old {
            self.write_status(own.name(), &standing.status).await?;
        }
        Ok(standing.look_again)
    }

    /// Says of a set that nobody can read what is wrong with it. It is left as it is, its Nodes too.
    pub(super) async fn unreadable(&self, own: &Own<NodeSet>) -> Result<Outcome, Error> {
        let Err(error) = &own.object else { return Ok(Outcome::Done) };
        let message = format!("the object does not fit its definition, so nothing is done for it: {error}");
        if !self.context.events.warn(&reference_to(own), "Unreadable", "Reconcile", message.clone()).await {
            return Ok(Outcome::Done);
        }
        let says = Says { r#type: "Degraded", status: true, reason: "Unreadable", message };
        let status = NodeSetStatus {
            conditions: conditions::set(&[], vec![says], own.metadata.generation, Timestamp::now()),
            ..NodeSetStatus::default()
        };
        let conditions = serde_json::json!({ "conditions": status.conditions });
        self.write_status(own.name(), &conditions).await?;
        Ok(Outcome::Done)
    }

    async fn write_status(&self, name: &str, status: &impl serde::Serialize) -> Result<(), Error> {
        match api::patch_status::<NodeSet>(&self.context.client, name, status).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map_err(Error::from),
        }
    }
}

fn selector(set: &str) -> String {
    format!("{}={set}", names::LABEL_NODESET)
}

/// A Node as the status counts it.
fn member(node: &NodeView, template: Option<&Desired>) -> Member {
    let startup = template.map(|template| &template.startup_taints);
    let waits = |taint: &k8s_openapi::api::core::v1::Taint| {
        (taint.key == names::TAINT_UNINITIALIZED)
            || startup
                .into_iter()
                .flatten()
                .any(|startup| startup.key == taint.key && startup.effect == taint.effect)
    };
    let leaving = node.deleted_at.is_some();
    let trouble = if leaving { names::CONDITION_DRAINED } else { names::CONDITION_MACHINE };
    let ready = node.condition("Ready").filter(|ready| &*ready.status == "True");
    Member {
        name: node.name.to_string(),
        leaving,
        ready_since: ready.map(|ready| ready.since.unwrap_or(Timestamp::UNIX_EPOCH)),
        initialized: !node.taints.iter().any(waits),
        has_kubelet: node.kubelet_version.is_some(),
        revision: node.label(names::LABEL_REVISION).unwrap_or_default().to_owned(),
        trouble: node
            .condition(trouble)
            .filter(|condition| &*condition.status == "False")
            .map(|condition| (condition.reason.to_string(), condition.message.clone().unwrap_or_default())),
    }
}
