//! Membership watch: the membership of all groups, kept by the watch of the workers' Leases.

use std::{collections::BTreeSet, sync::Arc};

use kube_ext::leader::clock::Moment;
use kube_node_cache::EventHandler;
use tokio::{sync::watch, time::timeout};

use super::{HostView, Membership, Present};

/// The workers that are present, as far as the watch has shown them. The default is for a process that is no
/// worker.
#[derive(Debug, Default)]
pub struct MembershipWatch(watch::Sender<State>);

#[derive(Debug, Default)]
struct State {
    membership: Membership,
    /// Own Lease, whose renewals prove that the watch works; None: the watch is trusted.
    own: Option<OwnLease>,
}

/// The Lease of this process, which renews it continuously.
#[derive(Debug)]
struct OwnLease {
    /// Identity of this process: an earlier one may have had the same Lease.
    holder: String,
    /// Time at which the watch showed the last renewal.
    heartbeat: Option<Moment>,
}

impl State {
    /// Time up to which the membership is known. A worker that has stopped receiving its own heartbeats does
    /// not declare other workers lost: without them this time stands still.
    fn now(&self) -> Moment {
        let now = Moment::now();
        self.own.as_ref().map_or(now, |own| own.heartbeat.unwrap_or(Moment::BEGINNING).min(now))
    }
}

impl MembershipWatch {
    /// Membership for the worker with this identity, which takes over the machines of lost workers.
    pub fn of_worker(identity: &str) -> Arc<Self> {
        let own = OwnLease { holder: identity.to_owned(), heartbeat: None };
        let state = State { membership: Membership::default(), own: Some(own) };
        Arc::new(Self(watch::Sender::new(state)))
    }

    /// The workers that are present.
    pub fn present(&self) -> Present {
        let state = self.0.borrow();
        state.membership.present(state.now())
    }

    /// Number of present workers of a group.
    pub fn count(&self, group: &str) -> usize {
        self.present().get(group).map_or(0, BTreeSet::len)
    }

    /// Time at which the watch last showed this worker's own heartbeat; None before the first.
    pub fn own_heartbeat(&self) -> Option<Moment> {
        self.0.borrow().own.as_ref()?.heartbeat
    }

    /// Waits until the present workers differ from `known`.
    pub async fn wait_for_change(&self, known: &Present) -> Present {
        let mut changes = self.0.subscribe();
        loop {
            let expiry = {
                let state = changes.borrow_and_update();
                let now = state.now();
                let present = state.membership.present(now);
                if present != *known {
                    return present;
                }
                // A worker's time advances with its own heartbeats alone, and each of them is a change.
                state.membership.next_expiry(now).filter(|_| state.own.is_none())
            };
            match expiry {
                Some(expiry) => drop(timeout(Moment::now().until(expiry), changes.changed()).await),
                None => drop(changes.changed().await),
            }
        }
    }
}

impl EventHandler<HostView> for MembershipWatch {
    fn on_change(&self, old: Option<&Arc<HostView>>, new: Option<&Arc<HostView>>) {
        let Some(view) = new.or(old) else { return };
        let HostView { group, host, holder, version, .. } = &**view;
        let now = Moment::now();
        self.0.send_modify(|State { membership, own }| match new.and_then(|new| new.valid_for) {
            Some(valid_for) => {
                let is_renewal = membership.renewed(group, host, version, valid_for, now);
                if let Some(own) = own.as_mut().filter(|own| is_renewal && own.holder == *holder) {
                    own.heartbeat = Some(now);
                }
            }
            None => membership.remove(group, host),
        });
    }
}
