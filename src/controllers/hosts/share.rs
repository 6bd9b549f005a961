//! Assignment of machines to the workers of a group: rendezvous hashing (Thaler and Ravishankar, 1996).
//!
//! Each pair of worker and machine has a weight, and the heaviest pair of a machine wins. So a worker that
//! joins takes an even share from all, one that leaves hands its share to all, and nothing else moves.

use sha2::{Digest, Sha256};

/// The worker that runs the machine of this UID; None if there are no workers.
pub fn host_of<'a>(hosts: impl IntoIterator<Item = &'a str>, uid: &str) -> Option<&'a str> {
    hosts.into_iter().max_by_key(|host| (weight(host, uid), *host))
}

/// The hash must never change: processes of all versions have to compute the same weight.
fn weight(host: &str, uid: &str) -> [u8; 8] {
    let hash = Sha256::new().chain_update(host).chain_update([0]).chain_update(uid).finalize();
    let mut weight = [0; 8];
    weight.iter_mut().zip(hash).for_each(|(to, from)| *to = from);
    weight
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const MACHINES: usize = 10_000;

    fn uid(number: usize) -> String {
        format!("0b8f6f0e-{number:04x}-4c1c-9f0b-1f3c5a7d9e{number:04x}")
    }

    fn hosts(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("kube-node-hollow-big-{number}")).collect()
    }

    fn carried(hosts: &[String]) -> Vec<&str> {
        (0..MACHINES).map(|number| host_of(hosts.iter().map(String::as_str), &uid(number)).unwrap()).collect()
    }

    #[test]
    fn all_versions_agree() {
        // Processes of two versions meet while a StatefulSet rolls: these results may never change.
        let of = |uid| host_of(["a", "b", "c"], uid).unwrap();
        assert_eq!([of("1"), of("2"), of("3"), of("4"), of("5")], ["b", "a", "a", "c", "b"]);
        assert_eq!(host_of([], "1"), None);
    }

    #[test]
    fn shares_are_even() {
        for count in [2, 3, 10] {
            let hosts = hosts(count);
            let mut shares = BTreeMap::<&str, usize>::new();
            for host in carried(&hosts) {
                *shares.entry(host).or_default() += 1;
            }
            let even = MACHINES / count;
            assert_eq!(shares.len(), count);
            assert!(shares.values().all(|share| share.abs_diff(even) < even / 8), "{shares:?}");
        }
    }

    #[test]
    fn only_what_has_to_moves() {
        let all = hosts(5);
        let (before, after) = (carried(&all[..4]), carried(&all));
        for (before, after) in before.iter().zip(&after) {
            assert!(before == after || *after == all[4], "{before} gave to {after}");
        }
        // The order of the workers does not matter.
        let turned: Vec<_> = all.iter().rev().cloned().collect();
        assert_eq!(after, carried(&turned));
    }
}
