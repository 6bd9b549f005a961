//! Batch of writes: items that one reconciliation starts for about a second; the next one goes on with the rest.
//!
//! Invariant: the first items are started at once, so that each reconciliation makes progress.

use std::time::Duration;

use tokio::time::Instant;

/// Time in which a reconciliation starts writes of one kind. With those under way, it lasts this and a time limit of
/// requests at most.
const TIME: Duration = Duration::from_secs(1);

/// Items of a batch, as an iterator that ends when its time is over.
#[derive(Debug)]
pub(crate) struct Batch<I> {
    items: I,
    until: Instant,
}

impl<I: Iterator> Batch<I> {
    /// A batch that begins now.
    pub(crate) fn new(items: impl IntoIterator<IntoIter = I>) -> Self {
        Self { items: items.into_iter(), until: Instant::now() + TIME }
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
        let (mut batch, begin) = (Batch::new(0..100), Instant::now());
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
}
