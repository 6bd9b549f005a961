//! Why an order is not carried out, and by which code of gRPC its sender is told.

/// A code of gRPC, of those that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The order itself is wrong, whatever the state.
    InvalidArgument,
    /// There is no such group.
    NotFound,
    /// Not in this state.
    FailedPrecondition,
    /// Beyond a bound.
    OutOfRange,
    /// More than one call may ask for.
    ResourceExhausted,
    /// Not offered.
    Unimplemented,
    /// Not now.
    Unavailable,
    /// The rights are missing.
    PermissionDenied,
    /// Too late.
    DeadlineExceeded,
    /// The stored state is broken.
    Internal,
}

/// Why an order is not carried out. Nothing was changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such group.
    #[error("there is no NodeSet {0} with spec.autoscaling")]
    NoGroup(String),
    /// A number of the wrong sign.
    #[error("a delta of {delta}: {wanted}")]
    Delta {
        /// What was asked for.
        delta: i32,
        /// What may be asked for.
        wanted: &'static str,
    },
    /// Beyond the greatest size.
    #[error(
        "{replicas} replicas and {delta} more are beyond {max}, by maxReplicas or by the limits.nodes of the NodeClass"
    )]
    AboveMax {
        /// Replicas.
        replicas: i32,
        /// How many more.
        delta: i32,
        /// The bound.
        max: i32,
    },
    /// Beyond the smallest size.
    #[error("{replicas} replicas without {victims} nodes are fewer than minReplicas ({min})")]
    BelowMin {
        /// Replicas.
        replicas: i32,
        /// How many less.
        victims: usize,
        /// The bound.
        min: i32,
    },
    /// A Node of somebody else.
    #[error("node {node} is not of NodeSet {set}")]
    Foreign {
        /// The Node.
        node: String,
        /// The group that was named.
        set: String,
    },
    /// A Node of that name, but not that one.
    #[error("node {name} has the providerID {has:?}, not {said:?}")]
    OtherId {
        /// Its name.
        name: String,
        /// Its providerID.
        has: String,
        /// What was said.
        said: String,
    },
    /// A Node without a name.
    #[error("a node has neither a providerID nor a name")]
    Nameless,
    /// Too many at once.
    #[error("{asked} nodes in one call: at most {most}")]
    TooMany {
        /// How many.
        asked: usize,
        /// How many may be.
        most: usize,
    },
    /// Every machine came.
    #[error("all replicas that may go have a machine: delete the nodes by name instead")]
    NothingToTake,
    /// What a Node of the set would be is not known.
    #[error("{0}")]
    NoTemplate(String),
    /// No price.
    #[error("NodeClass {0} has no spec.price: write for example price: \"0.25\"")]
    NoPrice(String),
    /// Nobody here prices anything.
    #[error("no NodeClass has a spec.price")]
    NoPrices,
    /// A span of time that ends before it begins, or none.
    #[error("a price needs a span of time: the end is before the start, or one of them is missing")]
    NoSpan,
    /// A pod that cannot be read.
    #[error("pod_bytes are no core/v1 Pod: {0}")]
    BadPod(String),
}

impl Refusal {
    /// How gRPC calls it.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::NoGroup(_) => Code::NotFound,
            Self::AboveMax { .. } => Code::OutOfRange,
            Self::TooMany { .. } => Code::ResourceExhausted,
            // Any other code for a template ends the whole loop of cluster-autoscaler up to 1.33: no set would grow any more
            // because of one.
            Self::NoPrices | Self::NoTemplate(_) => Code::Unimplemented,
            Self::BelowMin { .. } | Self::NothingToTake | Self::NoPrice(_) => Code::FailedPrecondition,
            Self::Delta { .. }
            | Self::Foreign { .. }
            | Self::OtherId { .. }
            | Self::Nameless
            | Self::NoSpan
            | Self::BadPod(_) => Code::InvalidArgument,
        }
    }
}
