//! Cache of decisions with an expiry and a maximum size.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
};

use tokio::time::Instant;

/// Maximum number of decisions.
const MOST: usize = 4_096;

/// Decisions, each with its expiry.
pub struct DecisionCache<K, V> {
    known: Mutex<HashMap<K, (V, Instant)>>,
}

impl<K, V> Default for DecisionCache<K, V> {
    fn default() -> Self {
        Self { known: Mutex::default() }
    }
}

impl<K: Eq + Hash, V: Clone> DecisionCache<K, V> {
    /// Cached decision for `key` that is valid at `now`.
    pub fn recall(&self, key: &K, now: Instant) -> Option<V> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).filter(|(_, until)| now < *until).map(|(value, _)| value.clone())
    }

    /// Caches a decision. A full cache drops the expired ones, or all if none has expired.
    pub fn keep(&self, key: K, value: V, until: Instant) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            let now = Instant::now();
            known.retain(|_, (_, until)| now < *until);
            if known.len() >= MOST {
                known.clear();
            }
        }
        known.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_answer_holds_for_its_time_and_there_are_not_too_many() {
        let (memory, now) = (DecisionCache::default(), Instant::now());
        let (soon, late) = (now + Duration::from_secs(1), now + Duration::from_mins(1));
        memory.keep(0, "a", soon);
        assert_eq!(
            (memory.recall(&0, now), memory.recall(&0, soon), memory.recall(&1, now)),
            (Some("a"), None, None)
        );
        for key in 0..3 * MOST {
            memory.keep(key, "b", late);
        }
        assert!(memory.known.lock().unwrap().len() <= MOST);
        assert_eq!(memory.recall(&(3 * MOST - 1), now), Some("b"));
    }
}
