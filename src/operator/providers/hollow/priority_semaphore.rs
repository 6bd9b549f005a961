//! Priority semaphore: limits concurrent certificate requests, and admits first those with the least time left.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use tokio::sync::oneshot;

/// A semaphore whose waiters have priorities.
pub struct PrioritySemaphore {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Free permits.
    free: usize,
    /// Waiters by priority; those of equal priority in order of arrival.
    waiting: BTreeMap<(Timestamp, u64), oneshot::Sender<Permit>>,
    came: u64,
}

/// A permit, returned when dropped.
pub struct Permit {
    gate: Arc<PrioritySemaphore>,
}

impl PrioritySemaphore {
    pub fn new(at_once: usize) -> Arc<Self> {
        let queue = Queue { free: at_once, ..Queue::default() };
        Arc::new(Self { queue: Mutex::new(queue) })
    }

    /// Waits for a permit. The earliest `order` comes first, None last. Returns None only if the semaphore is gone.
    pub async fn turn(self: &Arc<Self>, order: Option<Timestamp>) -> Option<Permit> {
        let turn = {
            let mut queue = self.queue();
            let (sender, turn) = oneshot::channel();
            let key = (order.unwrap_or(Timestamp::MAX), queue.came);
            queue.came += 1;
            queue.waiting.insert(key, sender);
            turn
        };
        self.pass_on();
        turn.await.ok()
    }

    /// Gives free permits to waiters.
    fn pass_on(self: &Arc<Self>) {
        loop {
            let next = {
                let mut queue = self.queue();
                if queue.free == 0 {
                    return;
                }
                let Some((_, next)) = queue.waiting.pop_first() else { return };
                if next.is_closed() {
                    continue;
                }
                queue.free -= 1;
                next
            };
            // A waiter that has just given up drops its permit, which returns it.
            let _unwanted = next.send(Permit { gate: Arc::clone(self) });
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.queue().free += 1;
        self.gate.pass_on();
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
        let gate = PrioritySemaphore::new(2);
        let mut here: Vec<_> = (0..2).map(|_| gate.turn(None).now_or_never().flatten()).collect();
        assert!(here.iter().all(Option::is_some));
        let orders = [None, at(30), at(10), at(20), at(10), at(5)];
        let mut waiting: Vec<_> = orders.map(|order| Box::pin(gate.turn(order))).into();
        for one in &mut waiting {
            assert!(one.now_or_never().is_none(), "there is no place");
        }
        drop(waiting.pop());
        let mut came = Vec::new();
        for _ in 0..waiting.len() {
            here.remove(0);
            let ready: Vec<(usize, _)> = waiting
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| !came.contains(at))
                .filter_map(|(at, one)| Some((at, one.now_or_never()?)))
                .collect();
            assert_eq!(ready.len(), 1, "one for each place");
            for (at, turn) in ready {
                came.push(at);
                here.push(turn);
            }
        }
        assert_eq!(came, [2, 4, 3, 1, 0]);
    }

    #[test]
    fn very_many_may_leave_at_once() {
        let gate = PrioritySemaphore::new(1);
        let here = gate.turn(None).now_or_never().flatten();
        let mut waiting: Vec<_> = (0..100_000).map(|_| Box::pin(gate.turn(None))).collect();
        for one in &mut waiting {
            assert!(one.now_or_never().is_none());
        }
        drop(waiting);
        drop(here);
        assert!(gate.turn(None).now_or_never().flatten().is_some());
    }
}
