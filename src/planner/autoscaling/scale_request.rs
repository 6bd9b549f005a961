//! State machine of a scale request: the next API call, from the last response. The caller makes no decisions.
//!
//! A write has the version of its decision as a precondition. On a conflict the set is read and the request
//! is decided again, except if the spec has changed and the request is a number: that number was computed for
//! another size. The same holds if the replicas are not those of the last answer.
//!
//! Without a response, the write may have been applied, or may be applied later. The set is then read first; if it
//! still has the old version, a write without meaning changes the version ([`ApiCall::Fence`]), so that the lost write
//! can no longer take effect. If that write is refused, the size of the set is known, and no request changes it.

use super::{ReplicaChange, ScaleRefusal, SetSnapshot, WriteCache};

/// Maximum number of decisions of one request, since the set may change in between.
const DECISIONS: usize = 6;
/// Maximum number of API calls of one request.
const CALLS: usize = 24;

/// A call of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiCall {
    /// Read the set.
    Read,
    /// Change the set, with this state as a precondition.
    Write {
        /// The expected state.
        on: SetSnapshot,
        /// The change.
        change: ReplicaChange,
    },
    /// Change only the version of the set, with this state as a precondition.
    Fence {
        /// The expected state.
        on: SetSnapshot,
    },
}

/// Response of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiResponse {
    /// No call yet.
    Begun,
    /// State of the set, after the write if there was one.
    Stands(SetSnapshot),
    /// The group does not exist.
    NoGroup,
    /// The precondition failed; nothing was written.
    Conflict,
    /// The API server refused the write; nothing was written.
    Refused,
    /// No response.
    Nothing,
}

/// Next step of a scale request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleStep {
    /// Call the API server.
    ApiCall(ApiCall),
    /// The request is complete.
    Done,
    /// The request is refused, and nothing was changed.
    Refused(ScaleRefusal),
    /// The request failed.
    Failed(ScaleFailure),
}

/// Cause of a failed scale request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleFailure {
    /// The outcome is unknown.
    #[error("whether it happened is not known: ask for the target size again")]
    Open,
    /// The API server refuses the write.
    #[error("the API server refuses")]
    Refused,
    /// The outcome is unknown, and the API server refuses the write that would settle it.
    #[error(
        "a write before it may still arrive, and the API server refuses the one that would rule this out"
    )]
    NotFenced,
    /// The API server is unreachable, and nothing was changed.
    #[error("the API server cannot be asked")]
    Unreachable,
    /// Another client has changed the set, and this request changed nothing.
    #[error("somebody else changed it meanwhile: ask for the target size again")]
    Changed,
    /// The set changes faster than it can be written.
    #[error("the NodeSet changed {DECISIONS} times meanwhile")]
    Contended,
}

#[derive(Clone, Debug, Default)]
enum PendingCall {
    #[default]
    Nothing,
    Writing(SetSnapshot, ReplicaChange),
    Reading(SetSnapshot),
    Settling,
    Fencing(SetSnapshot),
}

/// A scale request in progress.
#[derive(Clone, Debug, Default)]
pub struct ScaleRequest {
    /// True if applying the request twice equals applying it once.
    repeatable: bool,
    pending: PendingCall,
    /// A write of this request without a response.
    lost: Option<(SetSnapshot, ReplicaChange)>,
    decisions: usize,
    calls: usize,
}

impl ScaleRequest {
    /// A request for a number of Nodes: applied twice, it would count twice.
    pub fn of_number() -> Self {
        Self::default()
    }

    /// A request for named Nodes: a Node that is already a victim is not counted again.
    pub fn of_names() -> Self {
        Self { repeatable: true, ..Self::default() }
    }

