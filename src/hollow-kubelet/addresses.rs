//! IPv4 addresses of machines and pods; none is assigned twice.

use std::{collections::HashSet, fmt, net::Ipv4Addr};

use ipnet::Ipv4Net;
use sha2::{Digest, Sha256};

/// Addresses of machines: the shared address space of RFC 6598, which no cluster network should use.
pub const MACHINES: Block = Block { first: 0x6440_0001, last: 0x647f_fffe };
/// Addresses of pods on Nodes without a podCIDR: 10.64.0.0/11, outside the podCIDRs and the Services of `up`.
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
    /// Pod addresses of a podCIDR such as `10.244.1.0/24`, without network, gateway and broadcast address.
    /// None for IPv6 and for a block too small to have any.
    pub fn of_cidr(cidr: &str) -> Option<Self> {
        let net: Ipv4Net = cidr.parse().ok().filter(|net: &Ipv4Net| (1..=30).contains(&net.prefix_len()))?;
        Some(Self { first: net.network().to_bits() + 2, last: net.broadcast().to_bits() - 1 })
    }

    /// Returns true if the block contains `address`.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        (self.first..=self.last).contains(&address.to_bits())
    }
}

/// Parses the address shown by an object.
pub fn parse(text: Option<&str>) -> Option<Ipv4Addr> {
    text?.parse().ok()
}

/// Addresses in use.
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

    /// Derives the first address to try from `name`, unique per process: a process learns too late which
    /// addresses the others have just assigned.
    pub fn begin_at(&mut self, name: &str) {
        let hash = Sha256::digest(name);
        let offset = hash.iter().take(4).fold(0_u32, |offset, byte| offset << 8 | u32::from(*byte));
        self.machines = offset % (MACHINES.last - MACHINES.first);
        self.pods = offset % (PODS.last - PODS.first);
    }

    /// Assigns an address to a machine; None if all are used.
    pub fn for_machine(&mut self) -> Option<Ipv4Addr> {
        free(&mut self.used, MACHINES, &mut self.machines)
    }

    /// Assigns an address to a pod, from its Node's podCIDR if there is one. None if all are used: any other
    /// address might belong to a foreign Node.
    pub fn for_pod(&mut self, cidr: Option<Block>) -> Option<Ipv4Addr> {
        match cidr {
            Some(block) => free(&mut self.used, block, &mut 0),
            None => free(&mut self.used, PODS, &mut self.pods),
        }
    }

    /// Releases an address.
    pub fn release(&mut self, address: Ipv4Addr) {
        self.used.remove(&address);
    }
}

/// Takes the first free address, from `skip` addresses into the block on and wrapping around once. The next
/// search begins there.
fn free(used: &mut HashSet<Ipv4Addr>, block: Block, skip: &mut u32) -> Option<Ipv4Addr> {
    let from = block.first.saturating_add(*skip).min(block.last);
    let mut all = (from..=block.last).chain(block.first..from).map(Ipv4Addr::from_bits);
    let address = all.find(|address| !used.contains(address))?;
    *skip = address.to_bits() - block.first;
    used.insert(address);
    Some(address)
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
