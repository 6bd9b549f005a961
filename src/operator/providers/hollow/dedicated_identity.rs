//! Machines with a dedicated identity. They share only the caches of their process: to the API server each of
//! them is what a kubelet is ([`hollow_kubelet::kubelet_watches`]).
//!
//! Keys live in memory only, so a restarted process requests all certificates again: `CONCURRENCY` at a time,
//! first those of the machines whose Lease ends first. A machine without an identity reports its obstacle and
//! tries again; the others go on.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use hollow_kubelet::{
    DedicatedClient, Hollow, MachineSpec, Settings,
    kubelet_watches::{self, Meter},
};
use kube_ext::error::chain;
use machine_agent::identity::{
    BootstrapClient, Identity, IdentityError, IdentityOptions, MemoryStore, PendingCsr,
};
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::priority_semaphore::PrioritySemaphore;
use crate::providers::{Existing, MachineId, Renewed, Stage, Trouble, Watchers};

/// Machines that request a certificate at once. Approver and signer handle as many at once themselves.
const CONCURRENCY: usize = 16;
/// Time that a machine gives a problem to resolve itself, before it reports an obstacle.
const PATIENCE: Duration = Duration::from_secs(30);
/// Delay of the next try after that, drawn between half of this and the whole.
const AGAIN: Duration = Duration::from_secs(20);
/// Maximum delay: it doubles after each denial in a row.
const AGAIN_LONGEST: Duration = Duration::from_mins(5);
/// Time for which a machine holds its permit. Then others request, while it waits for a response that may
/// never come.
const PERMIT: Duration = Duration::from_secs(5);
/// Reason of the obstacle.
const NO_IDENTITY: &str = "NoIdentity";

/// Machines with a dedicated identity.
pub(super) struct DedicatedIdentities {
    hollow: Hollow,
    bootstrap: Arc<BootstrapClient>,
    meter: Meter,
    semaphore: PrioritySemaphore,
    machines: Mutex<Machines>,
    /// Receivers of machines that meet an obstacle or are deleted.
    pub(super) watchers: Watchers,
}

#[derive(Default)]
struct Machines {
    by_uid: HashMap<Arc<str>, DedicatedMachine>,
    by_node: HashMap<Arc<str>, Arc<str>>,
}

struct DedicatedMachine {
    spec: MachineSpec,
    trouble: Option<Trouble>,
    _task: AbortOnDropHandle<Infallible>,
}

impl Machines {
    fn remove(&mut self, uid: &str) -> Option<DedicatedMachine> {
        let (uid, machine) = self.by_uid.remove_entry(uid)?;
        if self.by_node.get(&machine.spec.node) == Some(&uid) {
            self.by_node.remove(&machine.spec.node);
        }
        Some(machine)
    }
}

impl DedicatedIdentities {
    pub(super) fn new(hollow: Hollow, bootstrap: BootstrapClient, meter: Meter) -> Arc<Self> {
        Arc::new(Self {
            hollow,
            bootstrap: Arc::new(bootstrap),
            meter,
            semaphore: PrioritySemaphore::new(CONCURRENCY),
            machines: Mutex::default(),
            watchers: Watchers::default(),
        })
    }

    /// Creates a machine. An existing one is left as it is.
    pub(super) fn create(self: &Arc<Self>, spec: MachineSpec) {
        let mut machines = self.machines.lock();
        if machines.by_uid.contains_key(&spec.uid) {
            return;
        }
        let (identities, id) = (Arc::clone(self), machine_id(&spec));
        let task = AbortOnDropHandle::new(tokio::spawn(async move { identities.run(id).await }));
        machines.by_node.insert(Arc::clone(&spec.node), Arc::clone(&spec.uid));
        machines.by_uid.insert(Arc::clone(&spec.uid), DedicatedMachine { spec, trouble: None, _task: task });
    }

    pub(super) fn update(&self, uid: &str, settings: &Settings) {
        if let Some(machine) = self.machines.lock().by_uid.get_mut(uid) {
            machine.spec.settings.clone_from(settings);
        }
    }

    /// Deletes a machine: its connection ends, and its key is forgotten.
    pub(super) fn delete(&self, uid: &str) {
        let gone = self.machines.lock().remove(uid);
        if let Some(machine) = gone {
            self.watchers.notify(&machine_id(&machine.spec));
        }
    }

    /// State of a machine without an identity, or without the next one. The hollow kubelet reports a healthy machine.
    pub(super) fn get(&self, uid: &str) -> Option<Existing> {
        let trouble = self.machines.lock().by_uid.get(uid)?.trouble.clone();
        Some(Existing { stage: Stage::Starting, lease: Renewed::Unknown, trouble, last_end: None })
    }

