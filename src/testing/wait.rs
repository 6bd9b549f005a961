//! Waits of tests. A wait that ends without success says what it saw last, and prints the last log lines of every process of
//! this test binary, and the last objects of its clusters.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use crate::logs;

/// Enough for anything that is going to happen at all, on a machine of half the usual speed, too.
pub const LONG: Duration = Duration::from_mins(3);

/// What one check of a wait returns: the awaited value, or what was seen instead.
pub trait Check<T> {
    /// The value, or the description of what was seen.
    fn outcome(self) -> Result<T, String>;
}

impl<T> Check<T> for Option<T> {
    fn outcome(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

impl<T, E: Debug> Check<T> for Result<T, E> {
    fn outcome(self) -> Result<T, String> {
        self.map_err(|seen| format!("{seen:#?}"))
    }
}

/// Polls until a check succeeds; panics after `limit` with what the last check saw.
pub async fn eventually<T, C: Check<T>, F: AsyncFnMut() -> C>(
    what: &str,
    limit: Duration,
    mut check: F,
) -> T {
    let start = Instant::now();
    loop {
        let seen = match check().await.outcome() {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        if start.elapsed() >= limit {
            logs::print_and_keep();
            let last = if seen.is_empty() { String::new() } else { format!("; seen last: {seen}") };
            panic!("{what}: not within {limit:?}{last}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Panics unless `holds` is true for all of `span`.
pub async fn always<F: AsyncFnMut() -> bool>(what: &str, span: Duration, mut holds: F) {
    let start = Instant::now();
    while start.elapsed() < span {
        if !holds().await {
            logs::print_and_keep();
            panic!("{what}: no more after {:?}", start.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn message<T: Debug + Send + 'static, C: Check<T>>(check: impl AsyncFnMut() -> C) -> String {
        let waiting = std::panic::AssertUnwindSafe(eventually("two", Duration::ZERO, check));
        let panic = futures::FutureExt::catch_unwind(waiting).await.unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    }

    #[tokio::test]
    async fn a_wait_that_fails_names_the_last_state() {
        let mut seen = 0;
        let check = async || {
            seen += 1;
            Err::<(), _>(seen)
        };
        assert_eq!(message(check).await, "two: not within 0ns; seen last: 1");
        assert_eq!(message(async || None::<()>).await, "two: not within 0ns");
    }
}
