//! Taint keys that no template may set: other components own them, and both would undo each other's writes for ever.

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
