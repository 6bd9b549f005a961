//! Refusal of a scale request, with its gRPC code.

use super::MOST_VICTIMS;

/// The gRPC codes of refusals, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request is invalid in any state.
    InvalidArgument = 3,
    /// The group does not exist.
    NotFound = 5,
    /// The request exceeds the limit of one call.
    ResourceExhausted = 8,
    /// The request is invalid in the current state.
    FailedPrecondition = 9,
    /// The request exceeds a bound.
    OutOfRange = 11,
    /// The operation is not supported.
    Unimplemented = 12,
}

/// Reason why a scale request is refused. A refused request has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ScaleRefusal {
    /// The gRPC code.
    pub code: Code,
    message: String,
}

impl ScaleRefusal {
    /// A refusal with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The group does not exist.
    pub fn no_group(id: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no NodeSet {id} with spec.autoscaling"))
    }

    /// The Node belongs to another group, or to none.
    pub fn foreign(node: &str, set: &str) -> Self {
        Self::new(Code::InvalidArgument, format!("node {node} is not of NodeSet {set}"))
    }

    /// The call names too many Nodes.
    pub fn too_many(requested: usize) -> Self {
        let message = format!("{requested} nodes in one call: at most {MOST_VICTIMS}");
        Self::new(Code::ResourceExhausted, message)
    }

    /// The specification of further Nodes of the set is unknown. With any other code for a template,
    /// cluster-autoscaler up to 1.33 ends its whole loop: one group would keep all others from growing.
    pub fn no_template(cause: impl Into<String>) -> Self {
        Self::new(Code::Unimplemented, cause)
    }

    /// No class has a price.
    pub fn no_prices() -> Self {
        Self::new(Code::Unimplemented, "no NodeClass has a spec.price")
    }
}
