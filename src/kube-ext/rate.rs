//! Client-side rate limit of a kubelet: client-go's token bucket (`util/flowcontrol`) with a kubelet's
//! default rate and burst.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Time between two requests: `kubeAPIQPS` is 50.
const DISTANCE: Duration = Duration::from_millis(20);
/// Requests that may be sent at once after a pause: `kubeAPIBurst`.
const BURST: u32 = 100;

/// Token bucket of one kubelet.
#[derive(Debug, Default)]
pub struct Rate {
    /// Moment at which the bucket is full again.
    full_at: Mutex<Option<Instant>>,
}

/// Request extension: the request has passed the rate limit, and its client does not delay it again.
#[derive(Clone, Copy, Debug)]
pub struct RateLimited(());

impl Rate {
    /// Waits until a request to this path may be sent; client-go's `Wait`.
    pub async fn acquire(&self, path: &str) -> RateLimited {
        if is_limited(path) {
            sleep_until(self.take(Instant::now())).await;
        }
        RateLimited(())
    }

    /// Takes a token and returns the moment from which it may be used.
    fn take(&self, now: Instant) -> Instant {
        let mut full_at = self.full_at.lock();
        let full = full_at.unwrap_or(now).max(now) + DISTANCE;
        *full_at = Some(full);
        full.checked_sub(DISTANCE * BURST).unwrap_or(now).max(now)
    }
}

/// Returns false for heartbeats and events. A kubelet sends heartbeats by a client without a limit and events
/// by a further client; the hollow kubelet sends fewer events anyway.
fn is_limited(path: &str) -> bool {
    !(path.contains("/leases") || path.starts_with("/api/v1/nodes/") || path.contains("/events"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_fifty_a_second() {
        let (rate, now) = (Rate::default(), Instant::now());
        let waits: Vec<Duration> = (0..200).map(|_| rate.take(now) - now).collect();
        assert!(waits[..100].iter().all(Duration::is_zero));
        assert_eq!(waits[100..].iter().max(), Some(&(DISTANCE * 100)));
        let rested = now + Duration::from_secs(10);
        assert!((0..100).all(|_| rate.take(rested) == rested), "it is full again");
        assert!(rate.take(rested) > rested);
    }

    #[test]
    fn heartbeats_and_events_wait_for_nothing() {
        for free in [
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a",
            "/api/v1/nodes/a/status",
            "/api/v1/namespaces/default/events",
        ] {
            assert!(!is_limited(free), "{free}");
        }
        for limited in ["/api/v1/nodes", "/api/v1/namespaces/default/pods/a/status", "/api/v1/services"] {
            assert!(is_limited(limited), "{limited}");
        }
    }
}
