//! Membership: the workers that are present, decided without I/O and without a clock.
//!
//! Times are those of the process that keeps the membership. A worker is present for the duration of its
//! Lease from the moment at which its last renewal was seen here. The worker's own claim ends earlier (see
//! `kube_ext::leader`), whatever the clocks show.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kube_ext::leader::clock::Moment;

/// Names of workers by group.
pub type Present = BTreeMap<Arc<str>, BTreeSet<Arc<str>>>;

/// Workers and the expiry of their Leases.
#[derive(Clone, Debug, Default)]
pub struct Membership(BTreeMap<(Arc<str>, Arc<str>), Renewal>);

#[derive(Clone, Debug)]
struct Renewal {
    /// Resource version of the Lease.
    version: String,
    expiry: Moment,
}

impl Membership {
    /// Records a version of a worker's Lease, which is valid for `valid_for`. Returns true if it is a renewal.
    pub fn renewed(
        &mut self,
        group: &Arc<str>,
        host: &Arc<str>,
        version: &str,
        valid_for: Duration,
        now: Moment,
    ) -> bool {
        let key = (Arc::clone(group), Arc::clone(host));
        // A new list shows known versions again: they are no renewals.
        let is_renewal = self.0.get(&key).is_none_or(|renewal| renewal.version != version);
        if is_renewal {
            self.0.insert(key, Renewal { version: version.to_owned(), expiry: now.after(valid_for) });
        }
        is_renewal
    }

    /// Removes a worker whose Lease was released or deleted.
    pub fn remove(&mut self, group: &Arc<str>, host: &Arc<str>) {
        self.0.remove(&(Arc::clone(group), Arc::clone(host)));
    }

    /// The workers that are present.
    pub fn present(&self, now: Moment) -> Present {
        let mut present = Present::new();
        for ((group, host), _) in self.0.iter().filter(|(_, renewal)| now < renewal.expiry) {
            present.entry(Arc::clone(group)).or_default().insert(Arc::clone(host));
        }
        present
    }

    /// Time at which the next worker expires if no renewal is seen until then.
    pub fn next_expiry(&self, now: Moment) -> Option<Moment> {
        self.0.values().map(|renewal| renewal.expiry).filter(|expiry| now < *expiry).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID_FOR: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Moment {
        Moment::BEGINNING.after(Duration::from_secs(seconds))
    }

    fn names(membership: &Membership, now: u64) -> Vec<String> {
        let all = membership.present(at(now));
        all.iter()
            .flat_map(|(group, hosts)| hosts.iter().map(move |host| format!("{group}/{host}")))
            .collect()
    }

    #[test]
    fn present_as_long_as_it_is_heard_of() {
        let mut membership = Membership::default();
        let (big, a, b) = ("big".into(), "a".into(), "b".into());
        membership.renewed(&big, &a, "1", VALID_FOR, at(0));
        membership.renewed(&big, &b, "2", VALID_FOR, at(4));
        assert_eq!(names(&membership, 9), ["big/a", "big/b"]);
        assert_eq!(membership.next_expiry(at(9)), Some(at(10)));
        membership.renewed(&big, &a, "1", VALID_FOR, at(9));
        assert_eq!(names(&membership, 10), ["big/b"], "the same version again is no sign of life");
        membership.renewed(&big, &a, "3", VALID_FOR, at(11));
        assert_eq!(names(&membership, 13), ["big/a", "big/b"]);
        membership.remove(&big, &b);
        assert_eq!(
            (names(&membership, 13), membership.next_expiry(at(13))),
            (vec!["big/a".to_owned()], Some(at(21)))
        );
        assert_eq!(membership.next_expiry(at(21)), None);
    }

    #[test]
    fn groups_do_not_mix() {
        let mut membership = Membership::default();
        let host = "a".into();
        membership.renewed(&"big".into(), &host, "1", VALID_FOR, at(0));
        membership.renewed(&"small".into(), &host, "2", VALID_FOR, at(0));
        membership.remove(&"small".into(), &host);
        assert_eq!(names(&membership, 1), ["big/a"]);
    }
}
