//! Connections of clients: few of those who have not yet shown that they may ask anything, and many of those who have.
//!
//! Whoever reads metrics keeps a connection to each node between two readings. Idle ones must not take the places of others,
//! so an answer ends its connection while places are scarce.

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

/// Connections at once of clients that were let in.
pub const GUESTS: usize = 1_024;
/// Connections at once of clients that were not, or not yet.
pub const STRANGERS: usize = 256;
/// How long a client that may ask waits for a place.
const PATIENCE: Duration = Duration::from_secs(10);

/// All places.
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
    /// A place for who knocks. Where there is none left, somebody else who was not let in loses the own.
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

    /// Whether connections are to end with their answers, so that nobody idle is in the way.
    #[must_use]
    pub fn are_scarce(&self) -> bool {
        self.guests.available_permits() < GUESTS / 2
    }
}

/// The place of one connection.
pub struct ConnectionSlot {
    evicted: CancellationToken,
    stranger: Mutex<Option<ConnectionPermit>>,
    guest: OnceLock<OwnedSemaphorePermit>,
    guests: Arc<Semaphore>,
}

impl ConnectionSlot {
    /// Lets the client in: from now on it takes no stranger's place. Whether there was room in time.
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

    /// Whether the client was let in.
    #[must_use]
    pub fn is_guests(&self) -> bool {
        self.guest.get().is_some()
    }

    /// The client has shown a certificate of the cluster: it loses its place after those who have not.
    pub fn authenticate(&self) {
        let stranger = self.stranger.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stranger) = &*stranger {
            stranger.authenticate();
        }
    }

    /// Comes back once the client has lost its place to another one; one that was let in never does.
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
