//! What a kubelet says of its machine's health: conditions and texts are those of pkg/kubelet/nodestatus/setters.go.

/// A condition of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub r#type: &'static str,
    /// `True` or `False`.
    pub status: &'static str,
    /// Its reason, a word in `CamelCase`.
    pub reason: &'static str,
    /// Its message, for people.
    pub message: &'static str,
}

/// A machine that works.
pub const READY: Condition = Condition {
    r#type: "Ready",
    status: "True",
    reason: "KubeletReady",
    message: "kubelet is posting ready status",
};
/// A machine that the disruptor makes look broken.
pub const DISRUPTED: Condition = Condition {
    r#type: "Ready",
    status: "False",
    reason: "KubeletNotReady",
    message: "kube-node disruptor: the machine is in an unhealthy phase",
};

/// All conditions that a kubelet writes.
#[must_use]
pub const fn conditions(healthy: bool) -> [Condition; 4] {
    [
        Condition {
            r#type: "MemoryPressure",
            status: "False",
            reason: "KubeletHasSufficientMemory",
            message: "kubelet has sufficient memory available",
        },
        Condition {
            r#type: "DiskPressure",
            status: "False",
            reason: "KubeletHasNoDiskPressure",
            message: "kubelet has no disk pressure",
        },
        Condition {
            r#type: "PIDPressure",
            status: "False",
            reason: "KubeletHasSufficientPID",
            message: "kubelet has sufficient PID available",
        },
        if healthy { READY } else { DISRUPTED },
    ]
}
