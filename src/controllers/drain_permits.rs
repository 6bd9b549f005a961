//! Drain permits: which deleted Nodes may start draining now.
//!
//! The NodeSetController grants permits within the set's budget; the NodeController starts a drain only with
//! one. A deleted Node without a permit keeps serving its pods.
//!
//! Invariants:
//!
//! - Permits live in memory only. After a restart they are granted again from the observed state; a drain that
//!   has started is visible as a cordoned Node and needs no permit.
//! - A permit that may be in use is not taken back, since another Node would get its place in the budget. Where the API
//!   server has refused the start of the drain, and no earlier attempt may have succeeded, the set decides anew: the Node
//!   may have become available since.

use std::{
    collections::HashMap,
    mem::replace,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

type OnGrant = Box<dyn Fn(&Arc<str>) + Send + Sync>;
type OnRefusal = Box<dyn Fn(&str) + Send + Sync>;
/// Permits of one NodeSet, by Node UID.
type OfSet = HashMap<Arc<str>, Permit>;

/// State of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    /// The drain has not started, and may start at any time.
    Unused,
    /// The drain may have started.
    InUse,
    /// The API server has refused the start of the drain, which may be tried again.
    Refused,
    /// Refused, and nothing is tried before the set has decided anew.
    OnHold,
}

/// Permits of all NodeSets in this process.
#[derive(Default)]
pub struct DrainPermits {
    /// By NodeSet name.
    granted: Mutex<HashMap<Arc<str>, OfSet>>,
    on_grant: OnceLock<OnGrant>,
    on_refusal: OnceLock<OnRefusal>,
}

impl DrainPermits {
    /// Registers the callback for new permits; it gets the name of the Node. Only the first registration counts.
    pub(super) fn on_grant(&self, enqueue: impl Fn(&Arc<str>) + Send + Sync + 'static) {
        drop(self.on_grant.set(Box::new(enqueue)));
    }

    /// Registers the callback for refused drains; it gets the name of the NodeSet. Only the first registration counts.
    pub(super) fn on_refusal(&self, enqueue: impl Fn(&str) + Send + Sync + 'static) {
        drop(self.on_refusal.set(Box::new(enqueue)));
    }

    /// Replaces the permits of a NodeSet, given as UIDs and names, and reports the new ones to the `on_grant`
    /// callback.
    pub fn replace(&self, set: &str, nodes: impl IntoIterator<Item = (Arc<str>, Arc<str>)>) {
        let mut new = Vec::new();
        {
            let mut all = self.granted.lock();
            let before = all.remove(set).unwrap_or_default();
            let permits = nodes.into_iter().map(|(uid, name)| {
                let permit = match before.get(&uid) {
                    Some(Permit::OnHold) => Permit::Refused,
                    Some(permit) => *permit,
                    None => {
                        new.push(name);
                        Permit::Unused
                    }
                };
                (uid, permit)
            });
            let permits = permits.collect();
            all.insert(set.into(), permits);
        }
        if let Some(on_grant) = self.on_grant.get() {
            new.iter().for_each(on_grant);
        }
    }

    /// Drops the permits of a deleted NodeSet.
    pub(super) fn forget(&self, set: &str) {
        self.granted.lock().remove(set);
    }

    /// Returns true if this Node of the set has a permit.
    pub(super) fn is_granted(&self, set: &str, uid: &str) -> bool {
        self.with(set, uid, |_| ()).is_some()
    }

    /// Takes the permit of a Node into use, and returns it as it was. None: the drain must not start now.
    pub(super) fn start(&self, set: &str, uid: &str) -> Option<Permit> {
        self.with(set, uid, |permit| (*permit != Permit::OnHold).then(|| replace(permit, Permit::InUse)))?
    }

