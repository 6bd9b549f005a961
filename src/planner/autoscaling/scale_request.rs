//! An order on its way: what to ask the API server next, out of what it said last. Whoever carries it out has no choices
//! left.
//!
//! A write names the version it was decided on. Where that is past, the set is read and the order decided anew; not where
//! its spec has changed and the order says how many: that was counted on another size. Where no
//! answer comes, the write may have happened, or may yet: before anything else the set is read, and where it still has
//! that version, a write of no meaning takes the version away ([`ApiCall::Fence`]), so that the lost one can have no effect
//! any more.

use super::{Change, Refusal, SetSnapshot, WriteCache};

/// How often an order is decided, because the set changes under it.
const DECISIONS: usize = 6;
/// How often the API server is asked for one order.
const QUESTIONS: usize = 24;

/// What to ask the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiCall {
    /// How the set stands.
    Read,
    /// To change the set, in exactly this state.
    Write {
        /// The state.
        on: SetSnapshot,
        /// The change.
        change: Change,
    },
    /// To give the set another version, in exactly this state.
    Fence {
        /// The state.
        on: SetSnapshot,
    },
}

/// What the API server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiResponse {
    /// Nothing was asked yet.
    Begun,
    /// The set stands like this, after the write where one was asked for.
    Stands(SetSnapshot),
    /// There is no such group.
    NoGroup,
    /// The set is not in that state; nothing was written.
    Conflict,
    /// It may not be; nothing was written.
    Refused,
    /// No answer.
    Nothing,
}

/// How an order goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// With a question.
    ApiCall(ApiCall),
    /// It is carried out.
    Done,
    /// It is not to be, and nothing was changed.
    Refused(Refusal),
    /// It failed.
    Failed(Failure),
}

/// Why an order failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Whether it was carried out is not known.
    #[error("whether it happened is not known: ask for the target size again")]
    Open,
    /// The API server does not let it happen.
    #[error("the API server refuses")]
    Refused,
    /// The API server could not be asked, and nothing was changed.
    #[error("the API server cannot be asked")]
    Unreachable,
    /// Somebody else has changed the set, and nothing was changed by this order.
    #[error("somebody else changed it meanwhile: ask for the target size again")]
    Changed,
    /// The set changes faster than it can be written.
    #[error("the NodeSet changed {DECISIONS} times meanwhile")]
    Contended,
}

#[derive(Clone, Debug, Default)]
enum Doing {
    #[default]
    Nothing,
    Writing {
        on: SetSnapshot,
        change: Change,
    },
    Reading {
        on: SetSnapshot,
    },
    Settling,
    Fencing,
}

/// An order on its way.
#[derive(Clone, Debug, Default)]
pub struct ScaleRequest {
    /// Whether to carry it out twice is the same as once.
    repeatable: bool,
    doing: Doing,
    /// A write of this order that had no answer.
    lost: Option<(SetSnapshot, Change)>,
    decisions: usize,
    questions: usize,
}

impl ScaleRequest {
    /// One that says how many: twice would be twice as many.
    #[must_use]
    pub fn of_number() -> Self {
        Self::default()
    }

    /// One that says which: what goes already goes once.
    #[must_use]
    pub fn of_names() -> Self {
        Self { repeatable: true, ..Self::default() }
    }

    /// How it goes on. `shown` is how the watch has the set, `decide` what the order comes to.
    pub fn next(
        &mut self,
        heard: ApiResponse,
        memory: &mut WriteCache,
        shown: impl FnOnce() -> Result<SetSnapshot, Refusal>,
        decide: impl FnOnce(&SetSnapshot) -> Result<Option<Change>, Refusal>,
        group: &str,
    ) -> Step {
        let live = match (std::mem::take(&mut self.doing), heard) {
            (_, ApiResponse::NoGroup) => {
                memory.forget();
                return Step::Refused(Refusal::NoGroup(group.to_owned()));
            }
            (Doing::Nothing, _) if memory.unsettled().is_some() => {
                return self.ask(Doing::Settling, ApiCall::Read);
            }
            (Doing::Nothing, _) => None,
            (Doing::Writing { .. }, ApiResponse::Stands(live)) => {
                memory.read(live);
                return Step::Done;
            }
            (Doing::Writing { on, change }, ApiResponse::Nothing) => {
                memory.lost(on.clone());
                self.lost = Some((on, change));
                return self.ask(Doing::Settling, ApiCall::Read);
            }
            (Doing::Writing { .. }, ApiResponse::Refused) => return Step::Failed(Failure::Refused),
            (Doing::Writing { on, .. }, _) => return self.ask(Doing::Reading { on }, ApiCall::Read),
            (Doing::Reading { on }, ApiResponse::Stands(live)) => {
                memory.read(live.clone());
                // Its number was counted on another size: perhaps by an order of a process before this one, that had no
                // answer and is carried out now.
                if live.generation != on.generation && !self.repeatable {
                    return Step::Failed(Failure::Changed);
                }
                Some(live)
            }
            (Doing::Reading { .. }, _) => return Step::Failed(Failure::Unreachable),
            (Doing::Settling, ApiResponse::Stands(live)) if !memory.settles(&live) => {
                return self.ask(Doing::Fencing, ApiCall::Fence { on: live });
            }
            (Doing::Settling | Doing::Fencing, ApiResponse::Stands(live)) => {
                memory.read(live.clone());
                if let Some((on, change)) = self.lost.take() {
                    if change.is_done(&live) {
                        return Step::Done;
                    }
                    // Somebody else has changed the spec: after ours, or before it.
                    if live.generation != on.generation && !self.repeatable {
                        return Step::Failed(Failure::Open);
                    }
                }
                Some(live)
            }
            (Doing::Fencing, ApiResponse::Conflict) => return self.ask(Doing::Settling, ApiCall::Read),
            (Doing::Settling | Doing::Fencing, _) => return Step::Failed(Failure::Open),
        };
        self.decisions += 1;
        if self.decisions > DECISIONS {
            return Step::Failed(Failure::Contended);
        }
        let standing = match live {
            Some(live) => live,
            None => match shown() {
                Ok(shown) => memory.current(&shown).cloned().unwrap_or(shown),
                Err(refusal) => return Step::Refused(refusal),
            },
        };
        match decide(&standing) {
            Ok(None) => Step::Done,
            Ok(Some(change)) => {
                let doing = Doing::Writing { on: standing.clone(), change: change.clone() };
                self.ask(doing, ApiCall::Write { on: standing, change })
            }
            Err(refusal) => Step::Refused(refusal),
        }
    }

    fn ask(&mut self, doing: Doing, ask: ApiCall) -> Step {
        self.questions += 1;
        if self.questions > QUESTIONS {
            return Step::Failed(if matches!(ask, ApiCall::Write { .. }) {
                Failure::Contended
            } else {
                Failure::Open
            });
        }
        self.doing = doing;
        Step::ApiCall(ask)
    }
}

#[cfg(test)]
#[path = "scale_request_tests.rs"]
mod tests;
