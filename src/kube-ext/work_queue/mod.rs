//! Work queue of keys, for controllers.
//!
//! Input: keys from event handlers ([`WorkQueue::add`]) and the [`Action`] that each reconciliation returns.
//! Output: at most `concurrency` reconciliations at once.
//!
//! Invariants: a key waits at most once and is reconciled at most once at a time; the earliest due key starts
//! first, equal ones in order of arrival, so no key starves; two starts of one key are at least
//! `min_interval` apart, whatever triggered them.

mod schedule;

use std::{future::Future, hash::Hash, sync::Arc, time::Duration};

use futures::{StreamExt, future::OptionFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::schedule::{LONGEST, Schedule};

/// Result of a reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reconcile again at the next change.
    AwaitChange,
    /// Reconcile again after this time at the latest.
    RequeueAfter(Duration),
    /// The reconciliation failed: reconcile again after the key's backoff at the latest.
    Failed,
}

/// Settings of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Maximum number of reconciliations at once, at least 1.
    pub concurrency: usize,
    /// Minimum time between two starts of one key; zero for none.
    pub min_interval: Duration,
}

/// Producer end of a queue. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WorkQueue<K>(Arc<Shared<K>>);

/// Consumer end of a queue, for [`run`].
#[derive(Debug)]
pub struct Consumer<K>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K> {
    schedule: Mutex<Schedule<K>>,
    /// Notified when a key becomes the first to start.
    earlier: Notify,
}

/// Creates a queue and returns both ends.
pub fn work_queue<K: Eq + Hash + Clone>() -> (WorkQueue<K>, Consumer<K>) {
    let shared = Arc::new(Shared { schedule: Mutex::default(), earlier: Notify::new() });
    (WorkQueue(Arc::clone(&shared)), Consumer(shared))
}

impl<K: Eq + Hash + Clone> WorkQueue<K> {
    /// Requests a reconciliation of `key` as soon as its interval allows. A key that waits already keeps its
    /// place.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Requests a reconciliation of `key` after `delay` at the latest. A key that waits for less keeps its place.
    pub fn add_after(&self, key: K, delay: Duration) {
        if self.0.schedule.lock().add(key, Instant::now() + delay.min(LONGEST)) {
            self.0.earlier.notify_one();
        }
    }
}

/// Processes the queue until `stop`, and finishes the reconciliations under way.
pub async fn run<K, F, Fut>(consumer: Consumer<K>, config: Config, stop: &CancellationToken, reconcile: F)
where
    K: Eq + Hash + Clone,
    F: Fn(K) -> Fut,
    Fut: Future<Output = Action>,
{
    let Consumer(shared) = consumer;
    let mut running = FuturesUnordered::new();
    while !stop.is_cancelled() {
        while running.len() < config.concurrency.max(1) {
            let next = shared.schedule.lock().start(Instant::now(), config.min_interval);
            let Some(key) = next else { break };
            let future = reconcile(key.clone());
            running.push(async move { (key, future.await) });
        }
        // At full concurrency no key can start, so due times and new keys do not matter.
        let has_room = running.len() < config.concurrency.max(1);
        let due = if has_room { shared.schedule.lock().next_due() } else { None };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            Some((key, action)) = running.next(), if !running.is_empty() => {
                shared.schedule.lock().finish(key, action, Instant::now());
            }
            () = shared.earlier.notified(), if has_room => {}
            Some(()) = OptionFuture::from(due.map(sleep_until)) => {}
        }
    }
    while running.next().await.is_some() {}
}

#[cfg(test)]
mod tests;
