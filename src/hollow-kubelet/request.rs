//! Requests to the API server, their back-off after failures, and their concurrency limit.

use std::time::Duration;

use http::Method;
use kube::Client;
use kube_ext::{
    rate::Rate,
    wire::{self, AnyObject, Body, WireError},
};

use super::{
    DedicatedClient,
    schedule::{Pressure, Priority},
};

/// First back-off; doubles with each further failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
/// Longest back-off: three tries fit into the remaining lifetime of a Lease.
const BACKOFF_LONGEST: Duration = Duration::from_secs(8);

/// A request to the API server.
#[derive(Clone, Debug)]
pub struct Request {
    /// HTTP method.
    pub method: Method,
    /// Path on the API server.
    pub path: String,
    /// Request body.
    pub body: Body,
}

/// Sends `requests` in order up to the first failure; returns the version made by the first one. With a
/// `rate`, each request waits for the rate limiter.
pub async fn send(client: &Client, rate: Option<&Rate>, requests: Vec<Request>) -> Result<String, WireError> {
    let mut version = None;
    for Request { method, path, body } in requests {
        let answer: AnyObject = match rate {
            Some(rate) => wire::send_in_turn((client, rate), method, &path, body).await?,
            None => wire::send(client, method, &path, body).await?,
        };
        version.get_or_insert_with(|| answer.into_version());
    }
    Ok(version.unwrap_or_default())
}

/// Sends `requests` as a kubelet does: rate-limited, and with a GET of the pod before a patch of its status.
/// The answer to the GET is dropped.
pub async fn send_alone(own: &DedicatedClient, requests: Vec<Request>) -> Result<String, WireError> {
    let (client, rate) = (&own.client, &*own.rate);
    let read = match requests.first() {
        Some(Request { method: Method::PATCH, path, .. }) => path.strip_suffix("/status"),
        _ => None,
    };
    if let Some(pod) = read.filter(|path| path.contains("/pods/")) {
        let _dropped = wire::send_in_turn::<AnyObject>((client, rate), Method::GET, pod, Body::None).await;
    }
    send(client, Some(rate), requests).await
}

/// Back-off after the `failures`th consecutive failure, drawn between half and all of its nominal length.
#[must_use]
pub fn backoff(failures: u8) -> Duration {
    let doublings = u32::from(failures.saturating_sub(1));
    let longest = BACKOFF_FIRST.saturating_mul(2_u32.saturating_pow(doublings)).min(BACKOFF_LONGEST);
    spread(longest, 0.5)
}

/// Random duration between `least` times `time` and `time`, so that jobs do not coincide.
#[must_use]
pub fn spread(time: Duration, least: f64) -> Duration {
    time.mul_f64(rand::random_range(least..=1.0))
}

/// Number of requests under way, by kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnderWay {
    /// Lease renewals.
    pub renewals: usize,
    /// Other writes of machines: Lease creations and node status.
    pub machines: usize,
    /// Writes of pods, events included.
    pub pods: usize,
}

impl UnderWay {
    /// Counter for a priority.
    pub fn of(&mut self, priority: Priority) -> &mut usize {
        match priority {
            Priority::Prompt | Priority::Renewal => &mut self.renewals,
            Priority::Lease | Priority::Status => &mut self.machines,
            Priority::Pod | Priority::Event => &mut self.pods,
        }
    }
}

/// Concurrency limiter (AIMD): lowers the number of requests under way while the server is overloaded or
/// away, and raises it slowly afterwards.
#[derive(Debug)]
pub struct ConcurrencyLimiter {
    size: usize,
}

impl ConcurrencyLimiter {
    /// Maximum number of requests under way. 20,000 pods came up in 26 to 33 s with this many, in 30 s with
    /// half, in 34 to 44 s with 48, and in 35 s with twice as many (2 cores, docs/benchmarks.md): more work
    /// at once means fewer wake-ups.
    const MOST: usize = 256;
    /// Limit for Lease and node status requests: each takes a connection, and renewals never pause.
    const MACHINES: usize = 48;
    /// Requests under way besides renewals; above this number, renewals wait.
    const BUSY: usize = 12;
    /// Minimum limit, which detects that the server is back.
    const FEWEST: usize = 4;

    /// Returns true if one more request may start beside `running`.
    #[must_use]
    pub fn has_room(&self, running: usize) -> bool {
        running < self.size
    }

    /// Pressure of the requests under way.
    #[must_use]
    pub fn load(&self, UnderWay { renewals, machines, pods }: UnderWay) -> Pressure {
        if renewals + machines >= Self::MACHINES {
            Pressure::Machines
        } else if machines + pods > Self::BUSY.min(self.size / 4) {
            Pressure::Heavy
        } else {
            Pressure::Light
        }
    }

    /// Adjusts the limit after an answer. `overload`: the server is overloaded or away.
    pub fn answered(&mut self, overload: bool) {
        self.size =
            if overload { (self.size / 2).max(Self::FEWEST) } else { (self.size + 1).min(Self::MOST) };
    }
}

impl Default for ConcurrencyLimiter {
    fn default() -> Self {
        Self { size: Self::MOST }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_stay_short_of_a_lease() {
        let waits: Vec<Duration> = (1..=9).map(backoff).collect();
        assert!(waits[0] <= BACKOFF_FIRST && waits[0] >= BACKOFF_FIRST / 2);
        assert!(waits.iter().all(|wait| *wait <= BACKOFF_LONGEST));
        assert!(waits[8] >= BACKOFF_LONGEST / 2);
    }

    #[test]
    fn the_window_shrinks_fast_and_opens_slowly() {
        let mut window = ConcurrencyLimiter::default();
        for _ in 0..9 {
            window.answered(true);
        }
        assert!(window.has_room(3) && !window.has_room(4));
        for _ in 0..ConcurrencyLimiter::MOST {
            window.answered(false);
        }
        assert!(window.has_room(ConcurrencyLimiter::MOST - 1) && !window.has_room(ConcurrencyLimiter::MOST));
    }

    #[test]
    fn what_has_time_waits_and_machines_leave_room_for_pods() {
        let mut window = ConcurrencyLimiter::default();
        let load = |window: &ConcurrencyLimiter, renewals, machines, pods| {
            window.load(UnderWay { renewals, machines, pods })
        };
        assert_eq!(load(&window, 35, 12, 0), Pressure::Light);
        assert_eq!(load(&window, 0, 6, 7), Pressure::Heavy);
        assert_eq!(load(&window, 0, 0, 200), Pressure::Heavy);
        assert_eq!(load(&window, 48, 0, 0), Pressure::Machines);
        assert_eq!(load(&window, 8, 40, 200), Pressure::Machines);
        for _ in 0..9 {
            window.answered(true);
        }
        assert_eq!((load(&window, 0, 1, 0), load(&window, 0, 1, 1)), (Pressure::Light, Pressure::Heavy));
    }
}
