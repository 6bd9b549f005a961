//! Typed wait reasons of a Node: the reason goes to conditions and metrics, the message to people.

use std::time::Duration;

use kube_node_api::names;
use strum::{IntoStaticStr, VariantNames as _};

use super::{
    conditions::ConditionUpdate,
    drain::{self, Blockage, Obstacle, PodId},
};

/// Duration of a drain after which its wait is worth a condition write.
const SLOW: Duration = Duration::from_secs(30);
/// Maximum message length in characters.
const MESSAGE_MAX: usize = 512;

/// Obstacle between a Node and its next state; the names of the variants are reasons of conditions and metrics.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, strum::VariantNames)]
pub enum NodeWait {
    /// The provider has not created the machine yet.
    WaitingForMachine,
    /// The provider has no capacity for the machine.
    OutOfResources,
    /// Back-off after machines that ended repeatedly.
    MachineBackOff,
    /// The machine's kubelet has not posted its first status.
    WaitingForKubelet,
    /// The kubelet does not report Ready=True.
    WaitingForReady,
    /// The kubelet has not renewed its Lease.
    WaitingForLease,
    /// The drain has no permit yet, for lack of budget of the NodeSet.
    WaitingForBudget,
    /// Pods have not left yet.
    Draining {
        /// One of the pods.
        first: PodId,
        /// Number of pods left.
        pods: usize,
    },
    /// Pods cannot be evicted until somebody acts; the obstacle of the first one is the reason.
    Blocked {
        /// The blocked pods with their obstacles, most important first; never empty.
        by: Vec<Blockage>,
    },
    /// Volumes are still attached.
    VolumesAttached {
        /// Names of the `PersistentVolumes`; empty until they are known.
        names: Vec<String>,
    },
    /// The class's deletion timeout is not over.
    WaitingForDeletionTimeout {
        /// Time left.
        left: Duration,
    },
    /// The provider has not confirmed the deletion of the machine.
    DeletingMachine,
    /// As many slow calls for other Nodes are under way as may be at once.
    WaitingForSlot {
        /// The calls, for people.
        calls: String,
    },
    /// The API server refuses a write of the Node.
    WriteRefused {
        /// The write, and the API server's message.
        message: String,
    },
    /// The machine is gone; its pods are not deleted yet, or its volumes not detached.
    WaitingForPodsCleanup {
        /// One of the pods; None if only volumes are left.
        first: Option<PodId>,
        /// Number of pods left.
        pods: usize,
    },
}

impl NodeWait {
    /// The wait of a drain that is not done.
    pub fn drain(plan: &drain::DrainPlan) -> Self {
        let first = plan.left.first().cloned().unwrap_or_default();
        Self::Draining { first, pods: plan.left.len() }.blocked(plan.blocked.clone())
    }

    /// Adds blocked pods to the wait of a drain; other waits stay unchanged.
    pub fn blocked(self, more: Vec<Blockage>) -> Self {
        let mut by = match self {
            _ if more.is_empty() => return self,
            Self::Draining { .. } => more,
            Self::Blocked { by } => [by, more].concat(),
            other => return other,
        };
        by.sort();
        Self::Blocked { by }
    }

    /// Reason of [`Self::WriteRefused`]; a NodeSet recognizes by it a Node that cannot be deleted now.
    pub const REFUSED: &str = "WriteRefused";

