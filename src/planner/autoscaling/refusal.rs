//! Reasons to refuse a scale request, with their gRPC codes.

/// The gRPC codes in use, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request is invalid in any state.
    InvalidArgument = 3,
    /// The group does not exist.
    NotFound = 5,
    /// The request is invalid in the current state.
    FailedPrecondition = 9,
    /// The request exceeds a bound.
    OutOfRange = 11,
    /// The request exceeds the limit of one call.
    ResourceExhausted = 8,
    /// The operation is not supported.
    Unimplemented = 12,
    /// Temporarily unavailable.
    Unavailable = 14,
    /// Permissions are missing.
    PermissionDenied = 7,
    /// The deadline has passed.
    DeadlineExceeded = 4,
}

/// Reason why a scale request is refused. A refused request has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleRefusal {
    /// The group does not exist.
    #[error("there is no NodeSet {0} with spec.autoscaling")]
    NoGroup(String),
    /// The delta has the wrong sign.
    #[error("a delta of {delta}: {wanted}")]
    Delta {
        /// Requested delta.
        delta: i32,
        /// Description of a valid delta.
        wanted: &'static str,
    },
    /// The maximum size would be exceeded.
    #[error(
        "{replicas} replicas and {delta} more are beyond {max}, by maxReplicas or by the limits.nodes of the NodeClass"
    )]
    AboveMax {
        /// Current replicas.
        replicas: i32,
        /// Requested delta.
        delta: i32,
        /// Maximum replicas.
        max: i32,
    },
    /// The size would fall below the minimum.
    #[error("{replicas} replicas without {victims} nodes are fewer than minReplicas ({min})")]
    BelowMin {
        /// Current replicas.
        replicas: i32,
        /// Number of Nodes to remove.
        victims: usize,
        /// Minimum replicas.
        min: i32,
    },
    /// The Node belongs to another group, or to none.
    #[error("node {node} is not of NodeSet {set}")]
    Foreign {
        /// Name of the Node.
        node: String,
        /// Name of the requested group.
        set: String,
    },
    /// A Node of this name exists with another providerID.
    #[error("node {name} has the providerID {has:?}, not {said:?}")]
    OtherId {
        /// Name of the Node.
        name: String,
        /// `ProviderID` of the Node.
        has: String,
        /// `ProviderID` in the request.
        said: String,
    },
    /// The Node has no name and no providerID.
    #[error("a node has neither a providerID nor a name")]
    Nameless,
    /// The call names too many Nodes.
    #[error("{asked} nodes in one call: at most {most}")]
    TooMany {
        /// Requested number.
        asked: usize,
        /// Maximum number.
        most: usize,
    },
    /// All replicas that may go have a machine.
    #[error("all replicas that may go have a machine: delete the nodes by name instead")]
    NothingToTake,
    /// The specification of further Nodes of the set is unknown.
    #[error("{0}")]
    NoTemplate(String),
    /// The class has no price.
    #[error("NodeClass {0} has no spec.price: write for example price: \"0.25\"")]
    NoPrice(String),
    /// No class has a price.
    #[error("no NodeClass has a spec.price")]
    NoPrices,
    /// The time span is incomplete or ends before it starts.
    #[error("a price needs a span of time: the end is before the start, or one of them is missing")]
    NoSpan,
    /// The pod cannot be decoded.
    #[error("pod_bytes are no core/v1 Pod: {0}")]
    BadPod(String),
}

impl ScaleRefusal {
    /// The gRPC code of the refusal.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::NoGroup(_) => Code::NotFound,
            Self::AboveMax { .. } => Code::OutOfRange,
            Self::TooMany { .. } => Code::ResourceExhausted,
            // With any other code for a template, cluster-autoscaler up to 1.33 ends its whole loop: one
            // group would keep all others from growing.
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
