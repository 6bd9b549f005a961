//! What several commands read from the status of a NodeSet. No I/O.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_node_api::{NodeSet, NodeSetStatus};

/// Name of a NodeSet.
pub(super) fn name(set: &NodeSet) -> &str {
    set.metadata.name.as_deref().unwrap_or_default()
}

/// The condition of this type.
pub(super) fn condition<'a>(status: &'a NodeSetStatus, r#type: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == r#type)
}

/// The condition `Degraded` if it is true.
pub(super) fn degraded(status: &NodeSetStatus) -> Option<&Condition> {
    condition(status, "Degraded").filter(|degraded| degraded.status == "True")
}

/// Reason and message of the first wait, else of what degrades the NodeSet.
pub(super) fn delay(status: &NodeSetStatus) -> Option<(&str, &str)> {
    let wait = status.waits.first().map(|wait| (wait.reason.as_str(), wait.message.as_str()));
    wait.or_else(|| degraded(status).map(|degraded| (degraded.reason.as_str(), degraded.message.as_str())))
}

/// Returns true if the operator has observed the present spec.
pub(super) fn is_observed(set: &NodeSet) -> bool {
    let observed = set.status.as_ref().and_then(|status| status.observed_generation);
    observed.is_some() && observed >= set.metadata.generation
}
