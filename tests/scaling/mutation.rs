//! Bugs that are planted to see whether the simulation finds them.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// What was written counts only once the watch shows it.
    BelievesTheWatchAlone,
    /// A scale-up whose set has changed meanwhile is counted on its new size.
    CountsAnew,
    /// A write without an answer is taken for one that did not happen.
    TakesSilenceForFailure,
    /// What a read shows after a write without an answer is taken for the end of it.
    SettlesWithoutAFence,
    /// Which Nodes are to go is not written down: their taint has to do.
    NamesNobody,
    /// A deletion that is asked for again lowers the replicas again.
    LowersTwice,
    /// The minimum is cluster-autoscaler's to keep.
    LeavesTheMinimumToTheCaller,
    /// The replicas are lowered for a Node although there are more than replicas.
    LowersForTheSurge,
    /// Nodes that are being emptied are replaced by a rollout as any other.
    ReplacesWhatIsEmptied,
}

/// All of them.
pub const ALL: [Mutation; 9] = [
    Mutation::BelievesTheWatchAlone,
    Mutation::CountsAnew,
    Mutation::TakesSilenceForFailure,
    Mutation::SettlesWithoutAFence,
    Mutation::NamesNobody,
    Mutation::LowersTwice,
    Mutation::LeavesTheMinimumToTheCaller,
    Mutation::LowersForTheSurge,
    Mutation::ReplacesWhatIsEmptied,
];
