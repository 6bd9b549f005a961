//! Cache of decisions with an expiry and a maximum size: beyond it the decision goes whose last use is longest ago.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Digest of what was decided on.
type Key = [u8; 32];

/// Decisions, each with its expiry.
pub struct DecisionCache<V>(Mutex<Decisions<V>>);

struct Decisions<V> {
    by_key: HashMap<Key, Decision<V>>,
    /// Keys by the number of their last use, the oldest first.
    by_use: BTreeMap<u64, Key>,
    /// Number of uses so far.
    uses: u64,
}

struct Decision<V> {
    value: V,
    until: Instant,
    last_use: u64,
}

impl<V> Default for DecisionCache<V> {
    fn default() -> Self {
        Self(Mutex::new(Decisions { by_key: HashMap::new(), by_use: BTreeMap::new(), uses: 0 }))
    }
}

impl<V: Clone> DecisionCache<V> {
    /// Cached decision for `key` that is valid at `now`.
    pub fn get(&self, key: &Key, now: Instant) -> Option<V> {
        let Decisions { by_key, by_use, uses } = &mut *self.0.lock();
        let decision = by_key.get_mut(key).filter(|decision| now < decision.until)?;
        *uses += 1;
        by_use.remove(&std::mem::replace(&mut decision.last_use, *uses));
        by_use.insert(*uses, *key);
        Some(decision.value.clone())
    }

    /// Caches a decision, and drops the decisions beyond `most` whose last use is longest ago.
    pub fn insert(&self, key: Key, value: V, until: Instant, most: usize) {
        let Decisions { by_key, by_use, uses } = &mut *self.0.lock();
        *uses += 1;
        if let Some(before) = by_key.insert(key, Decision { value, until, last_use: *uses }) {
            by_use.remove(&before.last_use);
        }
        by_use.insert(*uses, key);
        while by_key.len() > most.max(1)
            && let Some((_, oldest)) = by_use.pop_first()
        {
            by_key.remove(&oldest);
        }
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
    fn a_decision_holds_for_its_time() {
        let (cache, now) = (DecisionCache::default(), Instant::now());
        let soon = now + Duration::from_secs(1);
        cache.insert(key(0), "a", soon, 2);
        let known = [(0, now), (0, soon), (1, now)].map(|(number, at)| cache.get(&key(number), at));
        assert_eq!(known, [Some("a"), None, None]);
        cache.insert(key(0), "b", soon, 2);
        assert_eq!(cache.get(&key(0), now), Some("b"));
    }

    #[test]
    fn a_full_cache_drops_the_decision_whose_last_use_is_longest_ago() {
        let (cache, now) = (DecisionCache::default(), Instant::now());
        let late = now + Duration::from_mins(1);
        let most = 1_000;
        for number in 0..most {
            cache.insert(key(number), (), late, most);
        }
        assert_eq!(cache.get(&key(0), now), Some(()));
        for number in most..most + 10 {
            cache.insert(key(number), (), late, most);
        }
        let kept = (0..most + 10).filter(|number| cache.get(&key(*number), now).is_some());
        assert!(kept.eq(std::iter::once(0).chain(11..most + 10)));
        let decisions = cache.0.lock();
        assert_eq!((decisions.by_key.len(), decisions.by_use.len()), (most, most));
    }
}
