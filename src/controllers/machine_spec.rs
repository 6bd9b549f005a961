//! Machine spec of a Node: the revision that the Node names, and the present settings of its class and set.
//! Used by the NodeController and by workers.

use std::sync::Arc;

use kube_node_api::{NodeClassSpec, machine_files::MachineSettings, names};
use kube_node_cache::{Cache, CachedNodeSet, NodeView};
use kube_node_planner::revision::ResolvedMachine;

use super::revisions::{Result, Revisions};

/// Content of the revision that a Node names; None if the Node names none or the revision is gone.
pub async fn stored(revisions: &Revisions, node: &NodeView) -> Result<Option<Arc<ResolvedMachine>>> {
    let Some(revision) = node.label(names::LABEL_REVISION) else { return Ok(None) };
    revisions.get(node.class().unwrap_or_default(), revision).await
}

/// Settings that propagate in place: those of the class, with the overrides of the Node's set.
pub fn settings(
    node: &NodeView,
    machine: &ResolvedMachine,
    class: Option<&NodeClassSpec>,
    sets: &Cache<CachedNodeSet>,
) -> MachineSettings {
    let set = node.set().and_then(|set| sets.get(set)?.object.clone().ok());
    let of_set = set.and_then(|set| set.spec.class_overrides.as_ref()?.failures.clone());
    let failures = of_set.or_else(|| class?.failures.clone());
    let containers = machine.hollow.as_ref().and_then(|hollow| hollow.containers.clone()).unwrap_or_default();
    MachineSettings { failures, containers, csi_node: machine.needs_csi_node() }
}
