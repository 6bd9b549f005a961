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
pub struct Membership {
    hosts: BTreeMap<(Arc<str>, Arc<str>), Heard>,
}

#[derive(Clone, Debug)]
struct Heard {
    /// Resource version of the Lease.
    version: String,
    until: Moment,
}

impl Membership {
    /// Records a version of a worker's Lease, which is valid for `lasts`.
    pub fn saw(&mut self, group: &Arc<str>, host: &Arc<str>, version: &str, lasts: Duration, now: Moment) {
        let key = (Arc::clone(group), Arc::clone(host));
        // A new list shows known versions again: they are no renewals.
        if self.hosts.get(&key).is_none_or(|heard| heard.version != version) {
            self.hosts.insert(key, Heard { version: version.to_owned(), until: now.after(lasts) });
        }
    }

    /// Removes a worker whose Lease was released or deleted.
    pub fn left(&mut self, group: &Arc<str>, host: &Arc<str>) {
        self.hosts.remove(&(Arc::clone(group), Arc::clone(host)));
    }

    /// The workers that are present.
    #[must_use]
    pub fn present(&self, now: Moment) -> Present {
        let mut present = Present::new();
        for ((group, host), _) in self.hosts.iter().filter(|(_, heard)| now < heard.until) {
            present.entry(Arc::clone(group)).or_default().insert(Arc::clone(host));
        }
        present
    }

    /// Time at which the next worker expires if no renewal is seen until then.
    #[must_use]
    pub fn next_end(&self, now: Moment) -> Option<Moment> {
        self.hosts.values().map(|heard| heard.until).filter(|until| now < *until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Moment {
        Moment::BEGINNING.after(Duration::from_secs(seconds))
    }

    fn names(roll: &Membership, now: u64) -> Vec<String> {
        let all = roll.present(at(now));
        all.iter()
            .flat_map(|(group, hosts)| hosts.iter().map(move |host| format!("{group}/{host}")))
            .collect()
    }

    #[test]
    fn present_as_long_as_it_is_heard_of() {
        let mut roll = Membership::default();
        let (big, a, b) = ("big".into(), "a".into(), "b".into());
        roll.saw(&big, &a, "1", LASTS, at(0));
        roll.saw(&big, &b, "2", LASTS, at(4));
        assert_eq!(names(&roll, 9), ["big/a", "big/b"]);
        assert_eq!(roll.next_end(at(9)), Some(at(10)));
        roll.saw(&big, &a, "1", LASTS, at(9));
        assert_eq!(names(&roll, 10), ["big/b"], "the same version again is no sign of life");
        roll.saw(&big, &a, "3", LASTS, at(11));
        assert_eq!(names(&roll, 13), ["big/a", "big/b"]);
        roll.left(&big, &b);
        assert_eq!((names(&roll, 13), roll.next_end(at(13))), (vec!["big/a".to_owned()], Some(at(21))));
        assert_eq!(roll.next_end(at(21)), None);
    }

    #[test]
    fn groups_do_not_mix() {
        let mut roll = Membership::default();
        let host = "a".into();
        roll.saw(&"big".into(), &host, "1", LASTS, at(0));
        roll.saw(&"small".into(), &host, "2", LASTS, at(0));
        roll.left(&"small".into(), &host);
        assert_eq!(names(&roll, 1), ["big/a"]);
    }
}
