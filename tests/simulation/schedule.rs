//! A schedule: what users do and which faults happen, [drawn](crate::draws) from one seed or written as a
//! [scenario](crate::scenario).

use std::{collections::BTreeSet, fmt};

use crate::{fault::Fault, people::Act};

/// Seconds after which a rollout whose Nodes never start halts.
pub const HALTS: u64 = 40;
/// Pod CIDRs of a schedule: few blocks, so that each is used again soon.
pub const POD_CIDRS: &str = "10.64.0.0/20";

/// What a user does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The set is created, or has this size from now on.
    Scale(String, u64),
    /// The class has this version from now on.
    Roll(u64),
    /// The set is deleted.
    DeleteSet(String),
    /// The n-th Node is deleted.
    DeleteNode(usize),
    /// Somebody acts at the edges of the API.
    Act(Act),
    /// The n-th Node is cordoned.
    Cordon(usize),
    /// The n-th Node gets a label and a taint.
    Mark(usize),
    /// The n-th Node is deleted by force, and made again under its name.
    Remake(usize),
    /// So many pods of an application run, as many of them always.
    Run(usize, usize),
    /// Another program writes over the status of the n-th pod for so many seconds.
    Contest(usize, u64),
    /// The process of a host is killed: operators first, then workers.
    Kill(usize),
    /// A host is cut off from the API server for so many seconds.
    CutOff(usize, u64),
    /// The process of a host stands still for so many seconds.
    Stop(usize, u64),
    /// The wall clock of a host is wrong by so many seconds.
    ClockError(usize, i64),
    /// An admission policy refuses all writes of the operators to the n-th Node, until all else has settled.
    Refuse(usize),
    /// The processes may not write this resource for so many seconds.
    Forbid(&'static str, u64),
    /// The API server answers no request for so many seconds.
    Outage(u64),
    /// The API server answers no request for this resource for so many seconds.
    Silence(&'static str, u64),
    /// The next scale request is carried out late, and the API server answers no request for so many seconds from then on.
    DelayScaleRequest(u64),
    /// The process of the next scale request is killed, and the request is carried out right before the one after it.
    KillAtScaleRequest,
    /// The class gives Nodes this label from now on, and their machines stay.
    Relabel(u64),
    /// The n-th Node gets a condition for which its set replaces it.
    Sicken(usize),
    /// The class has this version from now on, whose Nodes never start.
    Break(u64),
    /// The class cannot be used for so many seconds.
    Spoil(u64),
    /// Pods need so many Nodes of the set that cluster-autoscaler scales; the set is created if it is missing.
    Need(i32),
    /// Users raise the minimum of that set. A `Need` after it would be taken by the minimum of before.
    RaiseMinimum(i32),
    /// cluster-autoscaler is restarted.
    RestartAutoscaler,
    /// The pod of the n-th kubemark machine is deleted by force, or (true) it ends.
    LoseMachine(usize, bool),
    /// A host goes down, and never comes back.
    LoseHost(usize),
    /// The API server forgets old versions and ends all watches of the operators, which list anew. The answers to their lists
    /// of Nodes take so many seconds.
    Relist(u64),
    /// What the watches of this resource of the core group, or of ours, show comes so many seconds late from now on.
    Late(&'static str, u64),
    /// The process of a host stands still for so many seconds when the API server carries out its next renewal of the leader's
    /// Lease, and its renewals get lost for a while.
    StopAtRenewal(usize, u64),
}

impl Action {
    /// Returns true if the action leaves all processes, their clocks and their requests alone.
    pub const fn is_of_users(&self) -> bool {
        matches!(
            self,
            Self::Scale(..)
                | Self::Roll(_)
                | Self::DeleteSet(_)
                | Self::DeleteNode(_)
                | Self::Mark(_)
                | Self::Run(..)
                | Self::Relabel(_)
                | Self::Sicken(_)
                | Self::Break(_)
                | Self::Act(_)
        )
    }
}

/// All that decides about a run.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub seed: u64,
    pub operators: usize,
    /// False: the one operator takes part in no election, so that a process begins while writes of the last one are on
    /// their way.
    pub elects: bool,
    /// Workers that run the machines in the operators' place; none: the operators run them.
    pub workers: usize,
    /// True if each machine is a pod.
    pub kubemark: bool,
    pub surge: u64,
    pub unavailable: u64,
    /// Least and most replicas of the set that cluster-autoscaler scales; None: it does not run.
    pub scaling: Option<(i32, i32)>,
    /// Range of the Nodes' pod CIDRs, each a block of 24 bits.
    pub pod_cidrs: &'static str,
    /// Seconds from the beginning.
    pub actions: Vec<(u64, Action)>,
    pub faults: BTreeSet<Fault>,
    pub single: Option<(u64, Fault)>,
    /// Few kinds of faults, each of them often, and several actions at a time.
    pub storm: bool,
    /// Seconds in which users act and faults happen.
    pub active: u64,
    /// Most objects in one answer to a list; None: all of them fit.
    pub page: Option<usize>,
    /// Seconds after which a drain deletes the pods that are left.
    pub drain_timeout: Option<u64>,
    /// True if each pod has a volume, which is attached to its Node.
    pub has_volumes: bool,
    /// Random faults that do not happen, by their order in the run.
    pub spared: BTreeSet<u64>,
    /// True if people act at the edges of the API, on Nodes with an agent.
    pub has_people: bool,
    /// True if requests, answers and watches take no time.
    pub is_instant: bool,
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "seed {}: {} operators (election {}), {} workers, kubemark {}, surge {}, unavailable {}, scaling {:?}, storm {}, faults {:?} ({} of them spared), single {:?}, pages of {:?}, drain timeout {:?}, volumes {}, people {}, instant {}",
            self.seed,
            self.operators,
            self.elects,
            self.workers,
            self.kubemark,
            self.surge,
            self.unavailable,
            self.scaling,
            self.storm,
            self.faults,
            self.spared.len(),
            self.single,
            self.page,
            self.drain_timeout,
            self.has_volumes,
            self.has_people,
            self.is_instant
        )?;
        self.actions.iter().try_for_each(|(at, action)| writeln!(formatter, "  {at:>4} s: {action:?}"))
    }
}
