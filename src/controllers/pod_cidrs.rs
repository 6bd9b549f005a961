//! Pod CIDRs of all Nodes: those that the watch shows, and those promised to Nodes in creation.
//!
//! Invariant: a promise lasts as long as the expectation of its creation. It is made after the expectation
//! was recorded, and [`PodCidrs::keep`] locks the CIDRs while it compares both, so no promise ends too early.

use std::{collections::HashSet, sync::Arc};

use kube_ext::{environment, metrics::gauges};
use kube_node_cache::{EventHandler, NodeView};
use kube_node_planner::{
    pod_cidrs::{PodCidrBlocks, PodCidrRange},
    set_wait::SetWait,
};
use parking_lot::Mutex;
use prometheus::{IntGaugeVec, Registry};
use tracing::warn;

/// Reason and metric label for a Node that is not created, as in kube-controller-manager's allocator.
pub(super) const NOT_AVAILABLE: &str = "CIDRNotAvailable";

/// Allocator of pod CIDRs for new Nodes. Register it before any event handler that completes expectations of
/// creations.
#[derive(Debug)]
pub struct PodCidrs {
    range: PodCidrRange,
    blocks: Mutex<PodCidrBlocks>,
    counts: IntGaugeVec,
}

impl PodCidrs {
    /// An allocator of the blocks of `range`, and its metric.
    pub fn register(range: PodCidrRange, registry: &Registry) -> Result<Arc<Self>, prometheus::Error> {
        let help = "Blocks of pod addresses for Nodes, by whether a Node has them; shared: more than one has";
        let states = [["taken"], ["free"], ["shared"]];
        let counts = gauges(registry, ("kube_node_pod_cidrs", help), ["state"], states)?;
        let blocks = Mutex::new(PodCidrBlocks::new(range, environment::random_range(0..range.blocks())));
        let cidrs = Self { range, blocks, counts };
        cidrs.count(&cidrs.blocks.lock());
        Ok(Arc::new(cidrs))
    }

    /// `spec.podCIDR` for a Node that is about to be created; the same at each call.
    pub(super) fn promise(&self, node: &str) -> Result<String, SetWait> {
        let mut blocks = self.blocks.lock();
        let block = blocks.promise(node);
        self.count(&blocks);
        block.map(|block| block.to_string()).ok_or_else(|| {
            let (count, range) = (self.range.blocks(), self.range);
            let message = format!(
                "all {count} pod CIDRs of {range} are taken: give the operator a larger --cluster-cidr, or delete Nodes"
            );
            SetWait::of_set(NOT_AVAILABLE, message)
        })
    }

    /// Drops the promises to all Nodes but those `on_their_way`. Returns true if a Node that found no CIDR
    /// would find one now.
    pub(super) fn keep(&self, on_their_way: impl FnOnce() -> HashSet<String>) -> bool {
        let mut blocks = self.blocks.lock();
        if blocks.has_promises() {
            blocks.keep(&on_their_way());
            self.count(&blocks);
        }
        blocks.relieved()
    }

    /// Returns true if a Node that found no CIDR would find one now, because another Node is gone.
    pub(super) fn relieved(&self) -> bool {
        self.blocks.lock().relieved()
    }

    fn count(&self, blocks: &PodCidrBlocks) {
        let (taken, free) = blocks.counts();
        for (state, count) in [("taken", taken), ("free", free), ("shared", blocks.shared())] {
            self.counts.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

impl EventHandler<NodeView> for PodCidrs {
    fn on_change(&self, old: Option<&Arc<NodeView>>, new: Option<&Arc<NodeView>>) {
        let before = old.and_then(|node| node.pod_cidr.as_deref());
        let now = new.and_then(|node| node.pod_cidr.as_deref());
        let Some(node) = new.or(old) else { return };
        // A Node's CIDR never changes once it is set.
        if old.is_some() && new.is_some() && before == now {
            return;
        }
        let mut blocks = self.blocks.lock();
        blocks.shown(&node.name, before, now);
        self.count(&blocks);
        if blocks.is_shared(now) {
            let (node, cidr) = (&*node.name, now.unwrap_or_default());
            let remedy = "delete one of them, and let one alone give pod CIDRs";
            warn!(node, cidr, "another Node has this pod CIDR, too: {remedy}");
        }
    }
}
