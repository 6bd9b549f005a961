//! Advice for the reasons in a NodeSet's status, from `hints.yaml`.

use std::{collections::HashMap, sync::LazyLock};

static HINTS: LazyLock<HashMap<String, String>> =
    LazyLock::new(|| serde_norway::from_str(include_str!("hints.yaml")).unwrap_or_default());

/// Advice for the reason of a condition or a wait; NODESET stands for the name of the NodeSet. A reason without advice
/// needs none, or has it in its message.
pub(crate) fn hint(reason: &str) -> Option<&'static str> {
    HINTS.get(reason).map(String::as_str)
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
        "FinalizerMissing",
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
