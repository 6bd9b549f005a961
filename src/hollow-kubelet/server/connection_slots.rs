//! Connection slots: few for unauthenticated clients, many for authenticated ones, which are admitted once a
//! request of theirs was authorized.
//!
//! A client that reads metrics keeps a connection to each node between two readings. Idle connections must
//! not take the slots of others, so an answer ends its connection while slots are scarce.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube_ext::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Maximum number of connections of admitted clients.
pub const ADMITTED: usize = 1_024;
/// Maximum number of connections of clients that are not admitted, or not yet.
pub const UNADMITTED: usize = 256;
/// Longest wait of an authorized client for a slot.
const ADMISSION_LIMIT: Duration = Duration::from_secs(10);

/// All connection slots.
pub struct ConnectionSlots {
    unadmitted: ConnectionLimiter,
    admitted: Arc<Semaphore>,
}

impl Default for ConnectionSlots {
    fn default() -> Self {
        Self { unadmitted: ConnectionLimiter::new(UNADMITTED), admitted: Arc::new(Semaphore::new(ADMITTED)) }
    }
}

impl ConnectionSlots {
    /// Slot for a new connection. If none is left, another client that is not admitted loses its slot.
    pub fn take(&self, address: IpAddr) -> ConnectionSlot {
        let unadmitted = self.unadmitted.admit(Some(address));
        ConnectionSlot {
            evicted: unadmitted.evicted().clone(),
            unadmitted: Mutex::new(Some(unadmitted)),
            permit: OnceLock::new(),
            admitted: Arc::clone(&self.admitted),
        }
    }

    /// Returns true if connections should end with their answers, so that no idle one takes a slot.
    pub fn are_scarce(&self) -> bool {
        self.admitted.available_permits() < ADMITTED / 2
    }
}

/// Slot of one connection.
pub struct ConnectionSlot {
    /// Cancelled when the client loses its slot to another one; never for an admitted client.
    pub evicted: CancellationToken,
    unadmitted: Mutex<Option<ConnectionPermit>>,
    permit: OnceLock<OwnedSemaphorePermit>,
    admitted: Arc<Semaphore>,
}

impl ConnectionSlot {
    /// Admits the client: its slot among the unadmitted clients becomes free. Returns false if there was no
    /// room in time.
    pub async fn admit(&self) -> bool {
        if self.is_admitted() {
            return true;
        }
        let waited = timeout(ADMISSION_LIMIT, Arc::clone(&self.admitted).acquire_owned()).await;
        let Ok(Ok(permit)) = waited else { return false };
        // Requests of one connection come one after the other.
        let _ = self.permit.set(permit);
        self.unadmitted.lock().take();
        true
    }

    /// Returns true if the client was admitted.
    pub fn is_admitted(&self) -> bool {
        self.permit.get().is_some()
    }

    /// Records a verified client certificate: clients without one lose their slots first.
    pub fn authenticate(&self) {
        if let Some(permit) = &*self.unadmitted.lock() {
            permit.authenticate();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn is_evicted(slot: &ConnectionSlot) -> bool {
        slot.evicted.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn admitted_and_unadmitted_clients_do_not_take_each_others_slots() {
        let slots = ConnectionSlots::default();
        let mut admitted = Vec::new();
        for number in 0..ADMITTED {
            let slot = slots.take(SERVER);
            assert_eq!(slots.are_scarce(), number > ADMITTED / 2, "{number}");
            assert!(!slot.is_admitted() && slot.admit().await && slot.admit().await && slot.is_admitted());
            admitted.push(slot);
        }
        let unadmitted: Vec<_> = (0..UNADMITTED).map(|_| slots.take(SERVER)).collect();
        assert!(!unadmitted[0].admit().await, "there is no room");
        admitted.pop();
        assert!(unadmitted[0].admit().await);
        assert!(
            !unadmitted.iter().chain(&admitted).any(is_evicted),
            "an admitted client leaves its first slot"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_takes_all_slots_loses_them_to_others() {
        let slots = ConnectionSlots::default();
        let attack: Vec<_> = (0..2 * UNADMITTED).map(|_| slots.take(ATTACKER)).collect();
        let asking: Vec<_> = (0..UNADMITTED / 4).map(|_| slots.take(SERVER)).collect();
        asking.iter().for_each(ConnectionSlot::authenticate);
        let more: Vec<_> = (0..2 * UNADMITTED).map(|_| slots.take(ATTACKER)).collect();
        assert!(!asking.iter().any(is_evicted));
        let left = attack.iter().chain(&more).filter(|slot| !is_evicted(slot)).count();
        assert_eq!(left, UNADMITTED - UNADMITTED / 4);
        for slot in &asking {
            assert!(slot.admit().await);
        }
    }
}
