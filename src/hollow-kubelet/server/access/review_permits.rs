//! Permits for reviews: a maximum at once, separate for clients with a certificate, and a share of the others
//! for each address.
//!
//! Any client can show a token that has to be reviewed. A certificate was verified here, by the cluster's CA:
//! reviews of its user's permissions never wait for those of tokens.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of reviews at once for clients with a certificate, and the same for clients with a token.
const AT_ONCE: usize = 16;
/// Maximum number of reviews at once for tokens from one address.
const OF_ADDRESS: usize = 4;

/// Credential of the client whose request needs a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A verified certificate.
    Certificate,
    /// A token, shown from this address.
    Token(IpAddr),
}

/// Permits of all reviews.
pub struct ReviewPermits {
    of_certificates: Arc<Semaphore>,
    of_tokens: Arc<Semaphore>,
    /// Shares of addresses that have reviews under way or waiting.
    shares: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

impl Default for ReviewPermits {
    fn default() -> Self {
        let all = || Arc::new(Semaphore::new(AT_ONCE));
        Self { of_certificates: all(), of_tokens: all(), shares: Mutex::default() }
    }
}

impl ReviewPermits {
    /// Waits for a permit, which is held until dropped. No semaphore here is ever closed.
    pub async fn acquire(&self, credential: Credential) -> [Option<OwnedSemaphorePermit>; 2] {
        let Credential::Token(address) = credential else {
            return [Arc::clone(&self.of_certificates).acquire_owned().await.ok(), None];
        };
        let share = self.share(address).acquire_owned().await.ok();
        [share, Arc::clone(&self.of_tokens).acquire_owned().await.ok()]
    }

    fn share(&self, address: IpAddr) -> Arc<Semaphore> {
        let mut shares = self.shares.lock();
        // Every waiting or running review holds its share, so shares are no more than connections.
        shares.retain(|_, share| Arc::strong_count(share) > 1);
        Arc::clone(shares.entry(address).or_insert_with(|| Arc::new(Semaphore::new(OF_ADDRESS))))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn tokens_of_one_address_leave_permits_to_all_others() {
        let permits = ReviewPermits::default();
        let from = |last: u8| Credential::Token(IpAddr::from([10, 0, 0, last]));
        let mut under_way = Vec::new();
        for _ in 0..OF_ADDRESS {
            under_way.push(permits.acquire(from(1)).now_or_never().unwrap());
        }
        let waiting = (0..100).filter(|_| permits.acquire(from(1)).now_or_never().is_none()).count();
        assert_eq!(waiting, 100);
        for address in 2..=4 {
            for _ in 0..OF_ADDRESS {
                under_way.push(permits.acquire(from(address)).now_or_never().unwrap());
            }
        }
        assert!(permits.acquire(from(5)).now_or_never().is_none(), "all permits of tokens are taken");
        for _ in 0..AT_ONCE {
            under_way.push(permits.acquire(Credential::Certificate).now_or_never().unwrap());
        }
        assert!(permits.acquire(Credential::Certificate).now_or_never().is_none());
        under_way.clear();
        assert!(permits.acquire(from(1)).now_or_never().is_some());
        permits.share(IpAddr::from([10, 0, 0, 9]));
        assert_eq!(permits.shares.lock().len(), 1, "the shares of addresses that left are gone");
    }
}
