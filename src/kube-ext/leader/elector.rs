//! Leader elector, without I/O. Input: API responses about the Lease, with their times. Output: the next API
//! request, a wait, or the loss of leadership.
//!
//! Safety: the leader counts its leadership from the moment *before* it sent its last renewal, and for the
//! renew deadline only. A standby counts the Lease's whole duration, which is longer, from the moment *after*
//! it first saw that renewal. So leadership ends before another process can acquire it, whatever the two
//! clocks show and however long a message or a process was delayed. Two processes that take the Lease at once
//! name the resource version they saw: the API server accepts one of them.

use std::time::Duration;

use anyhow::ensure;

use super::clock::Moment;

/// Polls per renewal interval made by standbys: the delay until they see that the Lease was given back, and
/// the most by which they see a renewal late.
const POLLS: u32 = 4;

/// Times of an election, with the meaning they have in kube-controller-manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    lease: Duration,
    deadline: Duration,
    retry: Duration,
}

impl Timing {
    /// Times of a worker's Lease. The hollow nodes of a lost worker, thousands of them, must be taken over
    /// within the 40 s that a Node's Lease lasts, less the time since its last renewal.
    pub const HOST: Self = Self {
        lease: Duration::from_secs(10),
        deadline: Duration::from_secs(7),
        retry: Duration::from_secs(2),
    };

    /// Lease duration (standbys wait that long after the last renewal), renew deadline (the leader leads that
    /// long after it), and time between two renewals.
    pub fn new(lease: Duration, deadline: Duration, retry: Duration) -> anyhow::Result<Self> {
        // A standby would take over before leadership ends.
        ensure!(
            lease > deadline,
            "--leader-elect-lease-duration ({lease:?}) must be longer than --leader-elect-renew-deadline ({deadline:?}): the one who waits must wait longer than the one who leads goes on"
        );
        // A single failed renewal would end leadership.
        ensure!(
            deadline > retry * 2,
            "--leader-elect-renew-deadline ({deadline:?}) must be longer than twice --leader-elect-retry-period ({retry:?}): a renewal that fails has to have a second try"
        );
        ensure!(
            retry >= Duration::from_millis(100),
            "--leader-elect-retry-period ({retry:?}) must be at least 100ms"
        );
        // The Lease has whole seconds.
        ensure!(
            lease.subsec_nanos() == 0 && lease <= Duration::from_hours(24),
            "--leader-elect-lease-duration ({lease:?}) must be whole seconds, at most a day"
        );
        Ok(Self { lease, deadline, retry })
    }

    /// Lease duration.
    pub fn lease(self) -> Duration {
        self.lease
    }

    /// Lease duration in seconds.
    pub fn lease_seconds(self) -> i32 {
        i32::try_from(self.lease.as_secs()).unwrap_or(i32::MAX)
    }

    /// Time limit of one request: a second try must fit within the renew deadline.
    pub fn request_timeout(self) -> Duration {
        self.deadline / 2
    }
}

/// The Lease as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Holder; None if the Lease was given back.
    pub holder: Option<String>,
    /// Lease duration; None if the Lease has none.
    pub lasts: Option<Duration>,
}

/// Request to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRequest {
    /// Read the Lease.
    Read,
    /// Create the Lease with this process as its holder.
    Create,
    /// Write this process and the time into the Lease, at the resource version last seen.
    Replace,
}

/// Response of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseResponse {
    /// The Lease as read; None if it does not exist.
    Read(Option<Record>),
    /// The write succeeded.
    Written,
    /// Another process wrote meanwhile.
    Conflict,
    /// No usable response.
    Nothing,
}

/// Next step of the elector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectorStep {
    /// Send this request now.
    Request(LeaseRequest),
    /// Wait for this time.
    Wait(Duration),
    /// Stop leading.
    Lost(Loss),
}

/// Reason for the end of leadership.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// No renewal within the renew deadline.
    #[error("it could not be renewed within {0:?}")]
    Late(Duration),
    /// Another process holds the Lease.
    #[error("{0} has taken it")]
    Taken(String),
}

/// Last known state of the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Unknown: not read yet, or changed since.
    Nothing,
    /// The Lease does not exist.
    Absent,
    /// Another process holds the Lease.
    Others,
    /// This process or nobody holds the Lease.
    Free,
}

/// Leader elector of one process.
#[derive(Clone, Debug)]
pub struct Elector {
    identity: String,
    timing: Timing,
    known: Known,
    /// Resource version last seen with another holder, and the moment at which that one expires.
    others: Option<(String, Moment)>,
    /// End of this process's leadership; None before the first one.
    held: Option<Moment>,
    taken: Option<String>,
    /// Moment of the next request.
    due: Moment,
}

impl Elector {
    /// An elector that knows nothing of the Lease yet.
    pub fn new(identity: String, timing: Timing) -> Self {
        let due = Moment::BEGINNING;
        Self { identity, timing, known: Known::Nothing, others: None, held: None, taken: None, due }
    }

    /// End of leadership as far as known; None before the first one.
    pub const fn held(&self) -> Option<Moment> {
        self.held
    }

    /// Returns true if this process is a standby and another one may still lead.
    pub fn waits(&self, now: Moment) -> bool {
        self.held.is_none() && self.known != Known::Nothing && !self.others_are_over(now)
    }

    /// The next step at `now`.
    pub fn next(&self, now: Moment) -> ElectorStep {
        if let Some(by) = &self.taken {
            return ElectorStep::Lost(Loss::Taken(by.clone()));
        }
        if self.held.is_some_and(|until| now >= until) {
            return ElectorStep::Lost(Loss::Late(self.timing.deadline));
        }
        if now < self.due {
            return ElectorStep::Wait(now.until(self.held.map_or(self.due, |until| until.min(self.due))));
        }
        let may_have_it = self.held.is_some() || self.others_are_over(now);
        ElectorStep::Request(match self.known {
            Known::Absent if may_have_it => LeaseRequest::Create,
            Known::Others if may_have_it => LeaseRequest::Replace,
            Known::Free => LeaseRequest::Replace,
            Known::Nothing | Known::Absent | Known::Others => LeaseRequest::Read,
        })
    }

    /// Takes the response to the request sent at `sent`.
    pub fn take_response(&mut self, sent: Moment, now: Moment, response: LeaseResponse) {
        self.due = now.after(self.timing.retry / POLLS);
        match response {
            LeaseResponse::Read(None) => {
                self.known = Known::Absent;
                // The Lease was deleted under its holder, which may still lead until the former expiry.
                self.due = self.due.min(self.others_end(now));
            }
            LeaseResponse::Read(Some(Record { version, holder, lasts })) => match holder {
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
            LeaseResponse::Written => {
                (self.known, self.others) = (Known::Free, None);
                let until = sent.after(self.timing.deadline);
                // Leadership that has ended stays ended, and a response after the deadline grants none.
                if now < self.held.unwrap_or(until) {
                    self.held = Some(until);
                    self.due = sent.after(self.timing.retry);
                }
            }
            LeaseResponse::Conflict => {
                self.known = Known::Nothing;
                if self.held.is_some() {
                    self.due = now;
                }
            }
            LeaseResponse::Nothing => {}
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
