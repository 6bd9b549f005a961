//! Advice for the reasons in a NodeSet's status, one sentence each.

/// Advice for the reason of a condition or a wait; NODESET stands for the name of the NodeSet. A reason without advice
/// needs none, or has it in its message.
pub(crate) fn hint(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "Paused" => "To go on: `kube-node rollout resume NODESET`.",
        "Pinned" => "To follow the class again: `kube-node rollout undo NODESET --to-latest`.",
        "ProgressDeadlineExceeded" => {
            "Check the new nodes; then go back with `kube-node rollout undo NODESET` or on with `kube-node rollout resume NODESET`."
        }
        "DrainBlocked" | "PodDisruptionBudget" => {
            "Raise the budget's maxUnavailable or the workload's replicas, delete the pod, or set spec.drain.timeout."
        }
        "PodOptedOut" => {
            "Take the annotation kube-node.io/do-not-evict off the pod, delete the pod, or set spec.drain.timeout."
        }
        "EmptyDirData" => {
            "Set spec.drain.deleteEmptyDirData to true, delete the pod, or set spec.drain.timeout."
        }
        "UnmanagedPod" => "Set spec.drain.unmanagedPods to Evict, delete the pod, or set spec.drain.timeout.",
        "EvictionRefused" => "Find what refuses evictions, such as an admission webhook, or delete the pod.",
        "VolumesAttached" => "Check kube-controller-manager, which detaches volumes, and the storage driver.",
        "BackOff" => {
            "Read the conditions of the nodes that do not start: `kubectl describe nodes -l kube-node.io/nodeset=NODESET`."
        }
        "TooManySick" => {
            "Find what the unhealthy nodes have in common; spec.remediation.maxUnhealthy says how many may be replaced."
        }
        "RepairLimit" => "To repair more at once, raise spec.remediation.maxInFlight.",
        "Budget" | "WaitingForBudget" => {
            "They go as others become available; to let more go at once, raise spec.strategy.rollingUpdate.maxUnavailable."
        }
        "MachinesLeaving" => "To have more machines at once, raise spec.strategy.rollingUpdate.maxSurge.",
        "Partition" => "To roll the others too, lower spec.strategy.rollingUpdate.partition.",
        "OnDelete" => "Delete them when it suits, or set spec.strategy.type to RollingUpdate.",
        "ClassNotFound" => "Create the class, or name another one in spec.nodeClassName.",
        "ClassNotAccepted" => {
            "Correct the class's nodeController, or start the controller of that name; it accepts the class by a condition."
        }
        "ClassUnreadable" | "Unreadable" => {
            "Install this version's definitions: `kube-node crds | kubectl apply --server-side -f -`."
        }
        "InvalidMachine" => "Correct the class, or spec.classOverrides.",
        "RevisionNotFound" => "Choose one that is there: `kube-node rollout history NODESET`.",
        "CIDRNotAvailable" => {
            "Restart the operator with a larger --cluster-cidr (chart: podCidrs.clusterCidr), or delete nodes."
        }
        "RevisionNotStored" | "RevisionNotRead" | "CreateFailed" => {
            "Mend what the API server refuses: a right, a quota, an admission policy, or a field of the class."
        }
        "UpdateFailed" | "DeleteFailed" | "AdoptFailed" | "WriteRefused" => {
            "Mend what the API server refuses, such as an admission policy or a field of the template; it is tried again by itself."
        }
        "ClassLimit" => {
            "Have spec.limits.nodes of the class raised, or lower spec.replicas of a set of the class."
        }
        "OutOfResources" => {
            "The provider has no room: make some, lower spec.replicas, or choose a smaller class."
        }
        "ProviderFailed" => "The provider is tried again by itself; its message says what it lacks.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASONS: &[&str] = &[
        "Paused",
        "Pinned",
        "ProgressDeadlineExceeded",
        "DrainBlocked",
        "PodDisruptionBudget",
        "PodOptedOut",
        "EmptyDirData",
        "UnmanagedPod",
        "EvictionRefused",
        "VolumesAttached",
        "BackOff",
        "TooManySick",
        "RepairLimit",
        "Budget",
        "WaitingForBudget",
        "MachinesLeaving",
        "Partition",
        "OnDelete",
        "ClassNotFound",
        "ClassNotAccepted",
        "ClassUnreadable",
        "Unreadable",
        "InvalidMachine",
        "RevisionNotFound",
        "CIDRNotAvailable",
        "RevisionNotStored",
        "RevisionNotRead",
        "CreateFailed",
        "UpdateFailed",
        "DeleteFailed",
        "AdoptFailed",
        "WriteRefused",
        "ClassLimit",
        "OutOfResources",
        "ProviderFailed",
    ];

    #[test]
    fn a_hint_is_one_short_sentence() {
        for reason in REASONS {
            let hint = hint(reason).unwrap();
            assert!(hint.ends_with('.') && hint.chars().count() < 140, "{reason}: {hint}");
        }
        assert_eq!(hint("Complete"), None);
    }
}
