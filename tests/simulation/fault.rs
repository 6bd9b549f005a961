//! Kinds of faults: of one request, or of watches; which requests can have each, and how often.

use std::fmt;

use http::Method;

/// A fault of one request, or of watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The request takes seconds.
    Slow,
    /// The request does not arrive, and nobody says so.
    LostRequest,
    /// The request is carried out, and nobody says so.
    LostAnswer,
    /// The request is carried out after its client has given it up.
    DoneLater,
    /// 409: another client wrote.
    Conflict,
    /// 429.
    TooManyRequests,
    /// 500.
    InternalError,
    /// 504, and the request is carried out.
    GatewayTimeout,
    /// The process is killed before a write.
    KilledBefore,
    /// The process is killed after a write.
    KilledAfter,
    /// Watches come late by seconds.
    Lag,
    /// Watches show nothing for a time.
    Frozen,
    /// Watches end.
    Ended,
    /// Old versions are forgotten.
    Compacted,
    /// The request is carried out at once, and its answer takes seconds.
    LateAnswer,
    /// The request is carried out, and the connection is cut within its answer, or within an event of a watch.
    CutAnswer,
}

impl Fault {
    pub const ALL: [Self; 16] = [
        Self::Slow,
        Self::LostRequest,
        Self::LostAnswer,
        Self::DoneLater,
        Self::Conflict,
        Self::TooManyRequests,
        Self::InternalError,
        Self::GatewayTimeout,
        Self::KilledBefore,
        Self::KilledAfter,
        Self::Lag,
        Self::Frozen,
        Self::Ended,
        Self::Compacted,
        Self::LateAnswer,
        Self::CutAnswer,
    ];
    /// Number of those that a schedule draws first. The others are drawn apart, so that known seeds keep their schedules.
    pub const FIRST: usize = 14;
    /// Those of watches.
    pub const OF_WATCHES: [Self; 4] = [Self::Lag, Self::Frozen, Self::Ended, Self::Compacted];
    /// Faults that a systematic run puts at each write.
    pub const OF_WRITES: [Self; 12] = [
        Self::Slow,
        Self::LostRequest,
        Self::LostAnswer,
        Self::DoneLater,
        Self::Conflict,
        Self::TooManyRequests,
        Self::InternalError,
        Self::GatewayTimeout,
        Self::KilledBefore,
        Self::KilledAfter,
        Self::LateAnswer,
        Self::CutAnswer,
    ];

    /// The fault of writes that has this name.
    pub fn of_writes(name: &str) -> Result<Self, String> {
        let known = || Self::OF_WRITES.map(|fault| fault.to_string()).join(", ");
        Self::OF_WRITES
            .into_iter()
            .find(|fault| fault.to_string() == name)
            .ok_or_else(|| format!("there is no fault {name} of a write; there are: {}", known()))
    }

    /// Returns true if a request of this method can have the fault.
    pub fn fits(self, method: &Method, is_write: bool) -> bool {
        match self {
            Self::Conflict => is_write && *method != Method::POST,
            Self::DoneLater
            | Self::LostAnswer
            | Self::GatewayTimeout
            | Self::KilledBefore
            | Self::KilledAfter => is_write,
            _ => true,
        }
    }

    /// One request in so many has the fault.
    pub fn one_in(self, storm: bool) -> u64 {
        match (self, storm) {
            (Self::KilledBefore | Self::KilledAfter, false) => 250,
            (Self::KilledBefore | Self::KilledAfter, true) => 100,
            (_, false) => 40,
            (_, true) => 8,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}
