//! Keys of taints that no template may set: somebody else sets and removes them, and the two would take turns for ever.

/// What our own taints begin with.
pub const OURS: &str = "kube-node.io/";
/// The one of them that templates may have: it keeps pods that need a real machine away from hollow Nodes.
pub const HOLLOW: &str = "kube-node.io/hollow";
/// A cloud-controller-manager initialises Nodes that are born with it, and takes it off.
pub const CLOUD_UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Taints of kube-controller-manager, cloud-controller-managers and cluster-autoscaler (k8s.io/api's and k8s.io/cloud-provider's
/// well-known taints; utils/taints in cluster-autoscaler's source).
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

/// Whether no template may keep a taint of this key on its Nodes.
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    RESERVED.contains(&key) || (key.starts_with(OURS) && key != HOLLOW)
}

/// Whether no template may have its Nodes born with a taint of this key.
#[must_use]
pub fn is_reserved_at_birth(key: &str) -> bool {
    is_reserved(key) && key != CLOUD_UNINITIALIZED
}
