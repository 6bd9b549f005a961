//! Typed wait reasons of a Node: the reason goes to conditions and metrics, the message to people.

use std::time::Duration;

use kube_node_api::names;

use super::{
    conditions::ConditionUpdate,
    drain::{self, Blockage, PodId},
};

/// Duration of a drain after which its wait is worth a condition write.
const SLOW: Duration = Duration::from_secs(30);
/// Maximum message length in characters.
const MESSAGE_MAX: usize = 512;

/// Obstacle between a Node and its next state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeWait {
    /// The provider has not created the machine yet.
    Machine,
    /// The provider has no capacity for the machine.
    Room,
    /// Back-off after machines that ended repeatedly.
    BackOff,
    /// The machine's kubelet has not posted its first status.
    Kubelet,
    /// The kubelet does not report Ready=True.
    Ready,
    /// The kubelet has not renewed its Lease.
    Lease,
    /// The drain has no permit yet, for lack of budget of the NodeSet.
    DrainPermit,
    /// Pods have not left yet.
    Drain {
        /// One of the pods.
        first: PodId,
        /// Number of pods left.
        pods: usize,
    },
    /// Pods cannot be evicted until somebody acts.
    Blocked {
        /// The blocked pods with their obstacles, most important first; never empty.
        by: Vec<Blockage>,
    },
    /// Volumes are still attached.
    Volumes {
        /// Names of the `PersistentVolumes`; empty until they are known.
        names: Vec<String>,
    },
    /// The class's deletion timeout is not over.
    DeletionTimeout {
        /// Time left.
        left: Duration,
    },
    /// The provider has not confirmed the deletion of the machine.
    MachineDeletion,
    /// The API server refuses a write of the Node.
    Refused {
        /// The write, and the API server's message.
        said: String,
    },
    /// The machine is gone; its pods are not deleted yet, or its volumes not detached.
    PodsCleanup {
        /// One of the pods; None if only volumes are left.
        first: Option<PodId>,
        /// Number of pods left.
        pods: usize,
    },
}

impl NodeWait {
    /// The wait of a drain that is not done.
    #[must_use]
    pub fn drain(plan: &drain::DrainPlan) -> Self {
        let first = plan.left.first().cloned().unwrap_or_default();
        Self::Drain { first, pods: plan.left.len() }.blocked(plan.blocked.clone())
    }

    /// Adds blocked pods to the wait of a drain; other waits stay unchanged.
    #[must_use]
    pub fn blocked(self, more: Vec<Blockage>) -> Self {
        let mut by = match self {
            _ if more.is_empty() => return self,
            Self::Drain { .. } => more,
            Self::Blocked { by } => [by, more].concat(),
            other => return other,
        };
        by.sort();
        Self::Blocked { by }
    }

    /// Reason of [`Self::Refused`]; a NodeSet recognizes by it a Node that cannot be deleted now.
    pub const REFUSED: &str = "WriteRefused";

    /// All values of [`Self::reason`].
    pub const REASONS: [&str; 18] = [
        "WaitingForMachine",
        "OutOfResources",
        "MachineBackOff",
        "WaitingForKubelet",
        "WaitingForReady",
        "WaitingForLease",
        "WaitingForBudget",
        "Draining",
        "PodOptedOut",
        "EmptyDirData",
        "UnmanagedPod",
        "PodDisruptionBudget",
        "EvictionRefused",
        "VolumesAttached",
        "WaitingForDeletionTimeout",
        "DeletingMachine",
        "WaitingForPodsCleanup",
        Self::REFUSED,
    ];

    /// Reason for conditions, events and metric labels; few values, in the form of a condition reason.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Machine => "WaitingForMachine",
            Self::Room => "OutOfResources",
            Self::BackOff => "MachineBackOff",
            Self::Kubelet => "WaitingForKubelet",
            Self::Ready => "WaitingForReady",
            Self::Lease => "WaitingForLease",
            Self::DrainPermit => "WaitingForBudget",
            Self::Drain { .. } => "Draining",
            Self::Blocked { by } => by.first().map_or("Draining", |first| first.obstacle.reason()),
            Self::Volumes { .. } => "VolumesAttached",
            Self::DeletionTimeout { .. } => "WaitingForDeletionTimeout",
            Self::MachineDeletion => "DeletingMachine",
            Self::PodsCleanup { .. } => "WaitingForPodsCleanup",
            Self::Refused { .. } => Self::REFUSED,
        }
    }

    /// Returns true if somebody has to act, so that the wait is worth an event.
    #[must_use]
    pub const fn needs_somebody(&self) -> bool {
        matches!(self, Self::Blocked { .. } | Self::Volumes { .. } | Self::Refused { .. })
    }

    /// Update of the condition `kube-node.io/Drained`; None leaves the condition unchanged.
    ///
    /// `said`: the condition already reports an obstacle. `lasts`: duration of the drain so far.
    #[must_use]
    pub fn says(&self, said: bool, lasts: Duration) -> Option<ConditionUpdate> {
        let message = match self {
            Self::Machine | Self::Room | Self::BackOff | Self::Kubelet | Self::Ready | Self::Lease => {
                return None;
            }
            Self::DrainPermit => {
                "works on until the budget of its set (strategy.rollingUpdate) has room for its drain"
                    .to_owned()
            }
            // Most drains end soon: they cost no write.
            Self::Drain { .. } | Self::Volumes { .. } if !said && lasts < SLOW => return None,
            // The number of pods is left out: it would cost a write for each pod that leaves.
            Self::Drain { first, .. } => format!("pods are leaving, among them {first}"),
            Self::Blocked { by } => blocked(by)?,
            Self::Refused { said } => said.clone(),
            Self::Volumes { names } => {
                let (first, rest) = names.split_first()?;
                format!("volume {first}{} has not been detached yet", more(rest.len()))
            }
            Self::PodsCleanup { first: Some(first), pods } => format!(
                "the machine is gone; pod {first}{} has yet to be deleted by kube-controller-manager",
                more(pods.saturating_sub(1))
            ),
            Self::PodsCleanup { first: None, .. } => {
                "the machine is gone; its volumes have yet to be detached by kube-controller-manager"
                    .to_owned()
            }
            Self::DeletionTimeout { .. } | Self::MachineDeletion => {
                return said.then(|| ConditionUpdate {
                    r#type: names::CONDITION_DRAINED,
                    status: true,
                    reason: "Drained",
                    message: "nothing holds up the deletion of the machine".to_owned(),
                });
            }
        };
        Some(ConditionUpdate {
            r#type: names::CONDITION_DRAINED,
            status: false,
            reason: self.reason(),
            message: message.chars().take(MESSAGE_MAX).collect(),
        })
    }
}

