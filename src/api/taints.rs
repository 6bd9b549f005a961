//! Taint keys that no template may set: other components own them, and both would undo each other's writes for ever. And the
//! record of a Node's startup taints, by which a taint that comes back makes no uninitialized Node of it.

use k8s_openapi::api::core::v1::Taint;

use crate::names::TAINT_UNINITIALIZED;

/// Prefix of our own taints.
pub const OURS: &str = "kube-node.io/";
/// The only one of our taints that templates may set: it keeps pods that need a real machine away from hollow Nodes.
pub const HOLLOW: &str = "kube-node.io/hollow";
/// A cloud-controller-manager initializes Nodes created with this taint and removes it.
pub const CLOUD_UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Taints of kube-controller-manager, cloud-controller-managers and cluster-autoscaler (well-known taints of
/// k8s.io/api and k8s.io/cloud-provider; utils/taints in cluster-autoscaler's source).
pub const RESERVED: [&str; 12] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/out-of-service",
    CLOUD_UNINITIALIZED,
    "node.cloudprovider.kubernetes.io/shutdown",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
];

/// Returns true if no template may keep a taint of this key on its Nodes.
pub fn is_reserved(key: &str) -> bool {
    RESERVED.contains(&key) || (key.starts_with(OURS) && key != HOLLOW)
}

/// Returns true if no template may create its Nodes with a taint of this key.
pub fn is_reserved_at_birth(key: &str) -> bool {
    is_reserved(key) && key != CLOUD_UNINITIALIZED
}

/// Value of `kube-node.io/startup-taints` for a Node that is created with these; None without any.
pub fn startup_record(startup: &[Taint]) -> Option<String> {
    let ids: Vec<String> = startup.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
    (!ids.is_empty()).then(|| ids.join(","))
}

/// Returns true if a Node with these taints is initialized, or was before. `record`: its `kube-node.io/startup-taints`.
pub fn is_initialized(record: Option<&str>, taints: &[Taint]) -> bool {
    let is_recorded = |taint: &Taint| {
        let mut ids = record.into_iter().flat_map(|record| record.split(','));
        ids.any(|id| id.rsplit_once(':') == Some((&*taint.key, &*taint.effect)))
    };
    !taints.iter().any(|taint| taint.key == TAINT_UNINITIALIZED || is_recorded(taint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_startup_taint_counts_only_while_the_node_has_the_record() {
        let taint = |key: &str, effect: &str| Taint {
            key: key.to_owned(),
            effect: effect.to_owned(),
            ..Taint::default()
        };
        let agent = taint("node.cilium.io/agent-not-ready", "NoExecute");
        let record = startup_record(&[agent.clone(), taint("csi", "NoSchedule")]).unwrap();
        assert_eq!(record, "node.cilium.io/agent-not-ready:NoExecute,csi:NoSchedule");
        assert_eq!(startup_record(&[]), None);
        let initialized =
            |taints: &[Taint]| [Some(&*record), None].map(|record| is_initialized(record, taints));
        assert_eq!(initialized(&[agent]), [false, true]);
        assert_eq!(initialized(&[taint("csi", "NoExecute")]), [true, true], "another effect");
        assert_eq!(initialized(&[taint(TAINT_UNINITIALIZED, "NoSchedule")]), [false, false]);
    }
}
