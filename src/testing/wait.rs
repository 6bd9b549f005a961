//! Waiting for what a test expects.

use std::time::{Duration, Instant};

/// Enough for anything that is going to happen at all, on a machine of half the usual speed, too.
pub const LONG: Duration = Duration::from_mins(3);

/// Polls until there is an answer; panics after `limit`.
pub async fn eventually<T, F: AsyncFnMut() -> Option<T>>(what: &str, limit: Duration, mut ask: F) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Panics unless `holds` is true for all of `span`.
pub async fn always<F: AsyncFnMut() -> bool>(what: &str, span: Duration, mut holds: F) {
    let start = Instant::now();
    while start.elapsed() < span {
        assert!(holds().await, "{what}: no more after {:?}", start.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
