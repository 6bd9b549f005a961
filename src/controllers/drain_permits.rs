//! Drain permits: which deleted Nodes may start draining now.
//!
//! The NodeSetController grants permits within the set's budget; the NodeController starts a drain only with
//! one. A deleted Node without a permit keeps serving its pods.
//!
//! Invariants:
//!
//! - Permits live in memory only. After a restart they are granted again from the observed state; a drain that
//!   has started is visible as a cordoned Node and needs no permit.
//! - A permit that may be in use is not taken back, since another Node would get its place in the budget. Once the API
//!   server has refused the start of the drain, the set decides anew: the Node may have become available since.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

type OnChange<T> = OnceLock<Box<dyn Fn(&T) + Send + Sync>>;

/// State of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permit {
    /// The drain may start at any time, or may have started.
    InUse,
    /// The API server has refused the start of the drain, which may be tried again.
    Refused,
    /// Refused, and nothing is tried before the set has decided anew.
    OnHold,
}

/// Permits of all NodeSets in this process.
#[derive(Default)]
pub struct DrainPermits {
    /// Permits by NodeSet name and Node UID.
    granted: Mutex<HashMap<Arc<str>, HashMap<Arc<str>, Permit>>>,
    on_grant: OnChange<Arc<str>>,
    on_refusal: OnChange<String>,
}

impl DrainPermits {
    /// Registers the callback for new permits; it gets the name of the Node. Only the first registration counts.
    pub(super) fn on_grant(&self, enqueue: impl Fn(&Arc<str>) + Send + Sync + 'static) {
        drop(self.on_grant.set(Box::new(enqueue)));
    }

    /// Registers the callback for refused drains; it gets the name of the NodeSet. Only the first registration counts.
    pub(super) fn on_refusal(&self, enqueue: impl Fn(&String) + Send + Sync + 'static) {
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
                    Some(Permit::InUse) => Permit::InUse,
                    Some(Permit::Refused | Permit::OnHold) => Permit::Refused,
                    None => {
                        new.push(name);
                        Permit::InUse
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
        self.permit(set, uid, |_| true)
    }

    /// Takes the permit of a Node into use. Returns false if the drain must not start now.
    pub(super) fn start(&self, set: &str, uid: &str) -> bool {
        self.permit(set, uid, |permit| {
            let may_start = *permit != Permit::OnHold;
            if may_start {
                *permit = Permit::InUse;
            }
            may_start
        })
    }

    /// Notes that the API server has refused the start of a drain, and reports the set to the `on_refusal` callback.
    pub(super) fn refused(&self, set: &str, uid: &str) {
        let is_known = self.permit(set, uid, |permit| {
            *permit = Permit::Refused;
            true
        });
        if let Some(on_refusal) = self.on_refusal.get().filter(|_| is_known) {
            on_refusal(&set.to_owned());
        }
    }

    /// Returns true if the drain of a Node may have started. A permit whose use was refused is on hold until it is granted
    /// again or taken back by [`Self::replace`].
    pub(super) fn is_in_use(&self, set: &str, uid: &str) -> bool {
        self.permit(set, uid, |permit| {
            let is_in_use = *permit == Permit::InUse;
            if !is_in_use {
                *permit = Permit::OnHold;
            }
            is_in_use
        })
    }

    /// Looks at a permit, or changes it. Returns false if the Node has none.
    fn permit(&self, set: &str, uid: &str, with: impl FnOnce(&mut Permit) -> bool) -> bool {
        self.granted.lock().get_mut(set).and_then(|permits| permits.get_mut(uid)).is_some_and(with)
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
        drain_permits.on_refusal(move |set| into.lock().push(set.clone()));
        drain_permits.replace("set", [permit("a")]);
        assert!(drain_permits.start("set", "a") && drain_permits.is_in_use("set", "a"));
        drain_permits.refused("set", "a");
        assert!(!drain_permits.is_in_use("set", "a"));
        // Nothing starts while the set decides.
        assert!(drain_permits.is_granted("set", "a") && !drain_permits.start("set", "a"));
        drain_permits.replace("set", [permit("a")]);
        assert!(drain_permits.start("set", "a") && drain_permits.is_in_use("set", "a"));
        // It is tried again after its back-off, and not for being granted again.
        assert_eq!((*granted.lock(), &**refused.lock()), (1, &["set".to_owned()][..]));
        drain_permits.refused("set", "a");
        drain_permits.replace("set", []);
        assert!(!drain_permits.is_granted("set", "a") && !drain_permits.start("set", "a"));
        drain_permits.refused("set", "a");
        assert_eq!(refused.lock().len(), 2);
    }
}
