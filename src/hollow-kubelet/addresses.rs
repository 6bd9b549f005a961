//! Which IPv4 addresses are taken: those of machines and those of pods, none twice.

use std::{collections::HashSet, fmt, net::Ipv4Addr};

use sha2::{Digest, Sha256};

/// Addresses of machines: the shared address space of RFC 6598, which no cluster network should use.
pub const MACHINES: Block = Block { first: 0x6440_0001, last: 0x647f_fffe };
/// Addresses of pods on Nodes without a podCIDR: 10.64.0.0/11, which is neither what `up` cuts podCIDRs from nor its Services'.
pub const PODS: Block = Block { first: 0x0a40_0001, last: 0x0a5f_fffe };

/// A block of addresses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    first: u32,
    last: u32,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", Ipv4Addr::from_bits(self.first), Ipv4Addr::from_bits(self.last))
    }
}

impl Block {
    /// The addresses for pods in a podCIDR such as `10.244.1.0/24`: without the network, its gateway and the broadcast
    /// address. None for IPv6 and for blocks too small to have any.
    #[must_use]
    pub fn of_cidr(cidr: &str) -> Option<Self> {
        let (address, prefix) = cidr.split_once('/')?;
        let (address, prefix): (Ipv4Addr, u32) = (address.parse().ok()?, prefix.parse().ok()?);
        let size = 1_u32.checked_shl(32_u32.checked_sub(prefix)?)?;
        let network = address.to_bits() & !(size - 1);
        (size >= 4).then(|| Self { first: network + 2, last: network + (size - 2) })
    }

    /// Whether an address is in it.
    #[must_use]
    pub fn contains(self, address: Ipv4Addr) -> bool {
        (self.first..=self.last).contains(&address.to_bits())
    }
}

/// The addresses in use.
#[derive(Debug, Default)]
pub struct Addresses {
    used: HashSet<Ipv4Addr>,
    machines: u32,
    pods: u32,
}

impl Addresses {
    /// Marks an address as used.
    pub fn claim(&mut self, address: Ipv4Addr) {
        self.used.insert(address);
    }

    /// Where to begin: a process knows too late what others have just given out, so each begins at a place of its own, which
    /// a name says that no other one has.
    pub fn begin_at(&mut self, name: &str) {
        let hash = Sha256::digest(name);
        let place = hash.iter().take(4).fold(0_u32, |place, byte| place << 8 | u32::from(*byte));
        self.machines = place % (MACHINES.last - MACHINES.first);
        self.pods = place % (PODS.last - PODS.first);
    }

    /// An address for a machine; None when all are used.
    pub fn for_machine(&mut self) -> Option<Ipv4Addr> {
        let address = self.free(MACHINES, self.machines)?;
        self.machines = address.to_bits() - MACHINES.first;
        Some(address)
    }

    /// An address for a pod: from its Node's podCIDR, where it has one. None when all are used: any other address could be
    /// of somebody else's Node.
    pub fn for_pod(&mut self, cidr: Option<Block>) -> Option<Ipv4Addr> {
        if let Some(block) = cidr {
            return self.free(block, 0);
        }
        let address = self.free(PODS, self.pods)?;
        self.pods = address.to_bits() - PODS.first;
        Some(address)
    }

    /// Gives an address back.
    pub fn release(&mut self, address: Ipv4Addr) {
        self.used.remove(&address);
    }

    /// The first free address from `skip` addresses into the block on, going round once.
    fn free(&mut self, block: Block, skip: u32) -> Option<Ipv4Addr> {
        let from = block.first.saturating_add(skip).min(block.last);
        let address = (from..=block.last)
            .chain(block.first..from)
            .map(Ipv4Addr::from_bits)
            .find(|address| !self.used.contains(address))?;
        self.used.insert(address);
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cidr_has_room_for_its_pods() {
        assert_eq!(Block::of_cidr("10.244.1.0/24"), Some(Block { first: 0x0af4_0102, last: 0x0af4_01fe }));
        for none in ["", "10.0.0.0", "10.0.0.0/31", "10.0.0.0/0", "10.0.0.0/99", "fd00::/64"] {
            assert_eq!(Block::of_cidr(none), None, "{none}");
        }
    }

    #[test]
    fn a_full_cidr_has_none_until_one_is_released() {
        let mut addresses = Addresses::default();
        let cidr = Block::of_cidr("10.244.1.0/29");
        let taken: Vec<_> = (0..9).filter_map(|_| addresses.for_pod(cidr)).map(|a| a.to_string()).collect();
        assert_eq!(taken, ["10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5", "10.244.1.6"]);
        assert_eq!(addresses.for_pod(None).map(|a| a.to_string()).as_deref(), Some("10.64.0.1"));
        addresses.release(Ipv4Addr::new(10, 244, 1, 3));
        assert_eq!(addresses.for_pod(cidr), Some(Ipv4Addr::new(10, 244, 1, 3)));
    }

    #[test]
    fn each_name_begins_at_a_place_of_its_own() {
        let first = |name: &str| {
            let mut addresses = Addresses::default();
            addresses.begin_at(name);
            (addresses.for_machine().unwrap(), addresses.for_pod(None).unwrap())
        };
        let (one, other) = (first("host-0"), first("host-1"));
        assert!(one.0 != other.0 && one.1 != other.1);
        assert_eq!(one, first("host-0"));
        for name in ["", "0b8f6f0e-0000", "ffffffff-ffff"] {
            let (machine, pod) = first(name);
            assert!(MACHINES.contains(machine) && PODS.contains(pod), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_address_twice(releases in prop::collection::vec(any::<bool>(), 0..200)) {
            let mut addresses = Addresses::default();
            let mut held = HashSet::new();
            for release in releases {
                let address = addresses.for_machine().expect("millions are free");
                prop_assert!(MACHINES.contains(address));
                prop_assert!(held.insert(address));
                if release {
                    addresses.release(address);
                    held.remove(&address);
                }
            }
        }
    }
}
