//! Instances of a node group as reported to cluster-autoscaler, and the group's target size.

use std::{borrow::Cow, collections::BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::write_cache::{MOST_VICTIMS, SetSnapshot};

/// Time that trouble must last before it is reported as a failure. A pod waits some seconds for its node, and
/// a failure makes cluster-autoscaler delete the machine and avoid the group for minutes.
const TROUBLE_LASTS: SignedDuration = SignedDuration::from_secs(30);
/// Prefix of a placeholder's id, before `<group>/<number>`.
const PLACEHOLDER: &str = "kube-node-placeholder://";
/// Reasons of providers and kubelets for missing capacity.
const OUT_OF_RESOURCES: [&str; 4] = ["OutOfResources", "Unschedulable", "QuotaExceeded", "Evicted"];

/// A Node of the group, as the decisions need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupNode<'a> {
    /// Name of the Node.
    pub name: &'a str,
    /// UID of the Node.
    pub uid: &'a str,
    /// `spec.providerID`; None until another component writes it.
    pub provider_id: Option<&'a str>,
    /// True if the Node has a deletion timestamp.
    pub leaving: bool,
    /// True if a kubelet has posted a status.
    pub has_kubelet: bool,
    /// True if the Node takes pods while it is Ready: it is initialized, and no startup taint is on it now.
    pub started: bool,
    /// True if the Node has ever taken pods: it was Ready once, and its startup taints had gone.
    pub initialized: bool,
    /// True if the Node is Ready now.
    pub ready: bool,
    /// True if the Node has the newest revision.
    pub updated: bool,
    /// True while cluster-autoscaler drains the Node: no rollout replaces it then.
    pub autoscaler_drains: bool,
    /// Creation time.
    pub created: Timestamp,
    /// Obstacle to the machine.
    pub trouble: Option<Trouble<'a>>,
}

/// Obstacle to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble<'a> {
    /// Reason, in the form of a condition reason.
    pub reason: &'a str,
    /// Message for people.
    pub message: &'a str,
    /// Start of the trouble.
    pub since: Option<Timestamp>,
}

impl Trouble<'_> {
    /// Returns true if capacity or quota is missing; cluster-autoscaler tells such failures from others.
    pub fn is_out_of_resources(&self) -> bool {
        OUT_OF_RESOURCES.contains(&self.reason)
    }
}

/// A rollout in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rolling {
    /// Maximum number of machines above the replicas.
    pub surge: usize,
    /// Number of outdated Nodes that stay.
    pub keep: usize,
}

/// State of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// The machine runs.
    Running,
    /// The machine is being created.
    Creating,
    /// The machine is being deleted.
    Deleting,
}

/// An instance as reported to cluster-autoscaler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance<'a> {
    /// The providerID of the Node; for a placeholder an id that no Node has.
    pub id: Cow<'a, str>,
    /// State of the instance.
    pub state: InstanceState,
    /// Failure of the machine, if any.
    pub error: Option<Trouble<'a>>,
}

impl GroupNode<'_> {
    /// Returns true if the Node is being deleted or is a victim.
    pub(super) fn goes(&self, victims: &BTreeSet<String>) -> bool {
        self.leaving || victims.contains(self.uid)
    }
}

