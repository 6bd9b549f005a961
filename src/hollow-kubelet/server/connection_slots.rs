//! Connection slots: few for unauthenticated clients, many for authenticated ones, which are admitted once a
//! request of theirs was authorized.
//!
//! A client that reads metrics keeps a connection to each node between two readings. Idle connections must
//! not take the slots of others, so an answer ends its connection while slots are scarce.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use kube_ext::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Maximum number of connections of admitted clients.
pub const GUESTS: usize = 1_024;
/// Maximum number of connections of clients that are not admitted, or not yet.
pub const STRANGERS: usize = 256;
/// Longest wait of an authorized client for a slot.
const PATIENCE: Duration = Duration::from_secs(10);

/// All connection slots.
pub struct ConnectionSlots {
    strangers: ConnectionLimiter,
    guests: Arc<Semaphore>,
}

impl Default for ConnectionSlots {
    fn default() -> Self {
        Self { strangers: ConnectionLimiter::new(STRANGERS), guests: Arc::new(Semaphore::new(GUESTS)) }
    }
}

impl ConnectionSlots {
    /// Slot for a new connection. If none is left, another client that is not admitted loses its slot.
    #[must_use]
    pub fn enter(&self, address: IpAddr) -> ConnectionSlot {
        let stranger = self.strangers.admit(Some(address));
        ConnectionSlot {
            evicted: stranger.evicted().clone(),
            stranger: Mutex::new(Some(stranger)),
            guest: OnceLock::new(),
            guests: Arc::clone(&self.guests),
        }
    }

    /// Returns true if connections should end with their answers, so that no idle one takes a slot.
    #[must_use]
    pub fn are_scarce(&self) -> bool {
        self.guests.available_permits() < GUESTS / 2
    }
}

/// Slot of one connection.
pub struct ConnectionSlot {
    evicted: CancellationToken,
    stranger: Mutex<Option<ConnectionPermit>>,
    guest: OnceLock<OwnedSemaphorePermit>,
    guests: Arc<Semaphore>,
}

impl ConnectionSlot {
    /// Admits the client: its slot for unauthenticated clients becomes free. Returns false if there was no
    /// room in time.
    pub async fn admit(&self) -> bool {
        if self.is_guests() {
            return true;
        }
        let waited = timeout(PATIENCE, Arc::clone(&self.guests).acquire_owned()).await;
        let Ok(Ok(guest)) = waited else { return false };
        // Requests of one connection come one after the other.
        let _ = self.guest.set(guest);
        self.stranger.lock().unwrap_or_else(PoisonError::into_inner).take();
        true
    }

    /// Returns true if the client was admitted.
    #[must_use]
    pub fn is_guests(&self) -> bool {
        self.guest.get().is_some()
    }

    /// Records a verified client certificate: clients without one lose their slots first.
    pub fn authenticate(&self) {
        let stranger = self.stranger.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stranger) = &*stranger {
            stranger.authenticate();
        }
    }

    /// Returns once the client has lost its slot to another one; never for an admitted client.
    pub async fn is_lost(&self) {
        self.evicted.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn is_lost(place: &ConnectionSlot) -> bool {
        place.is_lost().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_and_guests_are_not_in_each_others_way() {
        let places = ConnectionSlots::default();
        let mut guests = Vec::new();
        for guest in 0..GUESTS {
            let place = places.enter(SERVER);
            assert_eq!(places.are_scarce(), guest > GUESTS / 2, "{guest}");
            assert!(!place.is_guests() && place.admit().await && place.admit().await && place.is_guests());
            guests.push(place);
        }
        let strangers: Vec<_> = (0..STRANGERS).map(|_| places.enter(SERVER)).collect();
        assert!(!strangers[0].admit().await, "there is no room");
        guests.pop();
        assert!(strangers[0].admit().await);
        assert!(!strangers.iter().chain(&guests).any(is_lost), "who was let in has left a stranger's place");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_takes_all_places_loses_them_to_others() {
        let places = ConnectionSlots::default();
        let attack: Vec<_> = (0..2 * STRANGERS).map(|_| places.enter(ATTACKER)).collect();
        let asking: Vec<_> = (0..STRANGERS / 4).map(|_| places.enter(SERVER)).collect();
        asking.iter().for_each(ConnectionSlot::authenticate);
        let more: Vec<_> = (0..2 * STRANGERS).map(|_| places.enter(ATTACKER)).collect();
        assert!(!asking.iter().any(is_lost));
        let left = attack.iter().chain(&more).filter(|place| !is_lost(place)).count();
        assert_eq!(left, STRANGERS - STRANGERS / 4);
        for place in &asking {
            assert!(place.admit().await);
        }
    }
}
