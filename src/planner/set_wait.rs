//! Waits of a NodeSet: each has a reason for conditions and metrics, a message for people, and a number of Nodes.

use kube_node_api::names;

/// Reasons of waits that degrade a set, most severe first.
pub const GRAVE: [&str; 4] = ["ProgressDeadlineExceeded", "TooManySick", "BackOff", "ClassLimit"];
/// Reasons of waits of a set itself, not of its Nodes: first those of its plan, then those of problems.
pub const WAITS: [&str; 33] = [
    "Paused",
    "ProgressDeadlineExceeded",
    "TooManySick",
    "BackOff",
    "Budget",
    FINALIZER_MISSING,
    "ClassLimit",
    "MachinesLeaving",
    "RepairLimit",
    "NotAvailable",
    "Draining",
    "Partition",
    "OnDelete",
    RESTART_NOT_DUE,
    RESUME_NOT_DUE,
    "ClassNotFound",
    "ClassUnreadable",
    "ClassNotAccepted",
    "InvalidMachine",
    "InvalidAnnotation",
    "ReservedTaint",
    "RevisionNotFound",
    "RevisionNotRead",
    "RevisionNotStored",
    "RevisionNotRaised",
    "FinalizerNotSet",
    "RecordNotWritten",
    "NodeNotRead",
    "CIDRNotAvailable",
    "CreateFailed",
    "DeleteFailed",
    "AdoptFailed",
    "UpdateFailed",
];
/// Reason of Nodes that are not deleted while they lack the finalizer of their node controller.
pub const FINALIZER_MISSING: &str = "FinalizerMissing";
/// Reason of a restart whose time is later than now.
pub const RESTART_NOT_DUE: &str = "RestartNotDue";
/// Reason of a resumption whose time is later than now.
pub const RESUME_NOT_DUE: &str = "ResumeNotDue";
/// Rank of the waits that stop a set; trouble of its Nodes follows them.
pub(super) const STOPPED: usize = 2;

/// A number of Nodes with a verb that agrees, such as `1 node is` and `2 nodes are`.
pub(super) fn nodes(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 node {one}") } else { format!("{count} nodes {many}") }
}

/// An obstacle between a set, or some of its Nodes, and the spec. A wait of a plan ends by itself or by the
/// user's change of the set; a problem lasts until somebody acts or a retry succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetWait {
    /// Reason for the condition.
    pub reason: &'static str,
    /// The object, the cause, and the remedy. Contains no elapsed time, so that it changes only with the state.
    pub message: String,
    /// Number of affected Nodes; 0 if the set itself is affected.
    pub nodes: usize,
}

impl SetWait {
    /// A wait of some Nodes.
    pub fn new(reason: &'static str, nodes: usize, message: String) -> Self {
        debug_assert!(WAITS.contains(&reason), "{reason} is a value of a metric's label");
        Self { reason, message, nodes }
    }

    /// A wait of the set itself.
    pub fn of_set(reason: &'static str, message: String) -> Self {
        Self::new(reason, 0, message)
    }

    /// The wait of Nodes that the set wants to delete, and that would be gone without a drain; None if there are none.
    pub fn of_unprotected(count: usize) -> Option<Self> {
        let text = format!(
            "{} deleted once the node controller has put the finalizer {} back: without it, pods would not be drained",
            nodes(count, "is", "are"),
            names::FINALIZER_MACHINE
        );
        (count > 0).then(|| Self::new(FINALIZER_MISSING, count, text))
    }

    /// Position of the plan's waits in the status, by importance.
    pub(super) fn rank(&self) -> usize {
        WAITS.iter().position(|reason| *reason == self.reason).unwrap_or(WAITS.len()).max(STOPPED)
    }
}
