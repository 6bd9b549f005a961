//! Machines that share nothing with others of their process but what they know: each comes by an identity, and from then on
//! it is to the API server what a kubelet is ([`hollow_kubelet::load`]).
//!
//! Keys are in memory alone, so a process that starts anew asks for all certificates anew: [`AT_ONCE`] at once, and those first
//! whose Lease ends first. What stands in the way of one machine is its trouble and tried again; the others go on.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hollow_kubelet::{
    DedicatedClient, Hollow, MachineSpec, Settings,
    kubelet_watches::{self, Meter},
};
use kube::{Client, Config};
use kube_ext::{error::chain, leader::Fence};
use machine_agent::identity::{BootstrapClient, Identity, IdentityError, MemoryStore, Options, PendingCsr};
use tokio::{
    sync::{mpsc::UnboundedSender, watch},
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};
use tracing::warn;

use super::priority_semaphore::PrioritySemaphore;
use crate::providers::{Existing, MachineId, Renewed, Stage, Trouble};

/// Machines that ask for a certificate at once. Approver and signer have as many under way themselves.
const AT_ONCE: usize = 16;
/// How long a machine waits for what may come right by itself, before it says what stands in its way.
const PATIENCE: Duration = Duration::from_secs(30);
/// When it tries again after that, between half of this and the whole.
const AGAIN: Duration = Duration::from_secs(20);
/// The longest such wait: after each denial in a row the next one is twice as long.
const AGAIN_LONGEST: Duration = Duration::from_mins(5);
/// How long a machine has its turn: then others ask, while it waits for an answer that may never come.
const TURN: Duration = Duration::from_secs(5);
/// Reason of what stands in its way.
const NO_IDENTITY: &str = "NoIdentity";

/// What the machines of a process need to stand alone.
pub struct Dependencies {
    /// Requests tokens for them.
    pub requester: Client,
    /// Where the API server is, and what it is known by.
    pub server: Config,
    /// What they write goes through it.
    pub fence: Fence,
    /// What they count.
    pub meter: Meter,
}

/// Machines that stand alone.
pub(super) struct DedicatedIdentities {
    hollow: Hollow,
    road: Arc<BootstrapClient>,
    meter: Meter,
    gate: Arc<PrioritySemaphore>,
    machines: Mutex<Machines>,
    watchers: Mutex<Vec<UnboundedSender<MachineId>>>,
}

#[derive(Default)]
struct Machines {
    by_uid: HashMap<Arc<str>, Machine>,
    by_node: HashMap<Arc<str>, Arc<str>>,
}

struct Machine {
    spec: MachineSpec,
    trouble: Option<Trouble>,
    life: AbortHandle,
}

impl Machines {
    fn remove(&mut self, uid: &str) -> Option<Machine> {
        let (uid, machine) = self.by_uid.remove_entry(uid)?;
        if self.by_node.get(&machine.spec.node) == Some(&uid) {
            self.by_node.remove(&machine.spec.node);
        }
        Some(machine)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.life.abort();
    }
}

impl DedicatedIdentities {
    pub(super) fn new(
        hollow: Hollow,
        Dependencies { requester, server, fence, meter }: Dependencies,
    ) -> Arc<Self> {
        Arc::new(Self {
            hollow,
            road: Arc::new(BootstrapClient { requester, server, fence }),
            meter,
            gate: PrioritySemaphore::new(AT_ONCE),
            machines: Mutex::default(),
            watchers: Mutex::default(),
        })
    }

    /// Makes a machine; one that exists is left as it is.
    pub(super) fn create(self: &Arc<Self>, spec: MachineSpec) {
        let mut machines = self.machines();
        if machines.by_uid.contains_key(&spec.uid) {
            return;
        }
        let id = MachineId { uid: Arc::clone(&spec.uid), node: Arc::clone(&spec.node) };
        let alone = Arc::clone(self);
        let life = tokio::spawn(async move { alone.live(id).await }).abort_handle();
        machines.by_node.insert(Arc::clone(&spec.node), Arc::clone(&spec.uid));
        machines.by_uid.insert(Arc::clone(&spec.uid), Machine { spec, trouble: None, life });
    }

    pub(super) fn update(&self, uid: &str, settings: &Settings) {
        if let Some(machine) = self.machines().by_uid.get_mut(uid) {
            machine.spec.settings.clone_from(settings);
        }
    }

    /// Takes a machine away: its connection ends, and its key is forgotten.
    pub(super) fn delete(&self, uid: &str) {
        let gone = self.machines().remove(uid);
        if let Some(machine) = gone {
            self.tell(&MachineId { uid: uid.into(), node: Arc::clone(&machine.spec.node) });
        }
    }