fn blocked(by: &[Blockage]) -> Option<String> {
    let (first, rest) = by.split_first()?;
    let Blockage { obstacle, pod, said } = first;
    let why = match obstacle {
        drain::Obstacle::OptedOut => {
            format!("does not want to be evicted (annotation {})", names::ANNOTATION_DO_NOT_EVICT)
        }
        drain::Obstacle::EmptyDir => "has emptyDir data (drain.deleteEmptyDirData is false)".to_owned(),
        drain::Obstacle::Unmanaged => {
            "has no controller that would make it again (drain.unmanagedPods is Keep)".to_owned()
        }
        drain::Obstacle::Budget | drain::Obstacle::Refused => format!("cannot be evicted: {said}"),
    };
    Some(format!("pod {pod} {why}{}", more(rest.len())))
}

fn more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" ({count} more)") }
}

#[cfg(test)]
mod tests {
    use super::{super::drain::Obstacle, *};

    fn blockage(obstacle: Obstacle, name: &str) -> Blockage {
        let pod = PodId { namespace: "default".into(), name: name.into(), uid: "u".into() };
        let said = if obstacle == Obstacle::Budget { "The disruption budget b needs 1" } else { "" };
        Blockage { obstacle, pod, said: said.to_owned() }
    }

    #[test]
    fn one_pod_is_named_and_the_others_are_counted() {
        let wait = NodeWait::Drain { first: PodId::default(), pods: 3 }
            .blocked(vec![blockage(Obstacle::Budget, "a"), blockage(Obstacle::Budget, "b")])
            .blocked(vec![blockage(Obstacle::OptedOut, "c")]);
        let says = wait.says(false, Duration::ZERO).unwrap();
        assert_eq!((says.status, says.reason), (false, "PodOptedOut"));
        assert_eq!(
            says.message,
            "pod default/c does not want to be evicted (annotation kube-node.io/do-not-evict) (2 more)"
        );
        let wait = NodeWait::Drain { first: PodId::default(), pods: 1 }
            .blocked(vec![blockage(Obstacle::Budget, "a")]);
        assert_eq!(
            wait.says(false, Duration::ZERO).unwrap().message,
            "pod default/a cannot be evicted: The disruption budget b needs 1"
        );
    }

    #[test]
    fn a_short_drain_says_nothing_and_the_end_of_a_wait_is_told() {
        let wait = NodeWait::Drain { first: PodId::default(), pods: 1 };
        assert_eq!(wait.says(false, Duration::from_secs(29)), None);
        assert!(wait.says(false, SLOW).is_some() && wait.says(true, Duration::ZERO).is_some());
        assert_eq!(NodeWait::MachineDeletion.says(false, SLOW), None);
        assert!(NodeWait::MachineDeletion.says(true, SLOW).unwrap().status);
    }

    #[test]
    fn every_reason_is_listed_once() {
        let obstacles = [
            Obstacle::OptedOut,
            Obstacle::EmptyDir,
            Obstacle::Unmanaged,
            Obstacle::Budget,
            Obstacle::Refused,
        ];
        let first = PodId::default();
        let waits = [
            NodeWait::Machine,
            NodeWait::Room,
            NodeWait::BackOff,
            NodeWait::Kubelet,
            NodeWait::Ready,
            NodeWait::Lease,
            NodeWait::DrainPermit,
        ]
        .into_iter()
        .chain([NodeWait::Drain { first: first.clone(), pods: 1 }])
        .chain(obstacles.map(|obstacle| NodeWait::Blocked { by: vec![blockage(obstacle, "a")] }))
        .chain([NodeWait::Volumes { names: Vec::new() }])
        .chain([NodeWait::DeletionTimeout { left: SLOW }, NodeWait::MachineDeletion])
        .chain([NodeWait::PodsCleanup { first: Some(first), pods: 1 }])
        .chain([NodeWait::Refused { said: String::new() }]);
        assert_eq!(waits.map(|wait| wait.reason()).collect::<Vec<_>>(), NodeWait::REASONS);
    }

    #[test]
    fn no_wait_becomes_a_drain_by_what_blocks_one() {
        let by = vec![blockage(Obstacle::Budget, "a")];
        assert_eq!(NodeWait::MachineDeletion.blocked(by), NodeWait::MachineDeletion);
    }
}
