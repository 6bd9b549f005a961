//! The machines of a group, as cluster-autoscaler is told of them, and how many it is to count on.

use std::{borrow::Cow, collections::BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::{MOST_VICTIMS, SetSnapshot};

/// How long something must stand in the way of a machine before it is called a failure: a pod waits some seconds for
/// its node, and a failure makes cluster-autoscaler delete the machine and avoid the group for minutes.
const TROUBLE_LASTS: SignedDuration = SignedDuration::from_secs(30);
/// How the id of a vacancy begins, before `<group>/<number>`.
const VACANCY: &str = "kube-node-vacancy://";
/// What providers and kubelets say of a place that has no room, by reason.
const NO_ROOM: [&str; 4] = ["OutOfResources", "Unschedulable", "QuotaExceeded", "Evicted"];

/// A Node of the group, as the decision needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine<'a> {
    /// Name of its Node.
    pub name: &'a str,
    /// UID of its Node.
    pub uid: &'a str,
    /// `spec.providerID`; None where somebody else has still to write it.
    pub provider_id: Option<&'a str>,
    /// Whether its deletion was asked for.
    pub leaving: bool,
    /// Whether a kubelet has posted a status.
    pub has_kubelet: bool,
    /// Whether it ever took pods: it was Ready once, and its start-up taints are gone.
    pub started: bool,
    /// Whether it has the newest revision.
    pub updated: bool,
    /// Whether cluster-autoscaler is emptying it: no rollout replaces it then.
    pub claimed: bool,
    /// When it was created.
    pub created: Timestamp,
    /// What stands in the way of its machine.
    pub trouble: Option<Trouble<'a>>,
}

/// What stands in the way of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble<'a> {
    /// In the form of a condition's reason.
    pub reason: &'a str,
    /// For people.
    pub message: &'a str,
    /// Since when.
    pub since: Option<Timestamp>,
}

/// A rollout that works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rolling {
    /// Most machines above the replicas.
    pub surge: usize,
    /// Old Nodes that are to stay.
    pub keep: usize,
}

/// How far a machine has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is there.
    Running,
    /// It is on its way.
    Creating,
    /// It leaves.
    Deleting,
}

/// Whose fault it is that a machine does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// There is no room, or no quota.
    OutOfResources,
    /// Something else.
    Other,
}

/// Why a machine does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceError<'a> {
    /// A word.
    pub code: &'a str,
    /// A sentence.
    pub message: &'a str,
    /// What cluster-autoscaler makes of it.
    pub class: ErrorClass,
}

/// A machine, as cluster-autoscaler is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance<'a> {
    /// The providerID of its Node; one of no Node for a vacancy.
    pub id: Cow<'a, str>,
    /// How far it has come.
    pub state: State,
    /// Why it does not come any further.
    pub error: Option<InstanceError<'a>>,
}

impl Machine<'_> {
    /// Whether it goes, or was named to go.
    pub(super) fn goes(&self, victims: &BTreeSet<String>) -> bool {
        self.leaving || victims.contains(self.uid)
    }
}

