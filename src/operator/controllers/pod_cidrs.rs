//! The blocks of pod addresses of all Nodes, as the watch shows them, and those of Nodes that are being created.
//!
//! A promise lasts as long as its creation is outstanding. It is made after the creation was noted, and whoever compares the
//! two ([`PodCidrs::keep`]) holds the blocks meanwhile; so no promise is taken for one that is over.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube_ext::metrics::gauges;
use kube_node_cache::{EventHandler, NodeView};
use kube_node_planner::{
    pod_cidrs::{Blocks, Range},
    set::Problem,
};
use prometheus::{IntGaugeVec, Registry};
use tracing::warn;

/// Why no Node is created, as kube-controller-manager's allocator says it: reason and metric label.
pub(super) const NOT_AVAILABLE: &str = "CIDRNotAvailable";

/// Gives blocks to new Nodes. To be shown the Nodes before anybody who concludes from them that a creation is over.
#[derive(Debug)]
pub struct PodCidrs {
    range: Range,
    blocks: Mutex<Blocks>,
    counts: IntGaugeVec,
}

impl PodCidrs {
    /// The blocks of a range, and the metric that counts them.
    pub fn register(range: Range, registry: &Registry) -> Result<Arc<Self>, prometheus::Error> {
        let counts = gauges(
            registry,
            (
                "kube_node_pod_cidrs",
                "Blocks of pod addresses for Nodes, by whether a Node has them; shared: more than one has",
            ),
            ["state"],
            [["taken"], ["free"], ["shared"]],
        )?;
        let blocks = Mutex::new(Blocks::new(range, rand::random_range(0..range.blocks())));
        let cidrs = Self { range, blocks, counts };
        cidrs.count(&cidrs.blocks());
        Ok(Arc::new(cidrs))
    }

    /// `spec.podCIDR` of a Node that is about to be created, the same each time it is asked for.
    pub(super) fn promise(&self, node: &str) -> Result<String, Problem> {
        let mut blocks = self.blocks();
        let block = blocks.promise(node);
        self.count(&blocks);
        block.map(|block| block.to_string()).ok_or_else(|| {
            let (count, range) = (self.range.blocks(), self.range);
            let message = format!(
                "all {count} pod CIDRs of {range} are taken: give the operator a larger --cluster-cidr, or delete Nodes"
            );
            Problem::of_set(NOT_AVAILABLE, message)
        })
    }

    /// Keeps promises to Nodes alone that are on their way. Returns whether somebody who found no block would find one now.
    pub(super) fn keep(&self, on_their_way: impl FnOnce() -> HashSet<String>) -> bool {
        let mut blocks = self.blocks();
        if blocks.has_promises() {
            blocks.keep(&on_their_way());
            self.count(&blocks);
        }
        blocks.relieved()
    }

    /// The same, after a Node went.
    pub(super) fn relieved(&self) -> bool {
        self.blocks().relieved()
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, blocks: &Blocks) {
        let (taken, free) = blocks.counts();
        for (state, count) in [("taken", taken), ("free", free), ("shared", blocks.shared())] {
            self.counts.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

impl EventHandler<NodeView> for PodCidrs {
    fn changed(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        let block = |node: Option<&'_ Arc<NodeView>>| node.and_then(|node| node.pod_cidr.clone());
        let (before, now) = (block(old), block(new));
        let Some(node) = new.or(old) else { return };
        // It has nothing new to say in the rest of its life.
        if old.is_some() && new.is_some() && before == now {
            return;
        }
        let mut blocks = self.blocks();
        blocks.shown(&node.name, before.as_deref(), now.as_deref());
        self.count(&blocks);
        if blocks.is_shared(now.as_deref()) {
            let cidr = now.as_deref().unwrap_or_default();
            warn!(
                node = &*node.name,
                cidr,
                "another Node has this pod CIDR, too: delete one of them, and let one alone give pod CIDRs"
            );
        }
    }
}
