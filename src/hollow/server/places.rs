//! Places among the connections: few for those who have not yet shown that they may ask anything, and many for those who have.
//!
//! Whoever reads metrics keeps a connection to each node between two readings. Idle ones must not take the places of others,
//! so an answer ends its connection while places are scarce.

use std::{
    io,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Connections at once of clients that were let in.
pub const GUESTS: usize = 1_024;
/// Connections at once of clients that were not, or not yet; whoever else knocks waits for one of them to end.
pub const STRANGERS: usize = 256;
/// How long a client that may ask waits for a place.
const PATIENCE: Duration = Duration::from_secs(10);

/// All places.
pub struct Places {
    strangers: Arc<Semaphore>,
    guests: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        Self { strangers: Arc::new(Semaphore::new(STRANGERS)), guests: Arc::new(Semaphore::new(GUESTS)) }
    }
}

impl Places {
    /// A place for who knocks, once there is one.
    pub async fn enter(&self) -> io::Result<Place> {
        let stranger = Arc::clone(&self.strangers).acquire_owned().await.map_err(io::Error::other)?;
        Ok(Place {
            stranger: Mutex::new(Some(stranger)),
            guest: OnceLock::new(),
            guests: Arc::clone(&self.guests),
        })
    }

    /// Whether connections are to end with their answers, so that nobody idle is in the way.
    #[must_use]
    pub fn are_scarce(&self) -> bool {
        self.guests.available_permits() < GUESTS / 2
    }
}

/// The place of one connection.
pub struct Place {
    stranger: Mutex<Option<OwnedSemaphorePermit>>,
    guest: OnceLock<OwnedSemaphorePermit>,
    guests: Arc<Semaphore>,
}

impl Place {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn strangers_and_guests_are_not_in_each_others_way() {
        let places = Places::default();
        let mut guests = Vec::new();
        for guest in 0..GUESTS {
            let place = places.enter().await.unwrap();
            assert_eq!(places.are_scarce(), guest > GUESTS / 2, "{guest}");
            assert!(!place.is_guests() && place.admit().await && place.admit().await && place.is_guests());
            guests.push(place);
        }
        // More knock than there are places for strangers; none of them is let in, and none keeps a guest waiting.
        let mut strangers = Vec::new();
        for _ in 0..STRANGERS {
            strangers.push(places.enter().await.unwrap());
        }
        assert!(timeout(PATIENCE, places.enter()).await.is_err());
        assert!(!strangers[0].admit().await, "there is no room");
        guests.pop();
        assert!(strangers[0].admit().await);
        assert!(
            timeout(PATIENCE, places.enter()).await.is_ok(),
            "who was let in has left a stranger's place"
        );
    }
}