    /// All values of [`Self::reason`].
    pub fn reasons() -> impl Iterator<Item = &'static str> {
        let own = Self::VARIANTS.iter().filter(|reason| **reason != "Blocked");
        own.chain(Obstacle::VARIANTS).copied()
    }

    /// Reason for conditions, events and metric labels; few values, in the form of a condition reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Blocked { by } => by.first().map_or("Draining", |first| first.obstacle.into()),
            other => other.into(),
        }
    }

    /// Returns true if somebody has to act, so that the wait is worth an event.
    pub const fn needs_somebody(&self) -> bool {
        matches!(self, Self::Blocked { .. } | Self::VolumesAttached { .. } | Self::WriteRefused { .. })
    }

    /// Update of the condition `kube-node.io/Drained`; None leaves the condition unchanged.
    ///
    /// `reported`: the condition already reports an obstacle. `lasts`: duration of the drain so far.
    pub fn drained(&self, reported: bool, lasts: Duration) -> Option<ConditionUpdate> {
        let message = match self {
            Self::WaitingForMachine
            | Self::OutOfResources
            | Self::MachineBackOff
            | Self::WaitingForKubelet
            | Self::WaitingForReady
            | Self::WaitingForLease => return None,
            Self::WaitingForBudget => {
                "works on until the budget of its set (strategy.rollingUpdate) has room for its drain"
                    .to_owned()
            }
            // Most drains end soon: they cost no write.
            Self::Draining { .. } | Self::VolumesAttached { .. } | Self::WaitingForSlot { .. }
                if !reported && lasts < SLOW =>
            {
                return None;
            }
            // The number of pods is left out: it would cost a write for each pod that leaves.
            Self::Draining { first, .. } => format!("pods are leaving, among them {first}"),
            Self::Blocked { by } => blocked(by)?,
            Self::WaitingForSlot { calls } => {
                format!("is next in turn: as many {calls} as may run at once are under way for other nodes")
            }
            Self::WriteRefused { message } => message.clone(),
            Self::VolumesAttached { names } => {
                let (first, rest) = names.split_first()?;
                format!("volume {first}{} has not been detached yet", more(rest.len()))
            }
            Self::WaitingForPodsCleanup { first: Some(first), pods } => format!(
                "the machine is gone; pod {first}{} has yet to be deleted by kube-controller-manager",
                more(pods.saturating_sub(1))
            ),
            Self::WaitingForPodsCleanup { first: None, .. } => {
                "the machine is gone; its volumes have yet to be detached by kube-controller-manager"
                    .to_owned()
            }
            Self::WaitingForDeletionTimeout { .. } | Self::DeletingMachine => {
                let message = "nothing holds up the deletion of the machine";
                return reported
                    .then(|| ConditionUpdate::new(names::CONDITION_DRAINED, true, "Drained", message));
            }
        };
        let message: String = message.chars().take(MESSAGE_MAX).collect();
        Some(ConditionUpdate::new(names::CONDITION_DRAINED, false, self.reason(), message))
    }
}

fn blocked(by: &[Blockage]) -> Option<String> {
    let (Blockage { obstacle, pod, message }, rest) = by.split_first()?;
    let why = match obstacle {
        Obstacle::PodOptedOut => {
            format!("does not want to be evicted (annotation {})", names::ANNOTATION_DO_NOT_EVICT)
        }
        Obstacle::EmptyDirData => "has emptyDir data (drain.deleteEmptyDirData is false)".to_owned(),
        Obstacle::UnmanagedPod => {
            "has no controller that would make it again (drain.unmanagedPods is Keep)".to_owned()
        }
        Obstacle::PodDisruptionBudget | Obstacle::EvictionRefused => format!("cannot be evicted: {message}"),
    };
    Some(format!("pod {pod} {why}{}", more(rest.len())))
}