    /// UID of the machine of a Node, by the Node's name.
    pub(super) fn machine_of(&self, node: &str) -> Option<Arc<str>> {
        self.machines.lock().by_node.get(node).cloned()
    }

    pub(super) fn list(&self) -> Vec<MachineId> {
        let machines = self.machines.lock();
        machines.by_uid.values().map(|machine| machine_id(&machine.spec)).collect()
    }

    /// Runs a machine until it is deleted.
    async fn run(&self, id: MachineId) -> Infallible {
        let mut pending_csr = PendingCsr::default();
        let mut wait = AGAIN;
        loop {
            let began = Instant::now();
            let error = self.lifetime(&id, &mut pending_csr).await;
            // A long lifetime resets the delay.
            if began.elapsed() > AGAIN_LONGEST {
                wait = AGAIN;
            }
            self.hollow.delete(&id.uid);
            warn!(node = &*id.node, error = chain(&error), "a machine has no identity, trying again");
            let message = chain(&error);
            if let Some(machine) = self.machines.lock().by_uid.get_mut(&id.uid) {
                machine.trouble = Some(Trouble { reason: NO_IDENTITY.to_owned(), message });
            }
            self.watchers.notify(&id);
            sleep(wait.mul_f64(rand::random_range(0.5..=1.0))).await;
            wait = next_wait(wait, &error);
        }
    }

    /// One lifetime: from the certificate request to the loss of the last certificate.
    async fn lifetime(&self, id: &MachineId, pending_csr: &mut PendingCsr) -> IdentityError {
        let store = MemoryStore::new(Arc::clone(&id.uid), Arc::clone(&self.bootstrap));
        let rate = store.rate();
        let mut options = IdentityOptions::at(&*id.node, store);
        options.patience = PATIENCE;
        let obtained = {
            // A machine without an earlier Lease renewal has nothing to lose and comes last.
            let permit = self.semaphore.acquire(self.hollow.renewed_before(&id.node)).await;
            let mut obtained = Box::pin(Identity::obtain_with(options, pending_csr));
            if let Ok(obtained) = timeout(PERMIT, &mut obtained).await {
                obtained
            } else {
                drop(permit);
                obtained.await
            }
        };
        let mut identity = match obtained {
            Ok(identity) => identity,
            Err(error) => return error,
        };
        let client = identity.client();
        let (silent, mut is_silent) = watch::channel(false);
        {
            // A deletion removes the machine from this map first.
            let mut machines = self.machines.lock();
            let Some(machine) = machines.by_uid.get_mut(&id.uid) else {
                return IdentityError::NodeGone { node: id.node.to_string() };
            };
            machine.trouble = None;
            let own = DedicatedClient { client: client.clone(), rate: Arc::clone(&rate), silent };
            self.hollow.create(machine.spec.clone(), Some(own));
        }
        let _counted = Counted::new(&self.meter.machines);
        loop {
            tokio::select! {
                // As in a kubelet, the watches start again on the new connection.
                renewed = identity.renewed() => match renewed {
                    Ok(()) => continue,
                    Err(error) => return error,
                },
                never = kubelet_watches::kubelet((&client, &rate), &id.node, &self.meter) => match never {},
                // A silent machine counts as dead: it has neither watches nor a connection.
                _ = is_silent.wait_for(|silent| *silent) => {}
            }
            if let Err(error) = identity.hang_up().await {
                return error;
            }
            let _awake = is_silent.wait_for(|silent| !*silent).await;
        }
    }
}

fn machine_id(spec: &MachineSpec) -> MachineId {
    MachineId { uid: Arc::clone(&spec.uid), node: Arc::clone(&spec.node) }
}

/// Delay after another failure. A denied request stays in etcd for an hour.
fn next_wait(wait: Duration, error: &IdentityError) -> Duration {
    match error {
        IdentityError::Denied { .. } | IdentityError::Failed { .. } => (wait * 2).min(AGAIN_LONGEST),
        _ => AGAIN,
    }
}

/// Counts a machine that has its identity, until it is dropped.
struct Counted<'a>(&'a IntGauge);

impl<'a> Counted<'a> {
    fn new(machines: &'a IntGauge) -> Self {
        machines.inc();
        Self(machines)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_in_a_row_make_it_wait_longer() {
        let denied = IdentityError::Denied { reason: String::new(), message: String::new() };
        let mut wait = AGAIN;
        let waits = [(); 6].map(|()| {
            wait = next_wait(wait, &denied);
            wait.as_secs()
        });
        assert_eq!(waits, [40, 80, 160, 300, 300, 300]);
        let unanswered = IdentityError::Unanswered { name: String::new(), waited: Duration::ZERO };
        assert_eq!(next_wait(wait, &unanswered), AGAIN);
    }
}
