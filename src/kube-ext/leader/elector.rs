//! Who leads, decided without I/O: what is heard of the Lease goes in with the time, what to ask of the API server comes out.
//!
//! The safety of it: whoever holds the Lease counts its claim from the moment *before* it sent its last renewal, and for the
//! renewal's deadline alone. Whoever waits counts the Lease's whole duration, which is longer, from the moment *after* it
//! saw that renewal first. So the claim is over before somebody else may have one, whatever the two clocks show and
//! however long a message or a process was held up. Two that take the Lease at once name the version they saw: the API
//! server lets one of them.

use std::time::Duration;

use super::clock::Moment;

/// Polls per renewal interval made by standbys: so soon they see that the Lease was
/// given back, and so late at most that it was renewed.
const LOOKS: u32 = 4;

/// Why an election cannot go like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The next leader would not wait for the end of the claim.
    #[error(
        "--leader-elect-lease-duration ({lease:?}) must be longer than --leader-elect-renew-deadline ({deadline:?}): the one who waits must wait longer than the one who leads goes on"
    )]
    Lease {
        /// Of the Lease.
        lease: Duration,
        /// Of a renewal.
        deadline: Duration,
    },
    /// One failure would be the end.
    #[error(
        "--leader-elect-renew-deadline ({deadline:?}) must be longer than twice --leader-elect-retry-period ({retry:?}): a renewal that fails has to have a second try"
    )]
    Deadline {
        /// Of a renewal.
        deadline: Duration,
        /// Between two of them.
        retry: Duration,
    },
    /// Too short.
    #[error("--leader-elect-retry-period ({0:?}) must be at least 100ms")]
    Retry(Duration),
    /// A Lease says it in seconds.
    #[error("--leader-elect-lease-duration ({0:?}) must be whole seconds, at most a day")]
    Seconds(Duration),
}

/// The times of an election, as kube-controller-manager has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    lease: Duration,
    deadline: Duration,
    retry: Duration,
}

impl Timing {
    /// Of hosts: what one of them leaves behind has to be taken over, by thousands, within the 40 s that a Node's Lease lives,
    /// less the time that it may have been due.
    pub const HOST: Self = Self {
        lease: Duration::from_secs(10),
        deadline: Duration::from_secs(7),
        retry: Duration::from_secs(2),
    };

    /// How long a Lease holds off others after its last renewal, how long its holder leads after that, and the time between
    /// two renewals.
    pub fn new(lease: Duration, deadline: Duration, retry: Duration) -> Result<Self, TimingError> {
        if lease <= deadline {
            Err(TimingError::Lease { lease, deadline })
        } else if deadline <= retry * 2 {
            Err(TimingError::Deadline { deadline, retry })
        } else if retry < Duration::from_millis(100) {
            Err(TimingError::Retry(retry))
        } else if lease.subsec_nanos() != 0 || lease > Duration::from_hours(24) {
            Err(TimingError::Seconds(lease))
        } else {
            Ok(Self { lease, deadline, retry })
        }
    }

    /// How long the Lease holds off others.
    #[must_use]
    pub fn lease(self) -> Duration {
        self.lease
    }

    /// How long the Lease holds off others, in seconds.
    #[must_use]
    pub fn lease_seconds(self) -> i32 {
        i32::try_from(self.lease.as_secs()).unwrap_or(i32::MAX)
    }

    /// How long an answer is waited for: a second try must have its time.
    #[must_use]
    pub fn patience(self) -> Duration {
        self.deadline / 2
    }
}

/// What the API server has of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Who has it; None where it was given back.
    pub holder: Option<String>,
    /// How long it holds off others after a renewal; None where it does not say.
    pub lasts: Option<Duration>,
}

/// What to ask of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// How the Lease is.
    Read,
    /// To make it, in our name.
    Create,
    /// To write our name and the time into it, in the version that was heard of last.
    Replace,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The Lease is like this; None: there is none.
    Stands(Option<Record>),
    /// What was to be written is written.
    Written,
    /// Somebody else wrote meanwhile.
    Conflict,
    /// Nothing that says anything.
    Nothing,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask this now.
    Request(Request),
    /// Nothing, for this long.
    Wait(Duration),
    /// Lead no more.
    Lost(Loss),
}