    /// The next step after the response `response`. `shown` returns the state in the watch, `decide` the change to write.
    pub fn next(
        &mut self,
        response: ApiResponse,
        cache: &mut WriteCache,
        shown: impl FnOnce() -> Result<SetSnapshot, ScaleRefusal>,
        decide: impl FnOnce(&SetSnapshot) -> Result<Option<ReplicaChange>, ScaleRefusal>,
        group: &str,
    ) -> ScaleStep {
        let live = match (std::mem::take(&mut self.pending), response) {
            (_, ApiResponse::NoGroup) => {
                cache.forget();
                return ScaleStep::Refused(ScaleRefusal::no_group(group));
            }
            (PendingCall::Nothing, _) if cache.unsettled().is_some() => {
                return self.call(PendingCall::Settling, ApiCall::Read);
            }
            (PendingCall::Nothing, _) => None,
            (PendingCall::Writing(..), ApiResponse::Stands(live)) => {
                cache.tell(&live);
                cache.read(live);
                return ScaleStep::Done;
            }
            (PendingCall::Writing(on, change), ApiResponse::Nothing) => {
                cache.lost(on.clone());
                self.lost = Some((on, change));
                return self.call(PendingCall::Settling, ApiCall::Read);
            }
            (PendingCall::Writing(..), ApiResponse::Refused) => {
                return ScaleStep::Failed(ScaleFailure::Refused);
            }
            (PendingCall::Writing(on, _), _) => {
                return self.call(PendingCall::Reading(on), ApiCall::Read);
            }
            (PendingCall::Reading(on), ApiResponse::Stands(live)) => {
                cache.read(live.clone());
                // The number was computed for another size, which may be the result of the same request: an
                // earlier process sent it, got no response, and the write was applied now.
                if live.generation != on.generation && !self.repeatable {
                    return ScaleStep::Failed(ScaleFailure::Changed);
                }
                Some(live)
            }
            (PendingCall::Reading(_), _) => return ScaleStep::Failed(ScaleFailure::Unreachable),
            (PendingCall::Settling, ApiResponse::Stands(live)) if !cache.settles(&live) => {
                return self.call(PendingCall::Fencing(live.clone()), ApiCall::Fence { on: live });
            }
            (PendingCall::Settling | PendingCall::Fencing(_), ApiResponse::Stands(live)) => {
                cache.read(live.clone());
                if let Some((on, change)) = self.lost.take() {
                    if change.is_done(&live) {
                        cache.tell(&live);
                        return ScaleStep::Done;
                    }
                    // Another client has changed the spec, before or after our write.
                    if live.generation != on.generation && !self.repeatable {
                        return ScaleStep::Failed(ScaleFailure::Open);
                    }
                }
                Some(live)
            }
            (PendingCall::Fencing(_), ApiResponse::Conflict) => {
                return self.call(PendingCall::Settling, ApiCall::Read);
            }
            (PendingCall::Fencing(live), ApiResponse::Refused) => {
                cache.not_fenced(live);
                return ScaleStep::Failed(ScaleFailure::NotFenced);
            }
            (PendingCall::Settling | PendingCall::Fencing(_), _) => {
                return ScaleStep::Failed(ScaleFailure::Open);
            }
        };
        self.decisions += 1;
        if self.decisions > DECISIONS {
            return ScaleStep::Failed(ScaleFailure::Contended);
        }
        let snapshot = match live {
            Some(live) => live,
            None => match shown() {
                Ok(shown) => cache.current(&shown).cloned().unwrap_or(shown),
                Err(refusal) => return ScaleStep::Refused(refusal),
            },
        };
        if !self.repeatable && !cache.is_told(&snapshot) {
            return ScaleStep::Failed(ScaleFailure::Changed);
        }
        match decide(&snapshot) {
            Ok(None) => ScaleStep::Done,
            Ok(Some(change)) => {
                let pending = PendingCall::Writing(snapshot.clone(), change.clone());
                self.call(pending, ApiCall::Write { on: snapshot, change })
            }
            Err(refusal) => ScaleStep::Refused(refusal),
        }
    }

    fn call(&mut self, pending: PendingCall, call: ApiCall) -> ScaleStep {
        self.calls += 1;
        if self.calls > CALLS {
            let is_write = matches!(call, ApiCall::Write { .. });
            return ScaleStep::Failed(if is_write { ScaleFailure::Contended } else { ScaleFailure::Open });
        }
        self.pending = pending;
        ScaleStep::ApiCall(call)
    }
}

#[cfg(test)]
#[path = "scale_request_tests.rs"]
mod tests;
