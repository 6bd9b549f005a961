//! Requests to the API server: sending, state of the writes to one object, and the concurrency limit.

use std::time::Duration;

use http::Method;
use k8s_pb::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube_ext::{
    backoff::Backoff,
    environment,
    rate::Rate,
    transport::{self, AnyObject, Body, TransportError},
};
use kube_node_cache::{Cache, View, Written};
use tracing::warn;

use super::{
    DedicatedClient,
    schedule::{Pressure, Priority},
};

/// Back-off after failures. Three tries of the longest one fit into the remaining lifetime of a Lease.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(8));

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

/// Reference to the Node that owns an object of its kubelet: the garbage collector deletes the object after the Node.
pub fn owned_by(node: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(uid.to_owned()),
        ..OwnerReference::default()
    }
}

/// Sends `requests` in order up to the first failure; returns the version made by the first one. With a
/// `rate`, each request waits for the rate limiter.
pub async fn send(
    client: &Client,
    rate: Option<&Rate>,
    requests: Vec<Request>,
) -> Result<String, TransportError> {
    let mut version = None;
    for Request { method, path, body } in requests {
        let answer: AnyObject = transport::send(client, rate, method, &path, body).await?;
        version.get_or_insert_with(|| answer.into_version());
    }
    Ok(version.unwrap_or_default())
}

/// Sends `requests` as a kubelet does: rate-limited, and with a GET of the pod before a patch of its status.
/// The answer to the GET is dropped.
pub async fn send_dedicated(
    dedicated: &DedicatedClient,
    requests: Vec<Request>,
) -> Result<String, TransportError> {
    let (client, rate) = (&dedicated.client, &*dedicated.rate);
    if let Some(Request { method: Method::PATCH, path, .. }) = requests.first()
        && let Some(pod) = path.strip_suffix("/status").filter(|path| path.contains("/pods/"))
    {
        let _dropped = transport::send::<AnyObject>(client, Some(rate), Method::GET, pod, Body::None).await;
    }
    send(client, Some(rate), requests).await
}

/// Failures in a row of the writes to one object.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailureCount {
    count: u8,
    /// Reason of the failure that was logged last; 0 for none.
    logged: u16,
}

impl FailureCount {
    /// Counts a failure; returns the back-off.
    pub fn add(&mut self) -> Duration {
        self.count = self.count.saturating_add(1);
        BACKOFF.jittered(self.count.into())
    }

    /// Counts a failure to write `what` of `name`, and logs it once for each reason until a write succeeds.
    pub fn add_logged(&mut self, name: &str, what: &str, error: &TransportError) -> Duration {
        if self.is_new(error) {
            warn!(name, error = error as &dyn std::error::Error, "cannot write the {what}, trying again");
        }
        self.add()
    }

    /// Returns true if a failure is to be logged now, and remembers its reason. Overload or absence of the API
    /// server concerns every machine and is not logged for each object.
    fn is_new(&mut self, error: &TransportError) -> bool {
        // A response that cannot be read has no HTTP status.
        let reason = error.code().unwrap_or(1);
        !error.is_overload() && std::mem::replace(&mut self.logged, reason) != reason
    }
}

/// State of the writes to one object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writes {
    /// Version made by the last write.
    version: Written,
    /// Failures since the last write.
    pub failures: FailureCount,
}

impl Writes {
    /// Returns true if the last write is newer than the object that `cache` shows with `version`.
    pub fn outrun<V: View>(&self, version: &str, cache: &Cache<V>) -> bool {
        cache.is_stale(version, self.version)
    }

    /// Records a successful write that made `version`.
    pub fn succeeded<V: View>(&mut self, version: &str, cache: &Cache<V>) {
        *self = Self { version: cache.written(version), failures: FailureCount::default() };
    }
}

/// Random duration between `least` times `time` and `time`, so that jobs do not coincide.
pub fn spread(time: Duration, least: f64) -> Duration {
    time.mul_f64(environment::random_range(least..=1.0))
}

/// Number of requests under way, by kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnderWay {
    /// Lease renewals.
    pub renewals: usize,
    /// Other writes of machines: creations of Leases and `CSINodes`, and node status.
    pub machines: usize,
    /// Writes of pods, events included.
    pub pods: usize,
}

impl UnderWay {
    /// Counter for a priority.
    pub fn of(&mut self, priority: Priority) -> &mut usize {
        match priority {
            Priority::Prompt | Priority::Renewal => &mut self.renewals,
            Priority::Lease | Priority::Status | Priority::CsiNode => &mut self.machines,
            Priority::Pod | Priority::SlowPod | Priority::Lookup | Priority::Event => &mut self.pods,
        }
    }
}

/// Concurrency limiter (AIMD): lowers the number of requests under way while the server is overloaded or
/// away, and raises it slowly afterwards.
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
    pub fn has_room(&self, running: usize) -> bool {
        running < self.size
    }

    /// Pressure of the requests under way.
    pub fn pressure(&self, UnderWay { renewals, machines, pods }: UnderWay) -> Pressure {
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
        let mut failures = FailureCount::default();
        let waits: Vec<Duration> = (1..=9).map(|_| failures.add()).collect();
        let (first, longest) = (BACKOFF.after(1), BACKOFF.after(9));
        assert!(waits[0] <= first && waits[0] >= first / 2);
        assert!(waits.iter().all(|wait| *wait <= longest) && longest == Duration::from_secs(8));
        assert!(waits[8] >= longest / 2);
    }

    #[test]
    fn a_failure_of_one_object_is_logged_once_for_each_reason() {
        let refused = |code| TransportError::Refused(kube::core::Status::default().with_code(code).boxed());
        let mut failures = FailureCount::default();
        let errors =
            [TransportError::Late, refused(500), refused(500), refused(429), refused(500), refused(403)];
        let logged = errors.map(|error| {
            failures.add();
            failures.is_new(&error)
        });
        assert_eq!(logged, [false, true, false, false, false, true]);
    }

    #[test]
    fn the_limit_shrinks_fast_and_opens_slowly() {
        let mut limiter = ConcurrencyLimiter::default();
        for _ in 0..9 {
            limiter.answered(true);
        }
        assert!(limiter.has_room(3) && !limiter.has_room(4));
        for _ in 0..ConcurrencyLimiter::MOST {
            limiter.answered(false);
        }
        assert!(
            limiter.has_room(ConcurrencyLimiter::MOST - 1) && !limiter.has_room(ConcurrencyLimiter::MOST)
        );
    }

    #[test]
    fn what_has_time_waits_and_machines_leave_room_for_pods() {
        let mut limiter = ConcurrencyLimiter::default();
        let pressure = |limiter: &ConcurrencyLimiter, renewals, machines, pods| {
            limiter.pressure(UnderWay { renewals, machines, pods })
        };
        assert_eq!(pressure(&limiter, 35, 12, 0), Pressure::Light);
        assert_eq!(pressure(&limiter, 0, 6, 7), Pressure::Heavy);
        assert_eq!(pressure(&limiter, 0, 0, 200), Pressure::Heavy);
        assert_eq!(pressure(&limiter, 48, 0, 0), Pressure::Machines);
        assert_eq!(pressure(&limiter, 8, 40, 200), Pressure::Machines);
        for _ in 0..9 {
            limiter.answered(true);
        }
        assert_eq!(
            (pressure(&limiter, 0, 1, 0), pressure(&limiter, 0, 1, 1)),
            (Pressure::Light, Pressure::Heavy)
        );
    }
}