    /// A machine that has no identity, or cannot get another one; one that is well is the hollow kubelet's to show.
    pub(super) fn exists(&self, uid: &str) -> Option<Existing> {
        let trouble = self.machines().by_uid.get(uid)?.trouble.clone();
        Some(Existing { stage: Stage::Starting, lease: Renewed::Unknown, trouble, last_end: None })
    }

    /// UID of the machine of a Node, by the Node's name.
    pub(super) fn machine_of(&self, node: &str) -> Option<Arc<str>> {
        self.machines().by_node.get(node).cloned()
    }

    pub(super) fn list(&self) -> Vec<MachineId> {
        let machines = self.machines();
        let ids = machines.by_uid.values().map(|Machine { spec, .. }| spec);
        ids.map(|spec| MachineId { uid: Arc::clone(&spec.uid), node: Arc::clone(&spec.node) }).collect()
    }

    /// Machines that something stands in the way of, or no more.
    pub(super) fn watch(&self, sender: UnboundedSender<MachineId>) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    }

    fn machines(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, id: &MachineId) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.send(id.clone()).is_ok());
    }

    /// A machine's life: until it is taken away.
    async fn live(&self, id: MachineId) -> Infallible {
        let mut pursuit = PendingCsr::default();
        let mut wait = AGAIN;
        loop {
            let began = Instant::now();
            let error = self.lifetime(&id, &mut pursuit).await;
            // That was a life.
            if began.elapsed() > AGAIN_LONGEST {
                wait = AGAIN;
            }
            self.hollow.delete(&id.uid);
            warn!(node = &*id.node, error = chain(&error), "a machine has no identity, trying again");
            let message = chain(&error);
            self.is_troubled(&id, Some(Trouble { reason: NO_IDENTITY.to_owned(), message }));
            sleep(wait.mul_f64(rand::random_range(0.5..=1.0))).await;
            wait = next_wait(wait, &error);
        }
    }

    fn is_troubled(&self, id: &MachineId, trouble: Option<Trouble>) {
        if let Some(machine) = self.machines().by_uid.get_mut(&id.uid) {
            machine.trouble = trouble;
        }
        self.tell(id);
    }

    /// From the request for a certificate to the loss of the last one.
    async fn lifetime(&self, id: &MachineId, pursuit: &mut PendingCsr) -> IdentityError {
        let place = MemoryStore::new(Arc::clone(&id.uid), Arc::clone(&self.road));
        let rate = place.rate();
        let mut options = Options::at(&*id.node, place);
        options.patience = PATIENCE;
        let obtained = {
            // Who has nothing to lose comes last.
            let turn = self.gate.turn(self.hollow.renewed_before(&id.node)).await;
            let mut obtained = Box::pin(Identity::pursue(options, pursuit));
            if let Ok(obtained) = timeout(TURN, &mut obtained).await {
                obtained
            } else {
                drop(turn);
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
            // Whoever takes it away takes it from here first.
            let mut machines = self.machines();
            let Some(machine) = machines.by_uid.get_mut(&id.uid) else {
                return IdentityError::NodeGone { node: id.node.to_string() };
            };
            machine.trouble = None;
            let own = DedicatedClient { client: client.clone(), rate: Arc::clone(&rate), silent };
            self.hollow.create_alone(machine.spec.clone(), own);
        }
        let _counted = Counted::new(&self.meter);
        loop {
            tokio::select! {
                // As a kubelet, it begins anew by the new connection.
                renewed = identity.renewed() => match renewed {
                    Ok(()) => continue,
                    Err(error) => return error,
                },
                never = kubelet_watches::kubelet((&client, &rate), &id.node, &self.meter) => match never {},
                // A machine that is silent is dead: it has neither watches nor a connection.
                _ = is_silent.wait_for(|silent| *silent) => {}
            }
            if let Err(error) = identity.hang_up().await {
                return error;
            }
            let _awake = is_silent.wait_for(|silent| !*silent).await;
        }
    }
}

/// How long to wait after another failure. A request that is denied stays in etcd for an hour.
fn next_wait(wait: Duration, error: &IdentityError) -> Duration {
    match error {
        IdentityError::Denied { .. } | IdentityError::Failed { .. } => (wait * 2).min(AGAIN_LONGEST),
        _ => AGAIN,
    }
}

/// A machine that has its identity.
struct Counted<'a>(&'a Meter);

impl<'a> Counted<'a> {
    fn new(meter: &'a Meter) -> Self {
        meter.machines.inc();
        Self(meter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.machines.dec();
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
