//! Bugs that are planted to see whether the simulation finds them: each is one that systems of this kind had.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Creations that the watch has not shown count for nothing: Nodes are made twice.
    ForgetsWhatItAskedFor,
    /// Machines that are being deleted do not count: a slow provider lets a rollout exceed its surge.
    DoesNotCountMachinesThatLeave,
    /// Every Node counts as available: a rollout goes on with Nodes that never start.
    TakesEveryNodeForAvailable,
    /// A turn that was granted is decided on anew while the watch lags behind the cordon.
    TakesTurnsBack,
    /// A Node that somebody deleted is drained at once, whatever else is under way.
    DrainsOutOfTurn,
    /// The finalizer goes with the request to delete the machine, not with its end.
    DropsTheFinalizerEarly,
    /// A creation without an answer is never asked for again.
    GivesUpOnLostAnswers,
    /// Whether a Node is sick is never looked at again.
    NeverLooksAgain,
}

/// All of them.
pub const ALL: [Mutation; 8] = [
    Mutation::ForgetsWhatItAskedFor,
    Mutation::DoesNotCountMachinesThatLeave,
    Mutation::TakesEveryNodeForAvailable,
    Mutation::TakesTurnsBack,
    Mutation::DrainsOutOfTurn,
    Mutation::DropsTheFinalizerEarly,
    Mutation::GivesUpOnLostAnswers,
    Mutation::NeverLooksAgain,
];
