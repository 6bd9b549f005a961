//! Priority semaphore: limits concurrent certificate requests, and admits first those with the least time left.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// A semaphore whose waiters have priorities. The permits are those of a fair semaphore: a waiter that gets one
/// hands it to the first waiter, and waits on.
pub struct PrioritySemaphore {
    permits: Arc<Semaphore>,
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    /// Waiters by priority; those of equal priority in order of arrival.
    by_priority: BTreeMap<(Timestamp, u64), oneshot::Sender<OwnedSemaphorePermit>>,
    arrivals: u64,
}

impl PrioritySemaphore {
    pub fn new(permits: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(permits)), waiters: Mutex::default() }
    }

    /// Waits for a permit. The earliest `deadline` comes first, None last. Returns None only if the semaphore is gone.
    pub async fn acquire(&self, deadline: Option<Timestamp>) -> Option<OwnedSemaphorePermit> {
        let (sender, mut granted) = oneshot::channel();
        {
            let mut waiters = self.waiters.lock();
            waiters.arrivals += 1;
            let key = (deadline.unwrap_or(Timestamp::MAX), waiters.arrivals);
            waiters.by_priority.insert(key, sender);
        }
        loop {
            tokio::select! {
                biased;
                Ok(permit) = &mut granted => return Some(permit),
                Ok(permit) = Arc::clone(&self.permits).acquire_owned() => self.grant(permit),
                else => return None,
            }
        }
    }

    /// Hands a permit to the first waiter that has not given up.
    fn grant(&self, mut permit: OwnedSemaphorePermit) {
        let mut waiters = self.waiters.lock();
        while let Some((_, first)) = waiters.by_priority.pop_first() {
            match first.send(permit) {
                Ok(()) => return,
                Err(returned) => permit = returned,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn at(second: i64) -> Option<Timestamp> {
        Timestamp::from_second(second).ok()
    }

    #[test]
    fn the_oldest_come_first_and_who_is_gone_is_passed_over() {
        let semaphore = PrioritySemaphore::new(2);
        let mut held: Vec<_> = (0..2).map(|_| semaphore.acquire(None).now_or_never().flatten()).collect();
        assert!(held.iter().all(Option::is_some));
        let deadlines = [None, at(30), at(10), at(20), at(10), at(5)];
        let mut waiting: Vec<_> = deadlines.map(|deadline| Box::pin(semaphore.acquire(deadline))).into();
        for one in &mut waiting {
            assert!(one.now_or_never().is_none(), "there is no permit");
        }
        drop(waiting.pop());
        let mut came = Vec::new();
        for _ in 0..waiting.len() {
            held.remove(0);
            let mut admitted = Vec::new();
            // A waiter that is polled early may hand the permit to one that was polled before.
            for _ in 0..2 {
                for (at, one) in waiting.iter_mut().enumerate() {
                    if !came.contains(&at)
                        && let Some(permit) = one.now_or_never()
                    {
                        came.push(at);
                        admitted.push(permit);
                    }
                }
            }
            assert_eq!(admitted.len(), 1, "one for each permit");
            held.append(&mut admitted);
        }
        assert_eq!(came, [2, 4, 3, 1, 0]);
    }

    #[test]
    fn very_many_may_leave_at_once() {
        let semaphore = PrioritySemaphore::new(1);
        let held = semaphore.acquire(None).now_or_never().flatten();
        let mut waiting: Vec<_> = (0..100_000).map(|_| Box::pin(semaphore.acquire(None))).collect();
        for one in &mut waiting {
            assert!(one.now_or_never().is_none());
        }
        drop(waiting);
        drop(held);
        assert!(semaphore.acquire(None).now_or_never().flatten().is_some());
    }
}
