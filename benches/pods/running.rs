//! Counts pods that are Running and Ready, by a watch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::runtime::watcher;
use kube_node_cache::{Cache, EventHandler, PodView};
use tokio::{sync::watch, time::timeout};

use crate::shared::Plane;

/// Follows all pods of a plane.
pub struct Running {
    cache: Arc<Cache<PodView>>,
    seen: watch::Receiver<usize>,
    ready: watch::Receiver<usize>,
}

struct Tally {
    seen: watch::Sender<usize>,
    count: AtomicUsize,
    running: watch::Sender<usize>,
}

impl Running {
    pub async fn start(plane: &Plane) -> anyhow::Result<Self> {
        let (seen_sender, seen) = watch::channel(0);
        let (sender, ready) = watch::channel(0);
        let cache: Arc<Cache<PodView>> = Arc::default();
        cache.add_event_handler(Arc::new(Tally {
            seen: seen_sender,
            count: AtomicUsize::new(0),
            running: sender,
        }));
        tokio::spawn(kube_node_cache::run_protobuf(
            plane.client().await?,
            watcher::Config::default(),
            Arc::clone(&cache),
        ));
        while !cache.in_sync() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { cache, seen, ready })
    }

    /// Waits until so many are there.
    pub async fn seen(&self, count: usize, limit: Duration) {
        let _ = timeout(limit, self.seen.clone().wait_for(|seen| *seen >= count)).await;
    }

    /// Waits until so many are Running and Ready; how many are.
    pub async fn reach(&self, count: usize, limit: Duration) -> usize {
        let _ = timeout(limit, self.ready.clone().wait_for(|ready| *ready >= count)).await;
        *self.ready.borrow()
    }

    /// All of them.
    pub fn pods(&self) -> Vec<Arc<PodView>> {
        self.cache.all()
    }
}

fn runs(pod: &PodView) -> bool {
    &*pod.status.phase == "Running"
        && pod.status.condition("Ready").is_some_and(|condition| &*condition.status == "True")
}

impl EventHandler<PodView> for Tally {
    fn on_change(&self, old: Option<&Arc<PodView>>, new: Option<&Arc<PodView>>) {
        if old.is_none() {
            self.seen.send_modify(|seen| *seen += 1);
        }
        let (before, after) = (old.is_some_and(|pod| runs(pod)), new.is_some_and(|pod| runs(pod)));
        if before != after {
            let count = if after {
                self.count.fetch_add(1, Ordering::Relaxed) + 1
            } else {
                self.count.fetch_sub(1, Ordering::Relaxed) - 1
            };
            self.running.send_replace(count);
        }
    }
}
