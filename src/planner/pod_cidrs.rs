//! Allocator of pod address blocks (`spec.podCIDR`) for Nodes, where no other component allocates them.
//!
//! Input: the CIDRs of all Nodes, and creations under way. Output: a free block for each new Node.
//!
//! Invariant: a block is taken while a Node has it or a part of it, from any allocator, and while it is
//! promised to a Node whose creation is under way. The most recently freed block is reused last: some
//! component may still associate it with its old Node.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fmt,
    net::Ipv4Addr,
};

use anyhow::{Result, bail, ensure};
use ipnet::{IpNet, Ipv4Net};

/// Maximum difference between the prefix lengths of block and range: 65,536 Nodes.
const BITS_MAX: u8 = 16;
/// Maximum prefix length of a block: addresses for network, gateway, broadcast and one pod.
const PREFIX_MAX: u8 = 30;

/// Pod address range of the cluster, and the size of each Node's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodCidrRange {
    range: Ipv4Net,
    block: u8,
}

impl fmt::Display for PodCidrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (/{} a Node)", self.range, self.block)
    }
}

impl PodCidrRange {
    /// A range with blocks of prefix length `block`.
    pub fn new(range: IpNet, block: u8) -> Result<Self> {
        let IpNet::V4(range) = range else {
            bail!("{range} is no range of IPv4 addresses: write one such as 10.128.0.0/9");
        };
        ensure!(range == range.trunc(), "{range} is an address in a range: write {}", range.trunc());
        let shortest = range.prefix_len();
        let longest = PREFIX_MAX.min(shortest + BITS_MAX);
        ensure!(
            (shortest..=longest).contains(&block),
            "{range} cannot be cut into blocks of /{block}: choose a length from {shortest} to {longest}"
        );
        Ok(Self { range, block })
    }

    /// Number of blocks.
    pub fn blocks(self) -> usize {
        1 << (self.block - self.range.prefix_len())
    }

    /// The block with this number.
    fn block(self, number: usize) -> Option<Ipv4Net> {
        let number = u32::try_from(number).ok()?;
        let network = self.range.network().to_bits() + (number << (32 - self.block));
        Ipv4Net::new(Ipv4Addr::from_bits(network), self.block).ok()
    }

    /// Numbers of the blocks that lie completely in `cidr`.
    fn covered(self, cidr: Option<&str>) -> std::ops::Range<usize> {
        let cidr =
            cidr.filter(|cidr| cidr.parse().is_ok_and(|cidr: Ipv4Net| cidr.prefix_len() <= self.block));
        self.touched(cidr)
    }

    /// Numbers of the blocks that overlap `cidr`.
    fn touched(self, cidr: Option<&str>) -> std::ops::Range<usize> {
        let cidr: Option<Ipv4Net> = cidr.and_then(|cidr| cidr.parse().ok());
        let Some(cidr) = cidr.filter(|cidr| self.range.contains(cidr) || cidr.contains(&self.range)) else {
            return 0..0;
        };
        let number = |address: Ipv4Addr| {
            let within = address.clamp(self.range.network(), self.range.broadcast());
            let offset = within.to_bits() - self.range.network().to_bits();
            usize::try_from(offset >> (32 - self.block)).unwrap_or_default()
        };
        number(cidr.network())..number(cidr.broadcast()) + 1
    }
}

/// Allocation state of the blocks of a range.
#[derive(Clone, Debug)]
pub struct PodCidrBlocks {
    range: PodCidrRange,
    /// Number of Nodes that have a part of each block, promises included.
    holders: Vec<u32>,
    /// Number of Nodes that have the whole of each block.
    owners: Vec<u32>,
    /// Number of blocks that more than one Node has.
    shared: usize,
    /// Allocation queue without duplicates; blocks taken in the meantime are skipped.
    free: VecDeque<usize>,
    /// True for each block in `free`.
    waits: Vec<bool>,
    /// Number of taken blocks.
    taken: usize,
    /// Promised blocks by the name of the Node whose creation is under way.
    promised: BTreeMap<String, usize>,
    /// True if an allocation has failed for lack of a free block.
    turned_away: bool,
}

impl PodCidrBlocks {
    /// All blocks are free; allocation starts at `begin`. A random `begin` keeps a new process from reusing
    /// the blocks that the previous process allocated last, to Nodes whose creation may still be under way.
    pub fn new(range: PodCidrRange, begin: usize) -> Self {
        let count = range.blocks();
        let begin = begin % count;
        Self {
            range,
            holders: vec![0; count],
            owners: vec![0; count],
            shared: 0,
            free: (begin..count).chain(0..begin).collect(),
            waits: vec![true; count],
            taken: 0,
            promised: BTreeMap::new(),
            turned_away: false,
        }
    }

    /// Promises a block to a Node that is about to be created. Calls for the same Node return the same block
    /// until the Node appears or the promise is withdrawn. None if all blocks are taken.
    pub fn promise(&mut self, node: &str) -> Option<Ipv4Net> {
        if let Some(number) = self.promised.get(node) {
            return self.range.block(*number);
        }
        let number = self.next();
        self.turned_away |= number.is_none();
        let number = number?;
        self.take(number);
        self.promised.insert(node.to_owned(), number);
        self.range.block(number)
    }

