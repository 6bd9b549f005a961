//! Node conditions as a kubelet writes them; texts from pkg/kubelet/nodestatus/setters.go.

/// A condition of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubeletCondition {
    /// Condition type.
    pub r#type: &'static str,
    /// `True` or `False`.
    pub status: &'static str,
    /// Reason in `CamelCase`.
    pub reason: &'static str,
    /// Message for people.
    pub message: &'static str,
}

/// Type of the condition that a kubelet writes whole; of the others it writes the status alone.
pub const READY: &str = "Ready";

/// Ready condition of a machine that fault injection makes unhealthy.
pub const UNHEALTHY: KubeletCondition = KubeletCondition {
    r#type: READY,
    status: "False",
    reason: "KubeletNotReady",
    message: "kube-node fault injection: the machine is in an unhealthy phase",
};

/// All conditions that a kubelet writes.
pub const fn conditions(healthy: bool) -> [KubeletCondition; 4] {
    const fn fine(r#type: &'static str, reason: &'static str, message: &'static str) -> KubeletCondition {
        KubeletCondition { r#type, status: "False", reason, message }
    }
    let ready = fine(READY, "KubeletReady", "kubelet is posting ready status");
    [
        fine("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        fine("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        fine("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        if healthy { KubeletCondition { status: "True", ..ready } } else { UNHEALTHY },
    ]
}