fn more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" ({count} more)") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn blockage(obstacle: Obstacle, name: &str) -> Blockage {
        let pod = PodId { namespace: "default".into(), name: name.into(), uid: "u".into() };
        let message =
            if obstacle == Obstacle::PodDisruptionBudget { "The disruption budget b needs 1" } else { "" };
        Blockage { obstacle, pod, message: message.to_owned() }
    }

    #[test]
    fn one_pod_is_named_and_the_others_are_counted() {
        let wait = NodeWait::Draining { first: PodId::default(), pods: 3 }
            .blocked(vec![
                blockage(Obstacle::PodDisruptionBudget, "a"),
                blockage(Obstacle::PodDisruptionBudget, "b"),
            ])
            .blocked(vec![blockage(Obstacle::PodOptedOut, "c")]);
        let update = wait.drained(false, Duration::ZERO).unwrap();
        assert_eq!((update.status, update.reason), (false, "PodOptedOut"));
        assert_eq!(
            update.message,
            "pod default/c does not want to be evicted (annotation kube-node.io/do-not-evict) (2 more)"
        );
        let wait = NodeWait::Draining { first: PodId::default(), pods: 1 }
            .blocked(vec![blockage(Obstacle::PodDisruptionBudget, "a")]);
        assert_eq!(
            wait.drained(false, Duration::ZERO).unwrap().message,
            "pod default/a cannot be evicted: The disruption budget b needs 1"
        );
    }

    #[test]
    fn a_short_drain_says_nothing_and_the_end_of_a_wait_is_told() {
        let wait = NodeWait::Draining { first: PodId::default(), pods: 1 };
        assert_eq!(wait.drained(false, Duration::from_secs(29)), None);
        assert!(wait.drained(false, SLOW).is_some() && wait.drained(true, Duration::ZERO).is_some());
        assert_eq!(NodeWait::DeletingMachine.drained(false, SLOW), None);
        assert!(NodeWait::DeletingMachine.drained(true, SLOW).unwrap().status);
    }

    #[test]
    fn every_reason_is_listed_once() {
        let obstacles = [
            Obstacle::PodOptedOut,
            Obstacle::EmptyDirData,
            Obstacle::UnmanagedPod,
            Obstacle::PodDisruptionBudget,
            Obstacle::EvictionRefused,
        ];
        let first = PodId::default();
        let waits = [
            NodeWait::WaitingForMachine,
            NodeWait::OutOfResources,
            NodeWait::MachineBackOff,
            NodeWait::WaitingForKubelet,
            NodeWait::WaitingForReady,
            NodeWait::WaitingForLease,
            NodeWait::WaitingForBudget,
        ]
        .into_iter()
        .chain([NodeWait::Draining { first: first.clone(), pods: 1 }])
        .chain(obstacles.map(|obstacle| NodeWait::Blocked { by: vec![blockage(obstacle, "a")] }))
        .chain([NodeWait::VolumesAttached { names: Vec::new() }])
        .chain([NodeWait::WaitingForDeletionTimeout { left: SLOW }, NodeWait::DeletingMachine])
        .chain([NodeWait::WaitingForPodsCleanup { first: Some(first), pods: 1 }])
        .chain([NodeWait::WaitingForSlot { calls: String::new() }])
        .chain([NodeWait::WriteRefused { message: String::new() }]);
        let reasons: BTreeSet<_> = waits.map(|wait| wait.reason()).collect();
        assert_eq!(NodeWait::reasons().count(), 19);
        assert_eq!(reasons, NodeWait::reasons().collect());
        // Users see these names: as reasons of conditions and events, and as labels of metrics.
        let names = "Draining DeletingMachine EmptyDirData EvictionRefused MachineBackOff OutOfResources \
            PodDisruptionBudget PodOptedOut UnmanagedPod VolumesAttached WaitingForBudget \
            WaitingForDeletionTimeout WaitingForKubelet WaitingForLease WaitingForMachine WaitingForPodsCleanup \
            WaitingForReady WaitingForSlot WriteRefused";
        assert_eq!(reasons, names.split_whitespace().collect());
        assert_eq!(NodeWait::WriteRefused { message: String::new() }.reason(), NodeWait::REFUSED);
    }

    #[test]
    fn no_wait_becomes_a_drain_by_what_blocks_one() {
        let by = vec![blockage(Obstacle::PodDisruptionBudget, "a")];
        assert_eq!(NodeWait::DeletingMachine.blocked(by), NodeWait::DeletingMachine);
    }
}
