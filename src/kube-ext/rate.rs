//! How fast a kubelet asks: client-go's token bucket (`util/flowcontrol`), with the rate and the burst that a kubelet has
//! unless it is told otherwise.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// Time between two requests: `kubeAPIQPS` is 50.
const DISTANCE: Duration = Duration::from_millis(20);
/// Requests that go at once after a rest: `kubeAPIBurst`.
const BURST: u32 = 100;

/// The requests of one kubelet.
#[derive(Debug, Default)]
pub struct Rate {
    /// When the bucket is full again.
    full_at: Mutex<Option<Instant>>,
}

/// On a request that has had its turn: its client asks for no other one.
#[derive(Clone, Copy, Debug)]
pub struct HadTurn(());

impl Rate {
    /// Waits for the turn of a request to this path.
    pub async fn turn(&self, path: &str) -> HadTurn {
        if is_limited(path) {
            sleep_until(self.take(Instant::now())).await;
        }
        HadTurn(())
    }

    /// Takes one from the bucket; when it may be used.
    fn take(&self, now: Instant) -> Instant {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let full = full_at.unwrap_or(now).max(now) + DISTANCE;
        *full_at = Some(full);
        full.checked_sub(DISTANCE * BURST).unwrap_or(now).max(now)
    }
}

/// Heartbeats have a client of their own in a kubelet, which nothing slows down, and so have events, of which the hollow
/// kubelet sends fewer anyway.
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