/// All instances of a group: machines by name, then placeholders. `coming`: pending creations that the watch has
/// not shown yet.
///
/// A Node without a providerID is no instance yet: cluster-autoscaler would count it in addition to its own instance.
///
/// Cluster-autoscaler deletes a machine with an error at every loop, even below the minimum size. So errors
/// are shown only for as many machines as may go, youngest first, which are those that cluster-autoscaler
/// requested itself. During a rollout, even a halted one, no error is shown: its new machines are not
/// cluster-autoscaler's to delete, and each would take a replica along, until no working Node is left.
///
/// A *placeholder* stands for a replica without a Node that may not be given up, because the group has its
/// minimum size. Without an instance cluster-autoscaler would find the group's size wrong, ask to lower it,
/// and at the refusal end its loop for all groups (`fixNodeGroupSize` in its source). For an instance that
/// never starts cluster-autoscaler checks the minimum size itself and leaves the instance alone.
pub fn instances<'a>(
    group: &str,
    snapshot: &SetSnapshot,
    machines: &[GroupNode<'a>],
    coming: usize,
    rollout: bool,
    now: Timestamp,
) -> Vec<Instance<'a>> {
    let may_go = usize::try_from(snapshot.replicas.saturating_sub(snapshot.bounds.min)).unwrap_or(0);
    let mut failed: Vec<&GroupNode<'_>> = machines
        .iter()
        .filter(|machine| !rollout && !machine.goes(&snapshot.victims) && has_failed(machine, now))
        .collect();
    failed.sort_by_key(|machine| (std::cmp::Reverse(machine.created), machine.name));
    // All of them come back as victims in one call.
    failed.truncate(may_go.min(MOST_VICTIMS.saturating_sub(snapshot.victims.len())));
    let failed: BTreeSet<&str> = failed.into_iter().map(|machine| machine.uid).collect();
    let mut sorted: Vec<&GroupNode<'a>> = machines.iter().collect();
    sorted.sort_by_key(|machine| machine.name);
    let replicas = usize::try_from(snapshot.replicas).unwrap_or(0);
    let missing = replicas.saturating_sub(staying(snapshot, machines, coming));
    let placeholders = (0..missing.saturating_sub(may_go)).map(|number| Instance {
        id: format!("{PLACEHOLDER}{group}/{number}").into(),
        state: InstanceState::Creating,
        error: None,
    });
    sorted
        .into_iter()
        .filter_map(|machine| {
            let state = match machine {
                machine if machine.goes(&snapshot.victims) => InstanceState::Deleting,
                machine if machine.has_kubelet => InstanceState::Running,
                _ => InstanceState::Creating,
            };
            let error = machine.trouble.filter(|_| failed.contains(machine.uid));
            Some(Instance { id: machine.provider_id?.into(), state, error })
        })
        .chain(placeholders)
        .collect()
}

/// The group of a placeholder; None for any other providerID.
pub fn placeholder_group(id: &str) -> Option<&str> {
    let (group, number) = id.strip_prefix(PLACEHOLDER)?.split_once('/')?;
    number.parse::<usize>().ok().map(|_| group)
}

fn has_failed(machine: &GroupNode<'_>, now: Timestamp) -> bool {
    let lasts =
        |trouble: Trouble<'_>| now.duration_since(trouble.since.unwrap_or(machine.created)) >= TROUBLE_LASTS;
    !machine.has_kubelet && machine.trouble.is_some_and(lasts)
}

/// Number of Nodes that stay, with `coming` pending creations.
pub fn staying(snapshot: &SetSnapshot, machines: &[GroupNode<'_>], coming: usize) -> usize {
    coming + machines.iter().filter(|machine| !machine.goes(&snapshot.victims)).count()
}

/// Number of Nodes that stay as replicas, or beside them until others are up. An outdated Node that cannot be deleted and takes no
/// pods serves nobody: the set has another one in its place, which would be made again if it were named. `undeletable` is
/// the number of Nodes that cannot be deleted.
pub fn serving(
    snapshot: &SetSnapshot,
    machines: &[GroupNode<'_>],
    coming: usize,
    undeletable: usize,
) -> usize {
    let serves = |machine: &GroupNode<'_>| machine.updated || machine.started && machine.ready;
    let idle = |machine: &&GroupNode<'_>| !machine.goes(&snapshot.victims) && !serves(machine);
    let idle = machines.iter().filter(idle).count().min(undeletable);
    staying(snapshot, machines, coming) - idle
}

/// Target size of a group for cluster-autoscaler: the replicas, and the machines that replacements add.
///
/// During a rollout the surge stays when the replicas grow: new Nodes come for the added replicas and for the
/// next outdated Nodes. Computed from the machines alone, the target would be one too small after a scale-up
/// during a rollout, and cluster-autoscaler would request the scale-up again.
pub fn target_size(
    snapshot: &SetSnapshot,
    machines: &[GroupNode<'_>],
    coming: usize,
    rolling: Option<Rolling>,
) -> i32 {
    let replicas = usize::try_from(snapshot.replicas).unwrap_or(0);
    let above = staying(snapshot, machines, coming).saturating_sub(replicas);
    let of_rollout = rolling.map_or(0, |Rolling { surge, keep }| {
        let staying = || machines.iter().filter(|machine| !machine.goes(&snapshot.victims));
        let updated = staying().filter(|machine| machine.updated).count() + coming;
        let outdated = staying().filter(|machine| !machine.updated && !machine.autoscaler_drains).count();
        surge.min(outdated.saturating_sub(keep)).min(updated)
    });
    snapshot.replicas.saturating_add(i32::try_from(above.max(of_rollout)).unwrap_or(i32::MAX))
}