/// All machines of a group, by name, and its vacancies; `coming` more were asked for and are not shown yet.
///
/// A Node without a providerID is none yet: cluster-autoscaler would count it beside its own instance. An error makes
/// cluster-autoscaler delete the machine at every loop, past the least size; so only as many are shown as may go, the
/// youngest first, which are those it asked for itself. While a rollout is under way, even a halted one, none is: its new
/// machines are not cluster-autoscaler's to give up, and each of them would take a replica along, until no Node is left
/// that works.
///
/// A *vacancy* is a replica that has no Node and may not be given up, because the group is as small as it may be.
/// Without an instance for it cluster-autoscaler would call the group's size wrong, ask to lower it, and at the refusal
/// end its loop for all groups (`fixNodeGroupSize` in its source). For an instance that never comes it looks at the least
/// size itself, and leaves it.
#[must_use]
pub fn instances<'a>(
    group: &str,
    standing: &SetSnapshot,
    machines: &[Machine<'a>],
    coming: usize,
    rollout: bool,
    now: Timestamp,
) -> Vec<Instance<'a>> {
    let may_go = usize::try_from(standing.replicas.saturating_sub(standing.bounds.min)).unwrap_or(0);
    let mut failed: Vec<&Machine<'_>> = machines
        .iter()
        .filter(|machine| !rollout && !machine.goes(&standing.victims) && has_failed(machine, now))
        .collect();
    failed.sort_by_key(|machine| (std::cmp::Reverse(machine.created), machine.name));
    // All of them come back in one call.
    failed.truncate(may_go.min(MOST_VICTIMS.saturating_sub(standing.victims.len())));
    let failed: BTreeSet<&str> = failed.into_iter().map(|machine| machine.uid).collect();
    let mut sorted: Vec<&Machine<'a>> = machines.iter().collect();
    sorted.sort_by_key(|machine| machine.name);
    let replicas = usize::try_from(standing.replicas).unwrap_or(0);
    let missing = replicas.saturating_sub(staying(standing, machines, coming));
    let vacancies = (0..missing.saturating_sub(may_go)).map(|number| Instance {
        id: format!("{VACANCY}{group}/{number}").into(),
        state: State::Creating,
        error: None,
    });
    sorted
        .into_iter()
        .filter_map(|machine| {
            let state = match machine {
                machine if machine.goes(&standing.victims) => State::Deleting,
                machine if machine.has_kubelet => State::Running,
                _ => State::Creating,
            };
            let error =
                machine.trouble.filter(|_| failed.contains(machine.uid)).map(|trouble| InstanceError {
                    code: trouble.reason,
                    message: trouble.message,
                    class: if NO_ROOM.contains(&trouble.reason) {
                        ErrorClass::OutOfResources
                    } else {
                        ErrorClass::Other
                    },
                });
            Some(Instance { id: machine.provider_id?.into(), state, error })
        })
        .chain(vacancies)
        .collect()
}

/// The group that a vacancy is of; None for any other providerID.
#[must_use]
pub fn vacancy_of(id: &str) -> Option<&str> {
    let (group, number) = id.strip_prefix(VACANCY)?.split_once('/')?;
    number.parse::<usize>().ok().map(|_| group)
}

fn has_failed(machine: &Machine<'_>, now: Timestamp) -> bool {
    let lasts =
        |trouble: Trouble<'_>| now.duration_since(trouble.since.unwrap_or(machine.created)) >= TROUBLE_LASTS;
    !machine.has_kubelet && machine.trouble.is_some_and(lasts)
}

/// How many Nodes of a group stay; `coming` more were asked for and are not shown yet.
#[must_use]
pub fn staying(standing: &SetSnapshot, machines: &[Machine<'_>], coming: usize) -> usize {
    coming + machines.iter().filter(|machine| !machine.goes(&standing.victims)).count()
}

/// How many machines cluster-autoscaler is to count on: the replicas, and what replacing makes besides.
///
/// While a rollout runs, its surge stays when the replicas grow: new Nodes come for those and for the next old ones. Read
/// from the machines alone, a scale-up in the middle of it would look one machine too small, and be ordered again.
#[must_use]
pub fn target_size(
    standing: &SetSnapshot,
    machines: &[Machine<'_>],
    coming: usize,
    rolling: Option<Rolling>,
) -> i32 {
    let replicas = usize::try_from(standing.replicas).unwrap_or(0);
    let above = staying(standing, machines, coming).saturating_sub(replicas);
    let of_rollout = rolling.map_or(0, |Rolling { surge, keep }| {
        let stays = |machine: &&Machine<'_>| !machine.goes(&standing.victims);
        let updated = machines.iter().filter(stays).filter(|machine| machine.updated).count() + coming;
        let outdated =
            machines.iter().filter(stays).filter(|machine| !machine.updated && !machine.claimed).count();
        surge.min(outdated.saturating_sub(keep)).min(updated)
    });
    standing.replicas.saturating_add(i32::try_from(above.max(of_rollout)).unwrap_or(i32::MAX))
}
