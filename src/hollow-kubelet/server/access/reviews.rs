//! Permits for reviews: a maximum at once, separate for clients with a certificate, and a share of the others
//! for each address.
//!
//! Any client can show a token that has to be reviewed. A certificate was verified here, by the cluster's CA:
//! reviews of its user's permissions never wait for those of tokens.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of reviews at once for clients with a certificate, and the same for clients with a token.
const AT_ONCE: usize = 16;
/// Maximum number of reviews at once for tokens from one address.
const OF_ADDRESS: usize = 4;

/// Client whose request needs a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Client with a certificate.
    Certificate,
    /// Client with a token, at this address.
    Token(IpAddr),
}

/// Permits of all reviews.
pub struct Reviews {
    of_certificates: Arc<Semaphore>,
    of_tokens: Arc<Semaphore>,
    /// Shares of addresses that have reviews under way or waiting.
    shares: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

impl Default for Reviews {
    fn default() -> Self {
        let all = || Arc::new(Semaphore::new(AT_ONCE));
        Self { of_certificates: all(), of_tokens: all(), shares: Mutex::default() }
    }
}

/// Permit for a review, until dropped.
pub struct Permit {
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Reviews {
    /// Waits for a permit.
    pub async fn turn(&self, asker: Asker) -> Permit {
        let (share, all) = match asker {
            Asker::Certificate => (None, &self.of_certificates),
            Asker::Token(address) => (Some(self.share(address)), &self.of_tokens),
        };
        // No semaphore here is ever closed.
        let share = match share {
            Some(share) => share.acquire_owned().await.ok(),
            None => None,
        };
        let all = Arc::clone(all).acquire_owned().await.ok();
        Permit { _permits: [share, all] }
    }

    fn share(&self, address: IpAddr) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
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
    async fn tokens_of_one_address_leave_turns_to_all_others() {
        let reviews = Reviews::default();
        let from = |last: u8| Asker::Token(IpAddr::from([10, 0, 0, last]));
        let mut under_way = Vec::new();
        for _ in 0..OF_ADDRESS {
            under_way.push(reviews.turn(from(1)).now_or_never().unwrap());
        }
        let waiting = (0..100).filter(|_| reviews.turn(from(1)).now_or_never().is_none()).count();
        assert_eq!(waiting, 100);
        for address in 2..=4 {
            for _ in 0..OF_ADDRESS {
                under_way.push(reviews.turn(from(address)).now_or_never().unwrap());
            }
        }
        assert!(reviews.turn(from(5)).now_or_never().is_none(), "all turns of tokens are taken");
        for _ in 0..AT_ONCE {
            under_way.push(reviews.turn(Asker::Certificate).now_or_never().unwrap());
        }
        assert!(reviews.turn(Asker::Certificate).now_or_never().is_none());
        under_way.clear();
        assert!(reviews.turn(from(1)).now_or_never().is_some());
        reviews.share(IpAddr::from([10, 0, 0, 9]));
        assert_eq!(reviews.shares.lock().unwrap().len(), 1, "the shares of addresses that left are gone");
    }
}
