//! Cache of decisions with an expiry and a maximum size.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of decisions.
const MOST: usize = 4_096;

/// Digest of what was decided on.
type Key = [u8; 32];

/// Decisions, each with its expiry.
#[derive(Default)]
pub struct DecisionCache<V>(Mutex<HashMap<Key, (V, Instant)>>);

impl<V: Clone> DecisionCache<V> {
    /// Cached decision for `key` that is valid at `now`.
    pub fn get(&self, key: &Key, now: Instant) -> Option<V> {
        self.0.lock().get(key).filter(|(_, until)| now < *until).map(|(decision, _)| decision.clone())
    }

    /// Caches a decision. A full cache drops the expired ones, or all if none has expired.
    pub fn insert(&self, key: Key, decision: V, until: Instant) {
        let mut decisions = self.0.lock();
        if decisions.len() >= MOST {
            let now = Instant::now();
            decisions.retain(|_, (_, until)| now < *until);
            if decisions.len() >= MOST {
                decisions.clear();
            }
        }
        decisions.insert(key, (decision, until));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(number: usize) -> Key {
        let mut key = Key::default();
        key[..size_of::<usize>()].copy_from_slice(&number.to_ne_bytes());
        key
    }

    #[test]
    fn a_decision_holds_for_its_time_and_there_are_not_too_many() {
        let (cache, now) = (DecisionCache::default(), Instant::now());
        let (soon, late) = (now + Duration::from_secs(1), now + Duration::from_mins(1));
        cache.insert(key(0), "a", soon);
        let known = [(0, now), (0, soon), (1, now)].map(|(number, at)| cache.get(&key(number), at));
        assert_eq!(known, [Some("a"), None, None]);
        for number in 0..3 * MOST {
            cache.insert(key(number), "b", late);
        }
        assert!(cache.0.lock().len() <= MOST);
        assert_eq!(cache.get(&key(3 * MOST - 1), now), Some("b"));
    }
}
