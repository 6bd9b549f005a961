//! Counts Ready nodes by a watch: lists of thousands would load the server and falsify what is measured.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use kube::runtime::watcher;
use kube_node_cache::{Cache, EventHandler, NodeView};
use tokio::sync::watch;

use super::Plane;

/// Follows all nodes of a plane.
pub struct Counter {
    tally: Arc<Tally>,
    ready: watch::Receiver<usize>,
}

struct Tally {
    inner: Mutex<Inner>,
    ready: watch::Sender<usize>,
}

struct Inner {
    begin: Instant,
    open: HashSet<Arc<str>>,
    lost: usize,
    curve: Vec<(f64, usize)>,
}

/// How a count ended.
pub struct Reached {
    pub seconds: f64,
    pub ready: usize,
}

impl Counter {
    pub async fn start(plane: &Plane) -> anyhow::Result<Self> {
        let (sender, ready) = watch::channel(0);
        let inner = Inner { begin: Instant::now(), open: HashSet::new(), lost: 0, curve: Vec::new() };
        let tally = Arc::new(Tally { inner: Mutex::new(inner), ready: sender });
        let cache: Arc<Cache<NodeView>> = Arc::default();
        cache.add_event_handler(tally.clone());
        tokio::spawn(kube_node_cache::run_protobuf(
            plane.client().await?,
            watcher::Config::default(),
            Arc::clone(&cache),
        ));
        while !cache.in_sync() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { tally, ready })
    }

    /// The clock starts now.
    pub fn begin(&self) {
        let mut inner = self.tally.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.begin = Instant::now();
    }

    /// Waits until so many are Ready and open to pods.
    pub async fn reach(&self, count: usize, limit: Duration) -> Reached {
        let begin = Instant::now();
        let mut ready = self.ready.clone();
        let _ = tokio::time::timeout(limit, ready.wait_for(|ready| *ready >= count)).await;
        let ready = *self.ready.borrow();
        Reached { seconds: begin.elapsed().as_secs_f64(), ready }
    }

    /// Names of those that are Ready.
    pub fn names(&self) -> Vec<Arc<str>> {
        let inner = self.tally.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.open.iter().map(Arc::clone).collect()
    }

    /// How often a node that was Ready was it no more.
    pub fn lost(&self) -> usize {
        self.tally.inner.lock().unwrap_or_else(PoisonError::into_inner).lost
    }

    /// Seconds and how many were Ready then.
    pub fn curve(&self) -> Vec<(f64, usize)> {
        self.tally.inner.lock().unwrap_or_else(PoisonError::into_inner).curve.clone()
    }
}

impl EventHandler<NodeView> for Tally {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |node: &NodeView| {
            node.is_ready()
                && !node.taints.iter().any(|taint| {
                    taint.key == "node.kubernetes.io/not-ready" || taint.key.starts_with("kube-node.io/")
                })
        };
        let before = inner.open.len();
        match new {
            Some(new) if open(new) => {
                inner.open.insert(Arc::clone(&new.name));
            }
            _ => {
                if let Some(node) = new.or(old)
                    && inner.open.remove(&node.name)
                {
                    inner.lost += 1;
                }
            }
        }
        let count = inner.open.len();
        if count != before {
            let at = inner.begin.elapsed().as_secs_f64();
            inner.curve.push((at, count));
            drop(inner);
            self.ready.send_replace(count);
        }
    }
}
