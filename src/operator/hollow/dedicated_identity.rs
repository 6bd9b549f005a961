//! Machines with a dedicated identity. They share only the caches of their process: to the API server each of
//! them is what a kubelet is ([`hollow_kubelet::kubelet_watches`]).
//!
//! Keys live in memory only, so a restarted process requests all certificates again: `CONCURRENCY` at a time,
//! first those of the machines whose Lease ends first. A machine without an identity reports its obstacle and
//! tries again; the others go on.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use hollow_kubelet::{
    DedicatedClient, Hollow, MachineSpec,
    kubelet_watches::{self, Meter},
};
use kube::runtime::utils::Backoff as _;
use kube_ext::{backoff::Backoff, environment, error::chain};
use kube_node_api::machine_files::MachineSettings;
use kube_node_controllers::provider::{Existing, MachineId, Renewed, Stage, Trouble, Watchers};
use machine_identity::{BootstrapClient, Identity, IdentityError, IdentityOptions, MemoryStore, PendingCsr};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::priority_semaphore::PrioritySemaphore;

/// Machines that request a certificate at once. Approver and signer handle as many at once themselves.
const CONCURRENCY: usize = 16;
/// Time that a machine gives a problem to resolve itself, before it reports an obstacle.
const PATIENCE: Duration = Duration::from_secs(30);
/// Backoff after that. The delay grows with denials only.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(20), BACKOFF_RESET);
/// Maximum delay. A lifetime longer than this resets the backoff.
const BACKOFF_RESET: Duration = Duration::from_mins(5);
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
    by_uid: BTreeMap<Arc<str>, DedicatedMachine>,
    /// UID of the newest Node of each name.
    by_name: HashMap<Arc<str>, Arc<str>>,
}

struct DedicatedMachine {
    spec: MachineSpec,
    trouble: Option<Trouble>,
    _task: AbortOnDropHandle<Infallible>,
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
        let task = AbortOnDropHandle::new(environment::spawn(async move { identities.run(id).await }));
        machines.by_name.insert(Arc::clone(&spec.node), Arc::clone(&spec.uid));
        machines.by_uid.insert(Arc::clone(&spec.uid), DedicatedMachine { spec, trouble: None, _task: task });
    }

    pub(super) fn update(&self, uid: &str, settings: &MachineSettings) {
        if let Some(machine) = self.machines.lock().by_uid.get_mut(uid) {
            machine.spec.settings.clone_from(settings);
        }
    }

    /// Deletes a machine: its connection ends, and its key is forgotten.
    pub(super) fn delete(&self, uid: &str) {
        let mut machines = self.machines.lock();
        let Some(gone) = machines.by_uid.remove(uid) else { return };
        let id = machine_id(&gone.spec);
        if machines.by_name.get(&id.node) == Some(&id.uid) {
            machines.by_name.remove(&id.node);
        }
        drop(machines);
        self.watchers.notify(&id);
    }

    /// State of a machine without an identity, or without the next one. The hollow kubelet reports a healthy machine.
    pub(super) fn get(&self, id: &MachineId) -> Option<Existing> {
        let machines = self.machines.lock();
        let machine = machines.by_uid.get(&id.uid).filter(|machine| machine.spec.node == id.node)?;
        let trouble = machine.trouble.clone();
        drop(machines);
        Some(Existing { stage: Stage::Starting, lease: Renewed::Unknown, trouble, last_end: None })
    }

    /// UID of the machine of a Node, by the Node's name.
    pub(super) fn machine_of(&self, node: &str) -> Option<Arc<str>> {
        self.machines.lock().by_name.get(node).cloned()
    }

    pub(super) fn list(&self) -> Vec<MachineId> {
        let machines = self.machines.lock();
        machines.by_uid.values().map(|machine| machine_id(&machine.spec)).collect()
    }

    /// Runs a machine until it is deleted.
    async fn run(&self, id: MachineId) -> Infallible {
        let mut pending_csr = PendingCsr::default();
        let mut backoff = BACKOFF;
        loop {
            let began = Instant::now();
            let Err(error) = self.lifetime(&id, &mut pending_csr).await;
            if began.elapsed() > BACKOFF_RESET {
                backoff.reset();
            }
            self.hollow.delete(&id.uid);
            warn!(node = &*id.node, error = chain(&error), "a machine has no identity, trying again");
            let message = chain(&error);
            if let Some(machine) = self.machines.lock().by_uid.get_mut(&id.uid) {
                machine.trouble = Some(Trouble { reason: NO_IDENTITY.to_owned(), message });
            }
            self.watchers.notify(&id);
            sleep(wait_after(&error, &mut backoff)).await;
        }
    }

    /// One lifetime: from the certificate request to the loss of the last certificate.
    async fn lifetime(
        &self,
        id: &MachineId,
        pending_csr: &mut PendingCsr,
    ) -> Result<Infallible, IdentityError> {
        let (uid, rate) = (Arc::clone(&id.uid), Arc::default());
        let store = MemoryStore { uid, bootstrap: Arc::clone(&self.bootstrap), rate: Arc::clone(&rate) };
        let options = IdentityOptions { patience: PATIENCE, ..IdentityOptions::at(&*id.node, store) };
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
        let mut identity = obtained?;
        let client = identity.client();
        let (silent, mut is_silent) = watch::channel(false);
        {
            // A deletion removes the machine from this map first.
            let mut machines = self.machines.lock();
            let Some(machine) = machines.by_uid.get_mut(&id.uid) else {
                return Err(IdentityError::NodeGone { node: id.node.to_string() });
            };
            machine.trouble = None;
            let own = DedicatedClient { client: client.clone(), rate: Arc::clone(&rate), silent };
            self.hollow.create(machine.spec.clone(), Some(own));
        }
        self.meter.machines.inc();
        let _counted = scopeguard::guard((), |()| self.meter.machines.dec());
        loop {
            tokio::select! {
                biased;
                // As in a kubelet, the watches start again on the new connection.
                renewed = identity.renewed() => {
                    renewed?;
                    continue;
                }
                never = kubelet_watches::kubelet((&client, &rate), &id.node, &self.meter) => match never {},
                // A silent machine counts as dead: it has neither watches nor a connection.
                _ = is_silent.wait_for(|silent| *silent) => {}
            }
            identity.hang_up().await?;
            let _awake = is_silent.wait_for(|silent| !*silent).await;
        }
    }
}

fn machine_id(spec: &MachineSpec) -> MachineId {
    MachineId { uid: Arc::clone(&spec.uid), node: Arc::clone(&spec.node) }
}

/// Delay after a failure. A denied request stays in etcd for an hour.
fn wait_after(error: &IdentityError, backoff: &mut Backoff) -> Duration {
    let wait = backoff.wait();
    if !matches!(error, IdentityError::Denied { .. } | IdentityError::Failed { .. }) {
        backoff.reset();
    }
    wait
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_in_a_row_make_it_wait_longer() {
        let denied = IdentityError::Denied { reason: String::new(), message: String::new() };
        let unanswered = IdentityError::Unanswered { name: String::new() };
        let mut backoff = BACKOFF;
        let mut assert_wait = |error: &IdentityError, longest: u64| {
            let wait = wait_after(error, &mut backoff).as_secs_f64();
            assert!((longest as f64 / 2.0..=longest as f64).contains(&wait), "{wait} after {error}");
        };
        for longest in [20, 40, 80, 160, 300, 300, 300] {
            assert_wait(&denied, longest);
        }
        assert_wait(&unanswered, 300);
        assert_wait(&unanswered, 20);
        assert_wait(&denied, 20);
    }
}