/// Why a claim is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// No renewal in time.
    #[error("it could not be renewed within {0:?}")]
    Late(Duration),
    /// Somebody else has it.
    #[error("{0} has taken it")]
    Taken(String),
}

/// What is known of the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing: it changed since.
    Nothing,
    /// There is none.
    Absent,
    /// Somebody else has it.
    Others,
    /// We have it, or nobody.
    Free,
}

/// One who wants to lead.
#[derive(Clone, Debug)]
pub struct Elector {
    identity: String,
    timing: Timing,
    known: Known,
    /// The version in which somebody else had it last, and until when it may last.
    others: Option<(String, Moment)>,
    /// Until when it is ours; None before it ever was.
    held: Option<Moment>,
    taken: Option<String>,
    /// When to ask next.
    due: Moment,
}

impl Elector {
    /// Of one who has just come.
    #[must_use]
    pub fn new(identity: String, timing: Timing) -> Self {
        let due = Moment::BEGINNING;
        Self { identity, timing, known: Known::Nothing, others: None, held: None, taken: None, due }
    }

    /// Until when it leads, for all that was heard; None before it ever did.
    #[must_use]
    pub const fn held(&self) -> Option<Moment> {
        self.held
    }

    /// Whether it waits for somebody else.
    #[must_use]
    pub fn waits(&self, now: Moment) -> bool {
        self.held.is_none() && self.known != Known::Nothing && !self.others_are_over(now)
    }

    /// What to do now.
    #[must_use]
    pub fn next(&self, now: Moment) -> Step {
        if let Some(by) = &self.taken {
            return Step::Lost(Loss::Taken(by.clone()));
        }
        if self.held.is_some_and(|until| now >= until) {
            return Step::Lost(Loss::Late(self.timing.deadline));
        }
        if now < self.due {
            return Step::Wait(now.until(self.held.map_or(self.due, |until| until.min(self.due))));
        }
        let may_have_it = self.held.is_some() || self.others_are_over(now);
        Step::Request(match self.known {
            Known::Absent if may_have_it => Request::Create,
            Known::Others if may_have_it => Request::Replace,
            Known::Free => Request::Replace,
            Known::Nothing | Known::Absent | Known::Others => Request::Read,
        })
    }

    /// What was asked at `sent` came to this.
    pub fn heard(&mut self, sent: Moment, now: Moment, heard: Response) {
        let look = self.timing.retry / LOOKS;
        self.due = now.after(look);
        match heard {
            Response::Stands(None) => {
                self.known = Known::Absent;
                // Somebody took it away under its holder, who may lead for a while yet.
                self.due = self.due.min(self.others_end(now));
            }
            Response::Stands(Some(Record { version, holder, lasts })) => match holder {
                Some(by) if by != self.identity => {
                    self.known = Known::Others;
                    if self.others.as_ref().is_none_or(|(seen, _)| *seen != version) {
                        self.others = Some((version, now.after(lasts.unwrap_or(self.timing.lease))));
                    }
                    self.due = self.due.min(self.others_end(now));
                    self.taken = self.held.map(|_| by);
                }
                _ => (self.known, self.others, self.due) = (Known::Free, None, now),
            },
            Response::Written => {
                (self.known, self.others) = (Known::Free, None);
                let until = sent.after(self.timing.deadline);
                // A claim that is over stays so; and one whose answer came too late never was.
                if now < self.held.unwrap_or(until) {
                    self.held = Some(until);
                    self.due = sent.after(self.timing.retry);
                }
            }
            Response::Conflict => {
                self.known = Known::Nothing;
                if self.held.is_some() {
                    self.due = now;
                }
            }
            Response::Nothing => {}
        }
    }

    fn others_end(&self, now: Moment) -> Moment {
        self.others.as_ref().map_or(now, |(_, end)| (*end).max(now))
    }

    fn others_are_over(&self, now: Moment) -> bool {
        self.others_end(now) == now
    }
}

#[cfg(test)]
#[path = "elector_tests.rs"]
mod tests;
