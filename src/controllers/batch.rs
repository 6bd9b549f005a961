//! Batch of writes: items that one reconciliation starts within about a second of its decision; the next one decides anew
//! and goes on with the rest.
//!
//! Invariants: no item is started later, so that a slow write has no other one act on what was decided long before. Of
//! a batch that follows its decision at once, the first items are started, so that each reconciliation makes progress.

use std::time::Duration;

use tokio::time::Instant;

/// Time in which a reconciliation starts writes. With those under way, it lasts this and a time limit of requests at most.
const TIME: Duration = Duration::from_secs(1);

/// Items of a batch, as an iterator that ends when its time is over.
#[derive(Debug)]
pub(crate) struct Batch<I> {
    items: I,
    until: Instant,
}

impl<I: Iterator> Batch<I> {
    /// A batch of what was decided then.
    pub(crate) fn new(decided: Instant, items: impl IntoIterator<IntoIter = I>) -> Self {
        Self { items: items.into_iter(), until: decided + TIME }
    }

    /// The items that were not started.
    pub(crate) fn left(self) -> I {
        self.items
    }
}

impl<I: Iterator> Iterator for Batch<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        (Instant::now() < self.until).then(|| self.items.next())?
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_writes_are_started_for_a_second_and_the_rest_is_left() {
        let slow = Duration::from_millis(400);
        let begin = Instant::now();
        let mut batch = Batch::new(begin, 0..100);
        let started: Vec<u32> = stream::iter(&mut batch)
            .map(|item| async move {
                sleep(slow).await;
                item
            })
            .buffer_unordered(10)
            .collect()
            .await;
        // At 0, 0.4 and 0.8 s.
        assert_eq!((started.len(), begin.elapsed()), (30, slow * 3));
        assert!(batch.left().eq(30..100));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_started_that_was_decided_more_than_a_second_ago() {
        let decided = Instant::now();
        sleep(TIME).await;
        let mut batch = Batch::new(decided, 0..3);
        assert_eq!((batch.next(), batch.left().count()), (None, 3));
    }
}
