//! Renewals of Leases by this process's clock, since a machine's clock may be wrong (kube-controller-manager, `tryUpdateNodeHealth`,
//! does the same).

use std::collections::BTreeMap;

use jiff::Timestamp;
use parking_lot::Mutex;

/// Time that each Lease names, and when it was first seen, by UID of the Node.
#[derive(Debug, Default)]
pub(super) struct LeaseRenewals(Mutex<BTreeMap<String, (Timestamp, Timestamp)>>);

impl LeaseRenewals {
    /// Time of the renewal that a Lease names as `renewed`, by this process's clock. The first one that is seen may be old,
    /// so its own time counts unless that is later than now; a later one has just happened.
    pub(super) fn seen(&self, uid: &str, renewed: Timestamp, now: Timestamp) -> Timestamp {
        let mut all = self.0.lock();
        let last = all.get(uid).copied();
        let at = last.map_or(renewed.min(now), |(named, at)| if named == renewed { at } else { now });
        all.insert(uid.to_owned(), (renewed, at));
        at
    }

    /// Forgets a Node whose initialization waits for its Lease no more.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_by_a_wrong_clock_counts_when_it_is_seen() {
        let (renewals, at) = (LeaseRenewals::default(), |second| Timestamp::from_second(second).unwrap());
        let seen = |renewed, now| renewals.seen("uid", at(renewed), at(now));
        assert_eq!(seen(100, 160), at(100), "it may be that of a machine before");
        assert_eq!([seen(100, 165), seen(110, 170), seen(110, 175)], [at(100), at(170), at(170)]);
        renewals.forget("uid");
        assert_eq!(seen(110, 180), at(110));
        renewals.forget("uid");
        assert_eq!(
            [seen(900, 200), seen(900, 250)],
            [at(200); 2],
            "a clock that is ahead makes no Lease last longer"
        );
    }
}