    /// Records a change of a Node's CIDR from `before` to `now`; None for no CIDR or no Node. Ends the
    /// promise to the Node.
    pub fn shown(&mut self, node: &str, before: Option<&str>, now: Option<&str>) {
        self.range.touched(now).for_each(|number| self.take(number));
        self.range.touched(before).for_each(|number| self.give_back(number));
        for number in self.range.covered(now) {
            self.owners[number] = self.owners[number].saturating_add(1);
            self.shared += usize::from(self.owners[number] == 2);
        }
        for number in self.range.covered(before) {
            self.shared -= usize::from(self.owners[number] == 2);
            self.owners[number] = self.owners[number].saturating_sub(1);
        }
        if let Some(number) = self.promised.remove(node) {
            self.give_back(number);
        }
    }

    /// Withdraws the promises to all other Nodes: only these creations are under way.
    pub fn keep(&mut self, on_their_way: &HashSet<String>) {
        let over: Vec<String> =
            self.promised.keys().filter(|node| !on_their_way.contains(*node)).cloned().collect();
        for node in over {
            self.shown(&node, None, None);
        }
    }

    /// Returns true if any block is promised.
    pub fn has_promises(&self) -> bool {
        !self.promised.is_empty()
    }

    /// Returns true, once, if an allocation has failed and a block is free now.
    pub fn relieved(&mut self) -> bool {
        self.taken < self.holders.len() && std::mem::take(&mut self.turned_away)
    }

    /// Returns true if another Node has a block of `cidr` too. An allocator that sees all CIDRs allocates no
    /// block twice, so there are two allocators, or one did not see a CIDR.
    pub fn is_shared(&self, cidr: Option<&str>) -> bool {
        self.shared > 0 && self.range.covered(cidr).any(|number| self.owners[number] > 1)
    }

    /// Number of blocks that more than one Node has.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// Numbers of taken and free blocks.
    pub fn counts(&self) -> (usize, usize) {
        (self.taken, self.holders.len() - self.taken)
    }