    /// Notes that the API server has not carried out the start of a drain, with the permit as it was before. A refusal that a
    /// retry does not change is reported by the `on_refusal` callback.
    pub(super) fn not_started(&self, set: &str, uid: &str, before: Permit, is_final: bool) {
        let is_refused = is_final && before != Permit::InUse;
        self.with(set, uid, |permit| *permit = if is_refused { Permit::Refused } else { before });
        if let Some(on_refusal) = self.on_refusal.get().filter(|_| is_refused) {
            on_refusal(set);
        }
    }

    /// Returns true if the drain of a Node may have started, or may at any time. A permit whose use was refused is on hold
    /// until it is granted again or taken back by [`Self::replace`].
    pub(super) fn allows_drain(&self, set: &str, uid: &str) -> bool {
        let allows = self.with(set, uid, |permit| {
            let allows = matches!(permit, Permit::Unused | Permit::InUse);
            if !allows {
                *permit = Permit::OnHold;
            }
            allows
        });
        allows == Some(true)
    }

    /// Reads or changes the permit of a Node; None if the Node has none.
    fn with<T>(&self, set: &str, uid: &str, access: impl FnOnce(&mut Permit) -> T) -> Option<T> {
        self.granted.lock().get_mut(set).and_then(|permits| permits.get_mut(uid)).map(access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(uid: &str) -> (Arc<str>, Arc<str>) {
        (Arc::from(uid), Arc::from(format!("node-{uid}")))
    }

    #[test]
    fn new_permits_are_reported_once_and_expire_with_the_next_reconcile() {
        let drain_permits = DrainPermits::default();
        let reported: Arc<Mutex<Vec<Arc<str>>>> = Arc::default();
        let into = Arc::clone(&reported);
        drain_permits.on_grant(move |name| into.lock().push(Arc::clone(name)));
        drain_permits.replace("set", [permit("a")]);
        drain_permits.replace("set", [permit("a"), permit("b")]);
        assert!(
            drain_permits.is_granted("set", "a")
                && drain_permits.is_granted("set", "b")
                && !drain_permits.is_granted("other", "a")
        );
        drain_permits.replace("set", [permit("b")]);
        assert!(!drain_permits.is_granted("set", "a"));
        assert_eq!(*reported.lock(), ["node-a".into(), "node-b".into()]);
    }

    #[test]
    fn a_permit_whose_use_was_refused_is_decided_on_anew() {
        let drain_permits = DrainPermits::default();
        let (granted, refused): (Arc<Mutex<u32>>, Arc<Mutex<Vec<String>>>) = Default::default();
        let (counts, into) = (Arc::clone(&granted), Arc::clone(&refused));
        drain_permits.on_grant(move |_| *counts.lock() += 1);
        drain_permits.on_refusal(move |set| into.lock().push(set.to_owned()));
        drain_permits.replace("set", [permit("a")]);
        let start = || drain_permits.start("set", "a");
        let not_started = |before, is_final| drain_permits.not_started("set", "a", before, is_final);
        // A conflict is tried again.
        not_started(start().unwrap(), false);
        assert!(drain_permits.allows_drain("set", "a"));
        not_started(start().unwrap(), true);
        assert!(!drain_permits.allows_drain("set", "a"));
        // Nothing starts while the set decides.
        assert!(drain_permits.is_granted("set", "a") && start().is_none());
        drain_permits.replace("set", [permit("a")]);
        // It is tried again after its back-off, and not for being granted again.
        assert_eq!((*granted.lock(), &**refused.lock()), (1, &["set".to_owned()][..]));
        not_started(start().unwrap(), true);
        assert!(!drain_permits.allows_drain("set", "a"));
        drain_permits.replace("set", []);
        assert!(!drain_permits.is_granted("set", "a") && start().is_none());
    }

    #[test]
    fn a_drain_that_may_have_started_keeps_its_permit() {
        let drain_permits = DrainPermits::default();
        drain_permits.replace("set", [permit("a")]);
        // Its answer got lost.
        assert_eq!(drain_permits.start("set", "a"), Some(Permit::Unused));
        let before = drain_permits.start("set", "a").unwrap();
        drain_permits.not_started("set", "a", before, true);
        assert!(drain_permits.allows_drain("set", "a"));
    }
}
