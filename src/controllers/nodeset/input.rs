//! The part of a Node that a reconciliation of its set reads: a change of anything else, such as a heartbeat, starts none.
//!
//! Invariant: what [`super::observe`] and the templates read of a Node is compared here.

use kube_node_api::{UnhealthyCondition, names};
use kube_node_cache::{ConditionView, NodeView};
use kube_node_planner::node_builder::ANNOTATION_TTL;

/// Returns true if a reconciliation would read the same of both states of a Node. The set replaces Nodes for the
/// `unhealthy` conditions.
pub(super) fn is_same(old: &NodeView, new: &NodeView, unhealthy: &[UnhealthyCondition]) -> bool {
    // A new field has to be compared, or named as one that is not read.
    let NodeView {
        name: _,
        uid,
        // The precondition of writes: a conflict starts the next reconciliation by itself.
        resource_version: _,
        created,
        deleted_at,
        labels,
        annotations,
        finalizers,
        has_unused_managed_fields: _,
        owners,
        provider_id: _,
        pod_cidr: _,
        unschedulable,
        taints,
        conditions,
        kubelet_version,
        boot_id: _,
        internal_ip: _,
        kubelet_port: _,
        machine: _,
        amounts: _,
    } = new;
    *uid == old.uid
        && (*created, *deleted_at, *unschedulable) == (old.created, old.deleted_at, old.unschedulable)
        && (labels, owners, taints) == (&old.labels, &old.owners, &old.taints)
        && annotations.is_same_without(&old.annotations, ANNOTATION_TTL)
        && *kubelet_version == old.kubelet_version
        && *finalizers == old.finalizers
        && read(conditions, unhealthy).eq(read(&old.conditions, unhealthy))
}

/// The conditions that are read, in their order; of those of others no reason.
fn read<'a>(
    conditions: &'a [ConditionView],
    unhealthy: &'a [UnhealthyCondition],
) -> impl Iterator<Item = impl PartialEq> {
    let is_ours = |condition: &ConditionView| condition.r#type.starts_with(names::GROUP);
    let is_read = move |condition: &&ConditionView| {
        &*condition.r#type == "Ready"
            || is_ours(condition)
            || unhealthy.iter().any(|unhealthy| *unhealthy.r#type == *condition.r#type)
    };
    conditions.iter().filter(is_read).map(move |condition| {
        let ConditionView { r#type, status, reason, since, message } = condition;
        (r#type, status, since, is_ours(condition).then_some((reason, message)))
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use kube_node_api::label_map::LabelMap;
    use kube_node_cache::intern;
    use serde_json::json;

    use super::*;

    fn condition(r#type: &str, status: &str, reason: &str) -> ConditionView {
        let since = Some(Timestamp::UNIX_EPOCH);
        ConditionView {
            r#type: intern(r#type),
            status: intern(status),
            reason: intern(reason),
            since,
            message: None,
        }
    }

    fn node() -> NodeView {
        let conditions = vec![
            condition("MemoryPressure", "False", "A"),
            condition("DiskPressure", "False", "A"),
            condition("Ready", "True", "A"),
            condition(names::CONDITION_MACHINE, "False", "A"),
        ];
        NodeView { name: "a".into(), resource_version: "1".to_owned(), conditions, ..NodeView::default() }
    }

    /// Returns true if a reconciliation reads what `change` changes.
    fn is_read(change: impl FnOnce(&mut NodeView)) -> bool {
        let unhealthy = json!([{"type": "DiskPressure", "status": "True", "for": "1m"}]);
        let unhealthy: Vec<UnhealthyCondition> = serde_json::from_value(unhealthy).unwrap();
        let mut new = node();
        change(&mut new);
        !is_same(&node(), &new, &unhealthy)
    }

    #[test]
    fn a_heartbeat_changes_nothing_that_is_read() {
        assert!(!is_read(|node| node.resource_version = "2".to_owned()));
        assert!(!is_read(|node| node.conditions[0] = condition("MemoryPressure", "True", "B")));
        assert!(!is_read(|node| node.conditions[1] = condition("DiskPressure", "False", "B")));
        assert!(!is_read(|node| node.conditions[2] = condition("Ready", "True", "B")));
        assert!(!is_read(|node| node.boot_id = Some("b".to_owned())));
    }

    #[test]
    fn of_the_annotations_all_but_that_of_the_cluster_size_are_read() {
        assert!(!is_read(|node| node.annotations = LabelMap::from([(ANNOTATION_TTL, "15")])));
        assert!(is_read(|node| node.annotations = LabelMap::from([("example.com/zone", "b")])));
    }

    #[test]
    fn states_on_which_a_set_decides_are_read() {
        assert!(is_read(|node| node.conditions[1] = condition("DiskPressure", "True", "A")));
        assert!(is_read(|node| node.conditions[2] = condition("Ready", "Unknown", "A")));
        assert!(is_read(|node| node.conditions[3] = condition(names::CONDITION_MACHINE, "False", "B")));
        assert!(is_read(|node| node.conditions.truncate(3)));
        assert!(is_read(|node| node.unschedulable = true));
        assert!(is_read(|node| node.finalizers = vec![names::FINALIZER_MACHINE.to_owned()]));
        assert!(is_read(|node| node.deleted_at = Some(Timestamp::UNIX_EPOCH)));
        assert!(is_read(|node| node.annotations = [(intern("a"), intern("b"))].into_iter().collect()));
    }
}