    fn next(&mut self) -> Option<usize> {
        while let Some(number) = self.free.pop_front() {
            self.waits[number] = false;
            if self.holders[number] == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, number: usize) {
        let holders = &mut self.holders[number];
        self.taken += usize::from(*holders == 0);
        *holders = holders.saturating_add(1);
    }

    fn give_back(&mut self, number: usize) {
        let holders = &mut self.holders[number];
        *holders = holders.saturating_sub(1);
        if *holders > 0 {
            return;
        }
        self.taken -= 1;
        if !std::mem::replace(&mut self.waits[number], true) {
            self.free.push_back(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn range(range: &str, block: u8) -> Result<PodCidrRange> {
        PodCidrRange::new(range.parse().unwrap(), block)
    }

    #[test]
    fn a_range_that_cannot_be_cut_is_refused_with_what_to_write() {
        let message = |text: &str, block| range(text, block).unwrap_err().to_string();
        assert_eq!(
            message("fd00::/48", 24),
            "fd00::/48 is no range of IPv4 addresses: write one such as 10.128.0.0/9"
        );
        assert_eq!(message("10.128.0.1/9", 24), "10.128.0.1/9 is an address in a range: write 10.128.0.0/9");
        assert_eq!(
            message("10.128.0.0/9", 26),
            "10.128.0.0/9 cannot be cut into blocks of /26: choose a length from 9 to 25"
        );
        assert_eq!(
            message("10.0.0.0/28", 31),
            "10.0.0.0/28 cannot be cut into blocks of /31: choose a length from 28 to 30"
        );
        assert_eq!(range("10.128.0.0/9", 24).unwrap().blocks(), 32_768);
        assert_eq!(range("10.0.0.0/24", 24).unwrap().blocks(), 1);
        assert_eq!(range("0.0.0.0/0", 16).unwrap().blocks(), 65_536);
    }

    #[test]
    fn a_promise_is_kept_and_what_others_have_is_not_given() {
        let mut blocks = PodCidrBlocks::new(range("10.0.0.0/22", 24).unwrap(), 5);
        assert_eq!(blocks.promise("a").unwrap().to_string(), "10.0.1.0/24");
        assert_eq!(blocks.promise("a").unwrap().to_string(), "10.0.1.0/24");
        blocks.shown("other", None, Some("10.0.2.128/25"));
        blocks.shown("elsewhere", None, Some("192.168.0.0/24"));
        blocks.shown("strange", None, Some("fd00::/64"));
        assert_eq!(blocks.promise("b").unwrap().to_string(), "10.0.3.0/24");
        blocks.shown("a", None, Some("10.0.1.0/24"));
        blocks.shown("a", Some("10.0.1.0/24"), Some("10.0.1.0/24"));
        assert_eq!(blocks.promise("c").unwrap().to_string(), "10.0.0.0/24");
        assert_eq!((blocks.promise("d"), blocks.counts()), (None, (4, 0)));
        assert!(!blocks.relieved());
        blocks.shown("a", Some("10.0.1.0/24"), None);
        assert!(blocks.relieved() && !blocks.relieved());
        assert_eq!(blocks.promise("d").unwrap().to_string(), "10.0.1.0/24");
        blocks.keep(&HashSet::from(["b".to_owned(), "d".to_owned()]));
        assert_eq!(blocks.counts(), (3, 1), "nobody creates c any more");
        blocks.shown("wide", None, Some("10.0.0.0/8"));
        assert_eq!(blocks.counts(), (4, 0));
    }

    #[test]
    fn thirty_thousand_nodes_have_blocks_of_their_own() {
        let mut blocks = PodCidrBlocks::new(range("10.128.0.0/9", 24).unwrap(), 12_345);
        let mut seen = HashSet::new();
        for node in 0..30_000 {
            let block = blocks.promise(&format!("n{node}")).unwrap();
            assert!(seen.insert(block));
            blocks.shown(&format!("n{node}"), None, Some(&block.to_string()));
        }
        assert_eq!(blocks.counts(), (30_000, 2_768));
    }

    /// An event of one of the Nodes.
    #[derive(Clone, Debug)]
    enum Step {
        Promise(u8),
        /// The Node appears with its promised block, otherwise without a block.
        Shows(u8),
        /// The Node appears with a block of another allocator.
        ShowsOther(u8, u8, u8),
        Goes(u8),
        /// Only the creations of these Nodes are under way.
        Keep(Vec<u8>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let node = || 0_u8..12;
        prop_oneof![
            4 => node().prop_map(Step::Promise),
            3 => node().prop_map(Step::Shows),
            1 => (node(), any::<u8>(), 19_u8..=27).prop_map(|(node, at, length)| Step::ShowsOther(node, at, length)),
            3 => node().prop_map(Step::Goes),
            1 => vec(node(), 0..12).prop_map(Step::Keep),
        ]
    }

    proptest! {
        /// The allocator agrees with a model that scans all Nodes each time.
        #[test]
        fn as_a_simple_model(begin in any::<usize>(), steps in vec(step(), 0..200)) {
            let mut blocks = PodCidrBlocks::new(range("10.0.0.0/21", 24).unwrap(), begin);
            let all: Vec<Ipv4Net> =
                (0..8).map(|third| Ipv4Net::new_assert(Ipv4Addr::new(10, 0, third, 0), 24)).collect();
            let (mut promises, mut nodes) =
                (BTreeMap::<u8, Ipv4Net>::new(), BTreeMap::<u8, Option<Ipv4Net>>::new());
            for step in steps {
                let free: Vec<Ipv4Net> = all
                    .iter()
                    .filter(|block| {
                        let overlap = |other: &Ipv4Net| other.contains(*block) || block.contains(other);
                        !promises.values().chain(nodes.values().flatten()).any(overlap)
                    })
                    .copied()
                    .collect();
                prop_assert_eq!(blocks.counts(), (8 - free.len(), free.len()));
                let owners = |block: &&Ipv4Net| nodes.values().flatten().filter(|node| node.contains(*block)).count();
                prop_assert_eq!(blocks.shared(), all.iter().filter(|block| owners(block) > 1).count());
                for node in nodes.values().flatten() {
                    let is_shared = all.iter().any(|block| node.contains(block) && owners(&block) > 1);
                    prop_assert_eq!(blocks.is_shared(Some(&node.to_string())), is_shared);
                }
                let text = |block: Option<Ipv4Net>| block.map(|block| block.to_string());
                match step {
                    Step::Promise(node) if !nodes.contains_key(&node) => {
                        let given = blocks.promise(&node.to_string());
                        if let Some(known) = promises.get(&node) {
                            prop_assert_eq!(given, Some(*known));
                        } else {
                            prop_assert_eq!(given.is_some(), !free.is_empty());
                            prop_assert!(given.is_none_or(|block| free.contains(&block)));
                        }
                        promises.extend(given.map(|given| (node, given)));
                    }
                    Step::Promise(_) => {}
                    Step::Shows(node) => {
                        let promised = promises.remove(&node);
                        let before = nodes.get(&node).copied();
                        let now = before.flatten().or(promised);
                        blocks.shown(&node.to_string(), text(before.flatten()).as_deref(), text(now).as_deref());
                        nodes.insert(node, now);
                    }
                    Step::ShowsOther(node, at, length) => {
                        let other = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, at % 16, at), length).trunc();
                        let before = nodes.get(&node).copied().flatten();
                        blocks.shown(&node.to_string(), text(before).as_deref(), Some(&other.to_string()));
                        promises.remove(&node);
                        nodes.insert(node, Some(other));
                    }
                    Step::Goes(node) => {
                        let before = nodes.remove(&node).flatten();
                        blocks.shown(&node.to_string(), text(before).as_deref(), None);
                        promises.remove(&node);
                    }
                    Step::Keep(known) => {
                        blocks.keep(&known.iter().map(u8::to_string).collect());
                        promises.retain(|node, _| known.contains(node));
                    }
                }
            }
        }
    }
}
